"""The three contestants, and the server that each of them comes with."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness import ROOT

from support.serve import ServeProcess
from support.sglang_process import ChildProcess
from support.sglang_release import NEWEST, UNPOOLED, install_release

__all__ = ["CONTESTANTS", "Contestant", "RunningServer"]

_WORKER = ROOT / "tests" / "support" / "sglang_worker.py"


@dataclass(frozen=True, slots=True)
class RunningServer:
    """Where the clients of a contestant connect, and the process that serves them."""

    address: str
    pid: int

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


@dataclass(frozen=True, slots=True)
class Contestant:
    """A transport: whose clients run in the schedulers, against whose server."""

    name: str
    label: str
    version: str = ""
    """Of SGLang; empty for this project."""

    def release(self) -> Path | None:
        """Return the folder of the SGLang release; ``None`` for this project.

        :raises support.sglang_release.ReleaseUnavailableError: it cannot be had here.
        """
        return install_release(self.version) if self.version else None

    @contextmanager
    def serve(self) -> Iterator[RunningServer]:
        """Run the server, new and empty, on loopback."""
        release = self.release()
        if release is None:
            with tempfile.TemporaryDirectory() as folder, ServeProcess(Path(folder)) as service:
                service.start()
                yield RunningServer(service.grpc, service.pid)
        else:
            with ChildProcess(_WORKER, [str(release)]) as child:
                child.send({"call": "serve", "with": {"host": "127.0.0.1"}})
                yield RunningServer(f"127.0.0.1:{child.receive()['value']}", child.pid)


CONTESTANTS = (
    Contestant("unpooled", f"SGLang {UNPOOLED}, unpooled", UNPOOLED),
    Contestant("pooled", f"SGLang {NEWEST}, pooled", NEWEST),
    Contestant("grpc", "bootstrap-grpc"),
)
"""In the order of the table."""
