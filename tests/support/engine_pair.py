"""A whole prefill and a whole decode server of SGLang on the CPU, as an operator runs them.

Needs the interpreter that ``make test-e2e`` installs: see ``engine_python``. The model is two
layers of nothing, the KV cache goes over Mooncake's TCP; everything else is SGLang's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import requests

__all__ = [
    "OFF",
    "PLUGIN",
    "Answer",
    "Engine",
    "EnginePair",
    "EngineUnavailableError",
    "engine_python",
    "free_port",
]

_FOLDER = Path(__file__).resolve().parent / "engine"
_READY = "The server is fired up and ready to roll!"
_START_TIMEOUT = 300.0

PLUGIN: Mapping[str, str] = {"SGLANG_PLUGINS": "bootstrap_grpc"}
"""Environment of an engine that loads the plugin."""

OFF: Mapping[str, str] = {"SGLANG_PLUGINS": "none"}
"""Environment of an engine that loads no plugin: unmodified SGLang."""


class EngineUnavailableError(RuntimeError):
    """SGLang's whole engine is not installed here."""


def engine_python() -> Path:
    """The interpreter with the whole engine, from ``BOOTSTRAP_GRPC_ENGINE_PYTHON``.

    Raises
    ------
    EngineUnavailableError
        The variable is not set, or names no file.
    """
    given = os.environ.get("BOOTSTRAP_GRPC_ENGINE_PYTHON", "")
    python = Path(given)
    if not given or not python.is_file():
        raise EngineUnavailableError(
            f"BOOTSTRAP_GRPC_ENGINE_PYTHON is {given!r}; `make test-e2e` installs the engine"
        )
    return python


def free_port() -> int:
    """A port that is free now, and whose gRPC port (10000 above) is one."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port <= 55_535:
            return port


class Engine:
    """One server of SGLang and its processes, in a session of their own."""

    def __init__(
        self,
        folder: Path,
        role: str,
        flags: Sequence[str] = (),
        environment: Mapping[str, str] = PLUGIN,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = folder / f"{role}.log"
        self._role = role
        self._flags = flags
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What all its starts have written."""
        return self._log.read_text("utf-8", "replace")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and go on."""
        options = {
            "--model-path": str(_FOLDER / "tiny_gpt2"),
            "--load-format": "dummy",
            "--device": "cpu",
            "--host": "127.0.0.1",
            "--port": str(self.port),
            "--max-total-tokens": "4096",
            "--mem-fraction-static": "0.2",
            "--disaggregation-mode": self._role,
            "--disaggregation-transfer-backend": "mooncake",
        }
        switches = ["--skip-tokenizer-init", "--skip-server-warmup", "--disable-radix-cache"]
        if self._role == "decode":
            options["--disaggregation-decode-retraction-backup"] = "none"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(str(engine_python()), "-m", "sglang.launch_server"),
                    *(word for option in options.items() for word in option),
                    *switches,
                    *self._flags,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **os.environ,
                    "PYTHONPATH": str(_FOLDER),
                    "MOONCAKE_PROTOCOL": "tcp",
                    # With one CP rank it only selects the branch that needs no torch.cuda.Event.
                    "SGLANG_DISAGGREGATION_ALL_CP_RANKS_TRANSFER": "1",
                    "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "5",
                    **self._environment,
                },
            )

    def wait_ready(self, starts: int = 1) -> None:
        """Wait until its start number ``starts`` is over."""
        deadline = time.monotonic() + _START_TIMEOUT
        while self.log.count(_READY) < starts:
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the {self._role} server did not start\n{self.log[-6000:]}")
            time.sleep(0.2)

    def processes(self) -> list[psutil.Process]:
        """It and all its descendants."""
        engine = psutil.Process(self.pid)
        return [engine, *engine.children(recursive=True)]

    def connections(self, port: int) -> list[Any]:
        """TCP connections of its processes to ``port``."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [
                    each
                    for each in process.net_connections("tcp")
                    if each.raddr and each.raddr.port == port
                ]
        return found

    def bootstrap_child(self) -> psutil.Process:
        """Its ``bootstrap-grpc serve``."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "bootstrap_grpc.compat.sglang_child" in process.cmdline():
                    return process
        raise LookupError("no bootstrap-grpc serve runs below the engine")

    def kill(self) -> None:
        """SIGKILL to SGLang's own processes; what watches over itself is left to do so."""
        own = [process for process in self.processes() if not _is_child(process)]
        for process in own:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert self._process is not None
        self._process.wait()

    def end(self) -> None:
        """End whatever is left."""
        if self._process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in self.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _is_child(process: psutil.Process) -> bool:
    try:
        return "bootstrap_grpc.compat.sglang_child" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's."""

    room: int
    tokens: int
    ttft: float
    """Seconds until the first token."""
    seconds: float
    error: str = ""


