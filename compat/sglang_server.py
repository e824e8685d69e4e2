"""The bootstrap service of one engine, as a child process that is kept running."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import requests

from bootstrap_grpc.client.backoff import Backoff
from bootstrap_grpc.client.target import Target, parse_target
from bootstrap_grpc.compat.session_peers import Greeting, greeting_of

__all__ = ["GRPC_OFFSET", "ServiceProcess"]

_log = logging.getLogger("bootstrap_grpc.sglang")

GRPC_OFFSET = 10_000
"""The gRPC port is the HTTP port plus this, or a free one where that is none or is taken."""

_START_TIMEOUT = 60.0
"""Seconds that a child may take until it listens; it takes one on an idle host."""

_LOOK = 0.5
"""Seconds between two looks at a service that was joined."""


class ServiceProcess:
    """``bootstrap-grpc serve`` on SGLang's bootstrap port, beside the engine.

    Its own interpreter, so that the engine's work cannot stop it. Started again when it ends, with
    the same instance id, until ``close``; gone when this process goes, however it goes. A port
    that another bootstrap-grpc holds is joined, and taken over when that one goes.
    """

    def __init__(self, host: str, port: int) -> None:
        """Start the service, and wait until it listens.

        Raises
        ------
        OSError
            The port is held by something else, or cannot be bound.
        RuntimeError
            The service did not start.
        """
        self._host = host
        self._port = port
        self._address = str(parse_target(str(Target(host, port))))  # a wildcard means loopback
        self.instance_id = uuid.uuid4().hex
        """Names this start of the engine."""
        self.grpc_port = port + GRPC_OFFSET if 0 < port + GRPC_OFFSET <= 65_535 else 0
        self._folder = Path(tempfile.mkdtemp(prefix="bootstrap-grpc-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._closing = threading.Event()
        self.thread = threading.Thread(target=self._keep, name="bootstrap-service", daemon=True)
        try:
            self._start_or_join()
        except BaseException:
            self._remove_folder()
            raise
        self.thread.start()

    @property
    def pid(self) -> int | None:
        """The child's process id; ``None`` while there is none."""
        process = self._process
        return None if process is None else process.pid

    @property
    def is_joined(self) -> bool:
        """Whether another bootstrap-grpc serves the port."""
        return self._process is None and not self._closing.is_set()

    def close(self) -> None:
        """Drain and end the child; about 1 s at most. Idempotent; in a forked child harmless."""
        if os.getpid() != self._owner or self._closing.is_set():
            return
        self._closing.set()
        process = self._process
        if process is not None:
            _end(process)
        if self.thread.ident is not None:
            self.thread.join(5)
        self._remove_folder()

    def _start_or_join(self) -> None:
        taken = _bind_error(self._host, self._port)
        if taken is None:
            self._start()
        elif taken.errno == errno.EADDRINUSE and self._greeting():
            _log.warning("%s is served by another bootstrap-grpc: joined", self._address)
        else:
            who = " by what is no bootstrap-grpc" if taken.errno == errno.EADDRINUSE else ""
            why = os.strerror(taken.errno or 0) + who
            raise OSError(taken.errno, f"bootstrap address {self._address}: {why}")

    def _start(self) -> None:
        """Start a child on the wanted gRPC port, or on a free one. Raises RuntimeError."""
        wanted = self.grpc_port
        if wanted and _bind_error(self._host, wanted) is not None:
            _log.warning("gRPC port %d is taken: a free one is used", wanted)
            wanted = 0
        process = self._process = self._spawn(wanted)
        ports = self._wait_ready(process)
        if ports is None and wanted and process.poll() is not None:
            # Taken in between, perhaps.
            process = self._process = self._spawn(0)
            ports = self._wait_ready(process)
        if ports is None:
            code = process.poll()
            _end(process)
            raise RuntimeError(
                f"bootstrap-grpc serve on {self._address} "
                + ("did not listen in time" if code is None else f"ended with exit code {code}")
            )
        self.grpc_port = ports["grpc"]
        _log.info(
            "bootstrap service for %s: process %d, gRPC on port %d, instance id %s",
            self._address,
            process.pid,
            self.grpc_port,
            self.instance_id,
        )

    @property
    def _port_file(self) -> Path:
        return self._folder / "ports.json"

    def _spawn(self, grpc_port: int) -> subprocess.Popen[bytes]:
        self._port_file.unlink(missing_ok=True)
        return subprocess.Popen(  # noqa: S603 - its own module, and no shell
            [
                *(sys.executable, "-m", "bootstrap_grpc.compat.sglang_child", "serve"),
                *("--host", self._host, "--http-port", str(self._port)),
                *("--port", str(grpc_port), "--port-file", str(self._port_file)),
                *("--instance-id", self.instance_id, "--drain-timeout", "0.5"),
            ],
            # The engine needs HTTP, whatever the environment says of other services.
            env={k: v for k, v in os.environ.items() if k != "BOOTSTRAP_GRPC_NO_HTTP"},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # it logs to stderr, as the engine does
            # A Ctrl-C at the engine's terminal is the engine's to act on.
            start_new_session=True,
        )

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> dict[str, Any] | None:
        deadline = time.monotonic() + _START_TIMEOUT
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError, ValueError):
                ports: dict[str, Any] = json.loads(self._port_file.read_text("utf-8"))
                return ports
            if self._closing.wait(0.02):
                break
        return None

    def _keep(self) -> None:
        backoff = Backoff(first=0.2, most=5.0)
        while not self._closing.is_set():
            process = self._process
            if process is None:
                self._closing.wait(_LOOK)
                if self._closing.is_set() or _bind_error(self._host, self._port) is not None:
                    continue
            else:
                started = time.monotonic()
                code = process.wait()
                if self._closing.is_set():
                    return
                if time.monotonic() - started > 10:
                    backoff.reset()
                _log.error("bootstrap service ended with exit code %s: starting it again", code)
                _close_pipe(process)
            try:
                self._start()
            except (RuntimeError, OSError) as error:
                _log.error("%s; trying again", error)
                self._closing.wait(backoff.next_delay())
            if self._closing.is_set() and self._process is not None:
                _end(self._process)

    def _greeting(self) -> Greeting:
        """Who holds the port; empty where it is no bootstrap-grpc."""
        try:
            return greeting_of(requests.get(f"http://{self._address}/health", timeout=2).headers)
        except requests.RequestException:
            return Greeting()

    def _remove_folder(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    _close_pipe(process)
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _close_pipe(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


def _bind_error(host: str, port: int) -> OSError | None:
    """Why nothing can listen at ``host`` and ``port`` now."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        return error
    return None
