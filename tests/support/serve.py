"""The real service: ``bootstrap-grpc serve`` as a process, to be killed, stopped and started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

__all__ = ["ServeProcess", "child_environment"]


def child_environment() -> dict[str, str]:
    """This environment, where warnings of a child end it as they end a test."""
    return {**os.environ, "PYTHONWARNINGS": "error"}


class ServeProcess:
    """Runs the service on ports of its own choice, and again on the same ones."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self.grpc_port = 0
        self.http_port = 0

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.http_port}"

    @property
    def log(self) -> str:
        """What all its starts have logged."""
        return (self._folder / "serve.log").read_text()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *options: str) -> None:
        """Start and wait until both ports are bound."""
        ports = self._folder / "ports.json"
        ports.unlink(missing_ok=True)
        with (self._folder / "serve.log").open("a") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "bootstrap_grpc.cli.main", "serve"),
                    *("--port", str(self.grpc_port), "--http-port", str(self.http_port)),
                    *("--port-file", str(ports)),
                    *self._options,
                    *options,
                ],
                stdout=log,
                stderr=log,
                text=True,
                env=child_environment(),
            )
        deadline = time.monotonic() + 30
        while not ports.exists():
            assert self._process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.005)
        bound = json.loads(ports.read_text())
        self.grpc_port, self.http_port = bound["grpc"], bound["http"]

    def kill(self) -> None:
        """End it as a crash would."""
        self.send(signal.SIGKILL)
        self.wait()

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, timeout: float = 20) -> int:
        """Its exit code."""
        assert self._process is not None
        return self._process.wait(timeout)

    def __enter__(self) -> ServeProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.send(signal.SIGCONT)
            self.kill()


@contextlib.contextmanager
def serving(folder: Path, *options: str) -> Iterator[ServeProcess]:
    """A service that is up."""
    with ServeProcess(folder, *options) as process:
        process.start()
        yield process
