"""SGLang's own server and clients, each peer in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from support.sglang_process import ChildError, ChildProcess
from support.sglang_roles import PrefillRank

__all__ = ["Reply", "SglangPeer", "Sizes"]

Sizes = tuple[int, int, int, int]
"""Sizes in the order (tp, cp, dp, pp)."""

_WORKER = Path(__file__).with_name("sglang_worker.py")


@dataclass(frozen=True, slots=True)
class Reply:
    """What a call gave, and what SGLang logged at WARNING or above meanwhile."""

    value: Any
    log: tuple[str, ...]


class SglangPeer:
    """One process with one release. Calls block and run one at a time. Use as context manager.

    :param root: the folder of ``support.sglang_release.install_release``.
    :param backend: drive the classes of this transfer backend, not the common ones.
    :param prefix: a command to run the process under, such as ``ip netns exec NAME``.
    """

    def __init__(self, root: Path, *, backend: str = "", prefix: Sequence[str] = ()) -> None:
        self._child = ChildProcess(_WORKER, [str(root), backend], prefix=prefix)

    def __enter__(self) -> SglangPeer:
        self._child.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._child.close()

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        self._child.kill()

    def serve(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Start SGLang's own server; return its address."""
        return f"{host}:{self._call('serve', host=host, port=port).value}"

    def close_server(self) -> None:
        """Stop the server as SGLang does."""
        self._call("close_server")

    def register(self, address: str, rank: PrefillRank) -> Reply:
        """Register one rank: ``CommonKVManager.register_to_bootstrap``."""
        return self._call("register", address=address, rank=asdict(rank))

    def asks_topology(self) -> bool:
        """Whether the release asks for the topology at all."""
        return bool(self._call("asks_topology").value)

    def topology(self, address: str, sizes: Sizes) -> Reply:
        """Read the topology, ``None`` where that failed: ``try_ensure_parallel_info``."""
        return self._call("topology", address=address, sizes=sizes)

    def route(self, address: str, rank: Sizes, sizes: Sizes = (1, 1, 1, 1)) -> Reply:
        """Read the address of rank (dp, cp, tp, pp): ``_get_bootstrap_info_from_server``.

        :param sizes: the decode engine's, from which old releases work out an engine rank.
        """
        return self._call("route", address=address, rank=rank, sizes=sizes)

    def register_dp_rank(self, address: str, room: int, dp_rank: int) -> Reply:
        """Tell which DP rank took a room: ``_register_prefill_dp_rank``."""
        return self._call("register_dp_rank", address=address, room=room, dp_rank=dp_rank)

    def query_dp_ranks(self, address: str, rooms: Sequence[int]) -> Reply:
        """Ask for DP ranks: ``query_prefill_dp_ranks``."""
        return self._call("query_dp_ranks", address=address, rooms=list(rooms))

    def start_heartbeat(self, address: str, sizes: Sizes, interval: float = 0.1) -> Reply:
        """Start SGLang's heartbeat thread on a server whose topology can be read.

        :param interval: seconds between two heartbeats; SGLang's default is 5.
        """
        return self._call("start_heartbeat", address=address, sizes=sizes, interval=interval)

    def heartbeat(self) -> dict[str, Any]:
        """Return ``beats`` (answered), ``misses`` (in a row) and ``known`` (not given up)."""
        state: dict[str, Any] = self._call("heartbeat").value
        return state

    def stop_heartbeat(self) -> None:
        """Stop the heartbeat thread."""
        self._call("stop_heartbeat")

    def _call(self, name: str, **arguments: Any) -> Reply:
        self._child.send({"call": name, "with": arguments})
        answer = self._child.receive()
        if "error" in answer:
            raise ChildError(f"{name}: {answer['error']}\n{self._child.errors()}")
        return Reply(answer["value"], tuple(answer["log"]))
