"""The servers under load: SGLang's own and this project's, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from harness import ROOT
from harness.load import DP_RANKS, ROOMS, SIZES
from support.sglang_peer import SglangPeer
from support.sglang_process import ChildProcess
from support.sglang_release import install_release
from support.sglang_roles import PrefillRank

__all__ = ["Ports", "fill", "run_command", "run_service", "run_sglang"]

_START_TIMEOUT = 15.0
"""Seconds."""

_SHIM = ROOT / "tests" / "support" / "sglang_shim.py"


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a server listens."""

    http: int
    grpc: int = 0
    """0 where the server has none."""


@contextmanager
def run_sglang(version: str, *, host: str, prefix: Sequence[str] = ()) -> Iterator[Ports]:
    """Run the bootstrap server of an SGLang release, filled with ranks and rooms."""
    root = install_release(version)
    with SglangPeer(root, prefix=prefix) as server:
        ports = Ports(int(server.serve(host).rpartition(":")[2]))
        fill(root, ports, prefix)
        yield ports


@contextmanager
def run_service(
    filler: str, *, host: str, prefix: Sequence[str] = (), busy_us: int = 0
) -> Iterator[Ports]:
    """Run this project's service, filled by the code of SGLang release ``filler``.

    :param busy_us: keep its event loop busy in steps of so many microseconds; 0 leaves it alone.
    """
    options = ("--host", host, "--busy-us", str(busy_us))
    with ExitStack() as stack:
        child = stack.enter_context(ChildProcess(_SHIM, options, prefix=prefix))
        ports = Ports(child.ready["http"], child.ready["grpc"])
        fill(install_release(filler), ports, prefix)
        yield ports


@contextmanager
def run_command(filler: str) -> Iterator[Ports]:
    """Run ``bootstrap-grpc serve`` on loopback, filled by the code of SGLang release ``filler``."""
    with tempfile.TemporaryDirectory() as folder:
        port_file, log = Path(folder) / "ports.json", Path(folder) / "log"
        server = subprocess.Popen(
            [
                *(str(Path(sys.executable).with_name("bootstrap-grpc")), "serve"),
                *("--host", "127.0.0.1", "--port", "0", "--http-port", "0"),
                *("--port-file", str(port_file)),
            ],
            stdout=subprocess.DEVNULL,
            stderr=log.open("w"),
        )
        try:
            deadline = time.monotonic() + _START_TIMEOUT
            while not port_file.exists():
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"bootstrap-grpc serve did not start: {log.read_text()}")
                time.sleep(0.02)
            written = json.loads(port_file.read_text(encoding="utf-8"))
            ports = Ports(written["http"], written["grpc"])
            fill(install_release(filler), ports)
            yield ports
        finally:
            server.terminate()
            server.wait()


def fill(root: Path, ports: Ports, prefix: Sequence[str] = ()) -> None:
    """Register ``SIZES`` ranks and the DP ranks of ``ROOMS`` from the server's own host."""
    address = f"127.0.0.1:{ports.http}"
    template = PrefillRank(sizes=SIZES)
    tp, _, dp, _ = SIZES
    with SglangPeer(root, prefix=prefix) as prefill:
        for dp_rank, tp_rank in product(range(dp), range(tp)):
            rank = replace(template, ranks=(tp_rank, 0, dp_rank, 0))
            _must_succeed(prefill.register(address, rank).log)
        for room in ROOMS:
            _must_succeed(prefill.register_dp_rank(address, room, room % DP_RANKS).log)


def _must_succeed(log: Sequence[str]) -> None:
    if log:
        raise RuntimeError(f"the server could not be filled: {'; '.join(log)}")