class EnginePair:
    """A prefill and a decode server. Use as a context manager; ``rooms`` are never used twice."""

    def __init__(
        self,
        folder: Path,
        *,
        prefill: Mapping[str, str] = PLUGIN,
        decode: Mapping[str, str] = PLUGIN,
        prefill_flags: Sequence[str] = (),
    ) -> None:
        self.bootstrap_port = free_port()
        flags = ["--disaggregation-bootstrap-port", str(self.bootstrap_port), *prefill_flags]
        self.prefill = Engine(folder, "prefill", flags, prefill)
        self.decode = Engine(folder, "decode", (), decode)
        self._room = 1_000

    @property
    def grpc_port(self) -> int:
        return self.bootstrap_port + 10_000

    def __enter__(self) -> EnginePair:
        try:
            for engine in (self.prefill, self.decode):
                engine.start()
            for engine in (self.prefill, self.decode):
                engine.wait_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.decode.end()
        self.prefill.end()

    def request(self, session: requests.Session, *, timeout: float = 30.0) -> Answer:
        """Send one request to both servers, as a router does. Raises nothing."""
        self._room += 1
        return self._request(session, self._room, timeout)

    def rooms(self, count: int) -> range:
        """The next ``count`` rooms, for ``request_room``."""
        self._room += count
        return range(self._room - count + 1, self._room + 1)

    def request_room(self, room: int, *, timeout: float = 30.0) -> Answer:
        """``request`` with a room of ``rooms`` and connections of its own: for many threads."""
        with requests.Session() as session:
            return self._request(session, room, timeout)

    def _request(self, session: requests.Session, room: int, timeout: float) -> Answer:
        body = {
            "input_ids": [5, 6, 7, 8, 9],
            "sampling_params": {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True},
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self.bootstrap_port,
            "bootstrap_room": room,
        }
        started = time.monotonic()
        first = 0.0
        tokens = 0
        error = ""
        prefill: requests.Response | None = None
        try:
            # The reply of the prefill ends with the transfer; its headers come at once.
            prefill = session.post(
                f"{self.prefill.url}/generate",
                json={**body, "stream": True},
                stream=True,
                timeout=timeout,
            )
            with session.post(
                f"{self.decode.url}/generate",
                json={**body, "stream": True},
                stream=True,
                timeout=timeout,
            ) as reply:
                for event in _events(reply):
                    if "error" in event:
                        error = str(event["error"])
                        break
                    first = first or time.monotonic()
                    tokens = len(event.get("output_ids", ()))
        except requests.RequestException as failure:
            error = f"{type(failure).__name__}: {failure}"
        finally:
            if prefill is not None:
                prefill.close()
        now = time.monotonic()
        return Answer(room, tokens, (first or now) - started, now - started, error)


def _events(reply: requests.Response) -> Iterator[dict[str, Any]]:
    """The events of a stream, or the one body of a refusal."""
    if reply.status_code != 200:
        yield {"error": f"{reply.status_code} {reply.text}"}
        return
    for line in reply.iter_lines():
        if line.startswith(b"data: ") and line != b"data: [DONE]":
            yield json.loads(line[6:])
