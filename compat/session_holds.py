"""The ranks that this process registered through a session, each held for as long as it lives."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import requests

from bootstrap_grpc.client.backoff import LogBudget
from bootstrap_grpc.client.errors import NoContact
from bootstrap_grpc.client.hold import RankHold
from bootstrap_grpc.client.sync import BootstrapClient
from bootstrap_grpc.client.topology_cache import TopologyCache
from bootstrap_grpc.compat.dialects.table import dialect_of_registration
from bootstrap_grpc.compat.replies import OK, Reply, refusal
from bootstrap_grpc.compat.session_calls import Call, UrlParts, timeout_seconds
from bootstrap_grpc.compat.session_peers import Greeting
from bootstrap_grpc.protos.errors import BootstrapError
from bootstrap_grpc.protos.model import RankKey, Registration

if TYPE_CHECKING:
    from bootstrap_grpc.compat.session_hub import OverHttp

__all__ = ["Registrations"]

_log = logging.getLogger("bootstrap_grpc.session")

_CONNECT = 2.0
"""Most seconds that a PUT waits for a gRPC port that HTTP has told of, before it goes by HTTP."""

_FIRST_DELAY, _MOST_DELAY = 0.25, 5.0

_Learn = Callable[[UrlParts, requests.Response], Greeting]
_Find = Callable[[UrlParts], tuple[str, TopologyCache | None]]


@dataclass(slots=True, eq=False)
class _Rank:
    """One registration as this process wants it to be."""

    call: Call
    registration: Registration
    hold: RankHold | None = None
    target: str = ""
    over_http: bool = False
    """Whether the server that answers HTTP now took it over HTTP."""
    greeted: bool = False
    """Whether the server was found to speak gRPC, and was given one turn to be reached."""
    try_at: float = 0.0
    delay: float = 0.0

    @property
    def is_settled(self) -> bool:
        """Whether nothing is to be done: held, or refused for good."""
        hold = self.hold
        return hold is not None and (hold.registered is not None or hold.is_over)


class Registrations:
    """Ranks by address and key. Thread-safe."""

    def __init__(self, learn: _Learn, find: _Find, look_after: Callable[[], None]) -> None:
        self._learn = learn
        self._find = find
        self._look_after = look_after
        self._lock = threading.RLock()
        self._ranks: dict[tuple[str, RankKey], _Rank] = {}
        self._clients: dict[str, BootstrapClient] = {}
        self._system_dp: set[tuple[int, int]] = set()
        self._told = False
        self._budget = LogBudget(time.monotonic)

    def __len__(self) -> int:
        """Ranks that this process wants registered."""
        return len(self._ranks)

    @property
    def held(self) -> int:
        """Ranks that are held over gRPC now."""
        return sum(
            rank.hold is not None and rank.hold.registered is not None
            for rank in tuple(self._ranks.values())
        )

    def put(self, call: Call, over_http: OverHttp) -> Reply | requests.Response:
        """Answer ``PUT /route``. One that reaches nobody raises, and is tried on in the background.

        The server is found by HTTP first: it may be another one than the last time.
        """
        registration = _registration_of(call.json)
        if registration is None:
            response = over_http("PUT", call.url, timeout=call.timeout, json=call.json)
            self._learn(call.parts, response)
            return response
        self._note_system_dp(call.json)
        deadline = time.monotonic() + timeout_seconds(call.timeout, 30.0)
        rank = self._want(call, registration)
        try:
            target, cache = self._find(call.parts)
            if cache is None:
                probe = over_http("GET", f"{call.base}/health", timeout=call.timeout, keep=False)
                if self._learn(call.parts, probe):
                    target, cache = self._connect(call.parts, deadline)
            if cache is not None:
                try:
                    hold = self._hold(rank, target)
                    hold.wait_registered(max(deadline - time.monotonic(), 0.1))
                except BootstrapError as error:
                    return refusal(error)
                except NoContact as error:
                    self._budget.warn(_log, f"{target}: {error.reason}; registering over HTTP")
                else:
                    return OK
            response = over_http("PUT", call.url, timeout=call.timeout, json=call.json)
            self._learn(call.parts, response)
            if response.status_code == 200:
                rank.over_http, rank.delay = True, _MOST_DELAY
                rank.try_at = time.monotonic() + _MOST_DELAY
            return response
        finally:
            self._look_after()

    def corrected(self, call: Call) -> Call:
        """``POST /register_dp_rank`` with the DP rank that keys this process's routes.

        SGLang (0.5.23 and before) registers rooms with ``attn_dp_rank``, which is 0 in every
        plain DP replica, while its routes are keyed by ``system_dp_rank``: requests on replica 1
        wait for ever (issue 5). The POST does not tell the replica; the PUT of the same process
        does.
        """
        body = call.json
        if len(self._system_dp) != 1 or not isinstance(body, dict):
            return call
        size, rank = next(iter(self._system_dp))
        given = cast("dict[str, object]", body)
        if size == 1 or "dp_rank" not in given or given["dp_rank"] == rank:
            return call
        if not self._told:
            self._told = True
            _log.info("rooms of this DP replica are registered with DP rank %d", rank)
        return replace(call, json={**given, "dp_rank": rank})

    def look_after(self, over_http: OverHttp) -> float | None:
        """Register what is not registered; seconds until the next look, ``None`` for never."""
        with self._lock:
            ranks = tuple(self._ranks.values())
        wait: float | None = None
        for rank in ranks:
            if rank.is_settled:
                rank.over_http = rank.greeted = False
                rank.delay = 0.0
                wait = min(wait or 1.0, 1.0)
                continue
            wait = min(wait or 1.0, 1.0 if rank.over_http else _FIRST_DELAY)
            target, cache = self._find(rank.call.parts)
            if cache is not None:
                self._hold(rank, target)
            elif time.monotonic() >= rank.try_at:
                rank.delay = min(max(2 * rank.delay, _FIRST_DELAY), _MOST_DELAY)
                rank.try_at = time.monotonic() + rank.delay
                self._ask(rank, over_http)
        return wait

    def _ask(self, rank: _Rank, over_http: OverHttp) -> None:
        """Look by HTTP who answers; register over HTTP with a server that gRPC does not reach."""
        try:
            found = self._learn(
                rank.call.parts, over_http("GET", f"{rank.call.base}/health", timeout=(1, 2))
            )
            if found and not rank.greeted:
                rank.greeted, rank.delay = True, 0.0  # it is being connected to
                return
            if not rank.over_http and self._is_wanted(rank):
                response = over_http("PUT", rank.call.url, timeout=5, json=rank.call.json)
                rank.over_http = response.status_code == 200
                _log.info(
                    "rank %s: registered over HTTP with status %d",
                    rank.registration.key,
                    response.status_code,
                )
        except requests.RequestException as error:
            rank.over_http = rank.greeted = False
            self._budget.warn(_log, f"rank {rank.registration.key}: {error}; trying again")

    def end(self) -> None:
        """End every hold, which deregisters the ranks, and want none any more."""
        with self._lock:
            ranks, self._ranks = tuple(self._ranks.values()), {}
            self._system_dp.clear()
        for rank in ranks:
            if rank.hold is not None:
                rank.hold.close()

    def close(self) -> None:
        """End every hold and their connections."""
        self.end()
        with self._lock:
            clients, self._clients = tuple(self._clients.values()), {}
        for client in clients:
            client.close()

    def _want(self, call: Call, registration: Registration) -> _Rank:
        key = (call.parts.address, registration.key)
        with self._lock:
            old = self._ranks.get(key)
            if old is not None and old.registration == registration and not _is_over(old):
                return old
            rank = self._ranks[key] = _Rank(call, registration)
        if old is not None and old.hold is not None:
            old.hold.close()  # first: it would deregister the new one, where both name one port
        return rank

    def _is_wanted(self, rank: _Rank) -> bool:
        return self._ranks.get((rank.call.parts.address, rank.registration.key)) is rank

    def _hold(self, rank: _Rank, target: str) -> RankHold:
        """The hold of ``rank``, opened where there is none; with another service, a new one."""
        with self._lock:
            hold = rank.hold
            if hold is not None and rank.target == target:
                return hold
            if hold is not None:
                threading.Thread(target=hold.close, name="bootstrap-hold-end", daemon=True).start()
            client = self._clients.get(target)
            if client is None:
                client = self._clients[target] = BootstrapClient(target)
            rank.hold, rank.target = client.hold_rank(rank.registration), target
            if not self._is_wanted(rank):
                rank.hold.close()
            return rank.hold

    def _connect(self, parts: UrlParts, deadline: float) -> tuple[str, TopologyCache | None]:
        deadline = min(deadline, time.monotonic() + _CONNECT)
        while True:
            target, cache = self._find(parts)
            if cache is not None or time.monotonic() >= deadline:
                return target, cache
            time.sleep(0.01)  # start-up code, once for each process; there is nothing to wait on

    def _note_system_dp(self, body: Any) -> None:
        size, rank = body.get("system_dp_size"), body.get("system_dp_rank")
        if type(size) is int and type(rank) is int:
            with self._lock:
                self._system_dp.add((size, rank))


def _is_over(rank: _Rank) -> bool:
    return rank.hold is not None and rank.hold.is_over


def _registration_of(body: Any) -> Registration | None:
    """The registration in ``body``; ``None`` for what the server is left to judge."""
    if not isinstance(body, dict):
        return None
    data = cast("dict[str, object]", body)
    dialect = dialect_of_registration(data)
    if dialect.name != "E":
        return None
    try:
        return dialect.parse_registration(data)
    except BootstrapError:
        return None
