"""Which release's decode reads which release's prefill: one cell for every pair."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.sglang_members import Member
from support.sglang_peer import SglangPeer, Sizes
from support.sglang_process import ChildError
from support.sglang_release import install_release
from support.sglang_roles import PrefillRank
from support.sglang_servers import HttpServer, key_of, ranks_of, run_service, run_sglang_server

__all__ = ["ROOMS", "SIZES", "Cell", "Peers", "served_by_sglang", "served_by_us"]

SIZES: Sizes = (2, 1, 2, 1)
"""TP 2, DP 2: four ranks, which every dialect can name."""

ROOMS = {101: 1, 102: 0, 2**63 - 1: 1}
"""Rooms and their DP ranks."""

_UNKNOWN_ROOM = 999


@dataclass(frozen=True, slots=True)
class Cell:
    """What a decode could read. ``None`` where its release has no such call."""

    topology: bool | None
    routes: bool | None
    dp_ranks: bool | None
    log: tuple[str, ...] = field(default=(), compare=False)
    """What SGLang logged."""

    @property
    def works(self) -> bool:
        """Whether nothing failed."""
        return False not in (self.topology, self.routes, self.dp_ranks)

    def __str__(self) -> str:
        calls = zip("TRD", (self.topology, self.routes, self.dp_ranks), strict=True)
        return "".join("." if ok is None else letter if ok else "-" for letter, ok in calls)


class Peers:
    """The processes of the releases, each started when it is first needed. A context manager."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._started: dict[tuple[str, str], SglangPeer] = {}

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def of(self, member: Member) -> SglangPeer:
        """Return the process of ``member``.

        :raises ReleaseUnavailableError: the release cannot be had here.
        """
        key = (member.release, member.backend)
        if key not in self._started:
            peer = SglangPeer(self.root(member), backend=member.backend)
            self._started[key] = self._stack.enter_context(peer)
        return self._started[key]

    def root(self, member: Member) -> Path:
        """Return the folder of the release.

        :raises ReleaseUnavailableError: the release cannot be had here.
        """
        return install_release(member.release)

    def read(self, prefill: Member, decode: Member, address: str) -> Cell:
        """Let ``decode`` read the four ranks and the rooms of ``prefill`` at ``address``."""
        peer = self.of(decode)
        log: list[str] = []

        def call(name: str, *arguments: Any) -> Any:
            try:
                reply = getattr(peer, name)(address, *arguments)
            except ChildError as error:  # some releases raise out of these calls
                log.append(str(error).splitlines()[0])
                return None
            log.extend(reply.log)
            return reply.value

        topology = _right_sizes(call("topology", SIZES)) if peer.asks_topology() else None
        routes = all(
            _right_route(call("route", key_of(rank), SIZES), rank) for rank in ranks_of(SIZES)
        )
        dp_ranks = None
        if prefill.family == decode.family == "E":
            answer = call("query_dp_ranks", [*ROOMS, _UNKNOWN_ROOM])
            dp_ranks = answer == {str(room): dp_rank for room, dp_rank in ROOMS.items()}
        return Cell(topology, routes, dp_ranks, tuple(log))

    def register(self, prefill: Member, address: str) -> None:
        """Let ``prefill`` register its four ranks, and the DP ranks of the rooms."""
        peer = self.of(prefill)
        for rank in ranks_of(SIZES):
            reply = peer.register(address, rank)
            if reply.log:
                raise ChildError(f"{prefill} at {address}: {reply.log}")
        if prefill.family == "E":
            for room, dp_rank in ROOMS.items():
                peer.register_dp_rank(address, room, dp_rank)


def _right_sizes(topology: dict[str, Any] | None) -> bool:
    """Whether the answer has the sizes of ``SIZES``, as far as the release reads them."""
    tp, _, dp, pp = SIZES
    right = {"attn_tp_size": tp, "dp_size": dp, "pp_size": pp, "tp_size": tp * dp}
    return bool(topology) and all(
        size == right.get(name, size) for name, size in (topology or {}).items()
    )


def _right_route(route: dict[str, Any] | None, rank: PrefillRank) -> bool:
    found = route or {}
    return (found.get("rank_ip"), found.get("rank_port")) == (rank.rank_ip, rank.rank_port)


@contextmanager
def served_by_us(peers: Peers, prefill: Member, **http: Any) -> Iterator[HttpServer]:
    """This project's service, with the ranks of ``prefill``."""
    if prefill.family == "A":  # its registrations do not say how many ranks there are
        http.setdefault("expected_ranks", len(ranks_of(SIZES)))
    with run_service(**http) as service:
        peers.register(prefill, service.address)
        yield service


@contextmanager
def served_by_sglang(peers: Peers, prefill: Member) -> Iterator[HttpServer]:
    """The own server of ``prefill``'s release, with its ranks."""
    with run_sglang_server(peers.root(prefill), prefill.backend) as server:
        peers.register(prefill, server.address)
        yield server
