"""Servers of SGLang's HTTP protocol, each in a process of its own: this project's and SGLang's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from support.sglang_peer import SglangPeer, Sizes
from support.sglang_process import ChildProcess
from support.sglang_roles import PrefillRank

__all__ = ["HttpServer", "Service", "key_of", "ranks_of", "run_service", "run_sglang_server"]

_SHIM = Path(__file__).with_name("sglang_shim.py")


@dataclass(frozen=True)
class HttpServer:
    """A running server and a way to take it away."""

    address: str
    _process: SglangPeer | ChildProcess

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()


@dataclass(frozen=True)
class Service(HttpServer):
    """This project's service; ``address`` is its HTTP port."""

    grpc: str


@contextmanager
def run_service(**http: Any) -> Iterator[Service]:
    """Run this project's service, new and empty, on free ports.

    :param http: fields of ``HttpConfig`` that are not its defaults; a list for a set.
    """
    with ChildProcess(_SHIM, ["--http", json.dumps(http)]) as child:
        http, grpc = (f"127.0.0.1:{child.ready[port]}" for port in ("http", "grpc"))
        yield Service(http, child, grpc)


@contextmanager
def run_sglang_server(root: Path, backend: str = "") -> Iterator[HttpServer]:
    """Run the server of the release installed in ``root``, new and empty, on a free port."""
    with SglangPeer(root, backend=backend) as peer:
        yield HttpServer(peer.serve(), peer)


def ranks_of(sizes: Sizes) -> list[PrefillRank]:
    """Every rank of a prefill server of these sizes, each at an address of its own."""
    return [
        PrefillRank(sizes=sizes, ranks=(tp, cp, dp, pp), rank_ip=f"10.0.0.{n}", rank_port=40000 + n)
        for n, (tp, cp, dp, pp) in enumerate(product(*map(range, sizes)), start=1)
    ]


def key_of(rank: PrefillRank) -> Sizes:
    """(dp, cp, tp, pp), the order of SGLang's per-rank query."""
    tp, cp, dp, pp = rank.ranks
    return dp, cp, tp, pp
