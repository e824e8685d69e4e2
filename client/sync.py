"""``BootstrapClient``: the blocking client."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar
from weakref import WeakSet

import grpc

from bootstrap_grpc.client import calls
from bootstrap_grpc.client.background import background
from bootstrap_grpc.client.backoff import LogBudget
from bootstrap_grpc.client.channels import Lease, check_fork, lease
from bootstrap_grpc.client.config import ClientConfig
from bootstrap_grpc.client.connection import Connection
from bootstrap_grpc.client.errors import BootstrapError, from_rpc, typed
from bootstrap_grpc.client.hold import RankHold
from bootstrap_grpc.client.holding import HoldLogic
from bootstrap_grpc.client.local_answers import LocalAnswers
from bootstrap_grpc.client.publisher import DpRankPublisher
from bootstrap_grpc.client.resolver import DpRankResolver
from bootstrap_grpc.client.target import parse_target
from bootstrap_grpc.client.topology_cache import TopologyCache
from bootstrap_grpc.client.watch import TopologyWatch, WatchLogic
from bootstrap_grpc.protos import bootstrap_pb2_grpc as rpc
from bootstrap_grpc.protos.model import (
    Deregistration,
    RankKey,
    Registered,
    Registration,
    Route,
    Topology,
)

__all__ = ["BootstrapClient"]

_T = TypeVar("_T")

_Open = RankHold | TopologyWatch | DpRankResolver | DpRankPublisher | TopologyCache

_LEAVE_TIMEOUT = 1.0  # seconds that closing a hold may wait for its deregistration


class BootstrapClient:
    """Talks to the bootstrap service of one prefill server, over one shared connection.

    Lazy: the first call connects. Thread-safe. Usable after a fork, where it connects anew; a
    hold stays with the process that made it. A fork pauses this
    process's resolvers, publishers and caches for some milliseconds. Every method raises

    * ``NoContact`` where the service does not answer,
    * a subclass of ``BootstrapError`` where it refuses: see ``bootstrap_grpc.client.errors``.
    """

    def __init__(self, target: str = "127.0.0.1", config: ClientConfig | None = None) -> None:
        """``target`` is ``host``, ``host:port``, ``[v6]:port`` or ``v6``; port 18998 if none.

        Raises
        ------
        ValueError
            ``target`` is none of these.
        """
        self._target = parse_target(target)
        self._config = config or ClientConfig()
        self._owner = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._lease: Lease | None = None
        self._stub: rpc.BootstrapServiceStub | None = None
        self._open: WeakSet[_Open] = WeakSet()
        self._cache: TopologyCache | None = None
        self._connection: Connection | None = None
        self._pid = os.getpid()
        self._log = LogBudget(time.monotonic)
        self._closed = False

    @property
    def target(self) -> str:
        """``host:port`` of the service."""
        return str(self._target)

    @property
    def owner(self) -> str:
        """Who this client registers as where a registration names no owner.

        Random for each client, and another one in a forked child.
        """
        self._follow_fork()
        return self._owner

    # --- ranks ------------------------------------------------------------------------

    def register_rank(
        self, registration: Registration, *, timeout: float | None = None
    ) -> Registered:
        """Register one rank; it stays until it is replaced or deregistered."""
        call = calls.register_rank(self._owned(registration))
        return self._run(call, timeout or self._config.register_timeout)

    def deregister_rank(
        self, deregistration: Deregistration, *, timeout: float | None = None
    ) -> None:
        """Remove one rank. Key, address and owner must be those registered, or ``Refused``.

        An empty owner stands for this client's, as it does in ``register_rank``.
        """
        if not deregistration.owner:
            deregistration = replace(deregistration, owner=self.owner)
        self._run(calls.deregister_rank(deregistration), timeout)

    def hold_rank(self, registration: Registration) -> RankHold:
        """Keep one rank registered for as long as this process lives, or until it is closed.

        Returns at once; a thread registers, and again after each restart of the service. Use
        ``RankHold.wait_registered`` to wait for it.
        """
        try:
            logic = HoldLogic(
                self._owned(registration), self.target, clock=time.monotonic, log=self._log
            )
        except BootstrapError as error:
            raise typed(error) from None

        def leave(deregistration: Deregistration) -> None:
            self.deregister_rank(deregistration, timeout=_LEAVE_TIMEOUT)

        hold = RankHold(logic, self._connected().HoldRank, leave, self.target)
        self._open.add(hold)
        return hold

    # --- topology ---------------------------------------------------------------------

    def get_topology(self, *, timeout: float | None = None) -> Topology:
        """The topology now, with its routes, however complete."""
        return self._run(calls.get_topology(), timeout)

    def get_route(self, key: RankKey, *, timeout: float | None = None) -> Route:
        """The address of one rank, or ``NotFound``."""
        return self._run(calls.get_route(key), timeout)

    def watch_topology(self, *, timeout: float | None = None) -> TopologyWatch:
        """Iterate over the states of the topology, for ``timeout`` seconds or for ever."""
        logic = WatchLogic(timeout, clock=time.monotonic, log=self._log)
        watch = TopologyWatch(logic, self._connected().WatchTopology, self.target)
        self._open.add(watch)
        return watch

    # --- rooms ------------------------------------------------------------------------

    def register_dp_ranks(
        self, dp_ranks: Mapping[int, int], *, timeout: float | None = None
    ) -> None:
        """Store which DP rank took each room. ``timeout`` bounds each message of 65,536 rooms."""
        for call in calls.register_dp_ranks(dp_ranks):
            self._run(call, timeout)

    def query_dp_ranks(
        self, rooms: Iterable[int], *, timeout: float | None = None
    ) -> dict[int, int]:
        """The DP rank of each room that is known. ``timeout`` bounds each 65,536 rooms."""
        known: dict[int, int] = {}
        for call in calls.query_dp_ranks(rooms):
            answered: dict[int, int] = self._run(call, timeout)
            known.update(answered)
        return known

    # --- without waiting: in the background of this process -----------------------------

    def resolver(self, *, local_answers: bool = False) -> DpRankResolver:
        """Learn the DP rank of rooms from memory: ``submit`` them, ``poll`` for what is known.

        With ``local_answers`` rooms are answered without a message where the topology says how:
        0 where ``dp_size`` is 1, ``room % dp_size`` where it follows the room. Leave it off
        where the engine may be told to ask in spite of that (SGLang's
        ``SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK``).
        """
        cache = self.topology_cache() if local_answers else None
        resolver = DpRankResolver(self._streams(), None if cache is None else LocalAnswers(cache))
        if cache is not None:
            cache.on_change(lambda _topology: resolver.answer_pending_locally())
        self._open.add(resolver)
        return resolver

    def publisher(self) -> DpRankPublisher:
        """Tell which DP rank took a room, at once and for good: see ``DpRankPublisher``."""
        publisher = DpRankPublisher(self._streams())
        self._open.add(publisher)
        return publisher

    def topology_cache(self) -> TopologyCache:
        """The topology from memory, kept fresh; one for this client, made at the first call."""
        connection = self._streams()
        with self._lock:
            if self._cache is None:
                self._cache = TopologyCache(connection)
                self._open.add(self._cache)
            return self._cache

    @property
    def connection(self) -> Connection:
        """What this client's streams go over."""
        return self._streams()

    # --- lifetime ---------------------------------------------------------------------

    def close(self) -> None:
        """Close the holds (which deregisters their ranks) and the watches, then the connection.

        Idempotent.
        """
        self._follow_fork()
        for opened in tuple(self._open):
            opened.close()
        with self._lock:
            self._closed = True
            held, self._lease, self._stub = self._lease, None, None
            connection, self._connection = self._connection, None
        if held is not None:
            held.close()
        if connection is not None:
            asyncio.run_coroutine_threadsafe(connection.close(), background().loop)

    def __enter__(self) -> BootstrapClient:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _owned(self, registration: Registration) -> Registration:
        return registration if registration.owner else replace(registration, owner=self.owner)

    def _connected(self) -> rpc.BootstrapServiceStub:
        stub = self._stub
        if stub is not None and self._pid == os.getpid():
            return stub
        self._follow_fork()
        with self._lock:
            if self._closed:
                raise ValueError(f"the client of {self.target} is closed")
            if self._stub is None:
                self._lease = lease(self._target.grpc_target, self._config)
                self._stub = rpc.BootstrapServiceStub(self._lease.channel)
            return self._stub

    def _follow_fork(self) -> None:
        """In a forked child: its own connection and identity, and a lock that nobody holds."""
        if self._pid != os.getpid():
            self._pid, self._owner, self._lock = os.getpid(), uuid.uuid4().hex, threading.Lock()
            self._lease = self._stub = None
            self._open, self._cache, self._connection = WeakSet(), None, None

    def _streams(self) -> Connection:
        # A closed client or a fork is an error here, not silence later. The channel of the unary
        # calls is not made for it: a client may have nothing but streams.
        check_fork()
        self._follow_fork()
        with self._lock:
            if self._closed:
                raise ValueError(f"the client of {self.target} is closed")
            if self._connection is None:
                self._connection = Connection(background(), self._target, self._config, self._log)
            return self._connection

    def _run(self, call: calls.Call[_T], timeout: float | None) -> _T:
        method: Any = getattr(self._connected(), call.method)
        try:
            response = method(
                call.request,
                timeout=self._config.timeout if timeout is None else timeout,
                wait_for_ready=self._config.wait_for_ready,
            )
        except grpc.RpcError as error:
            raise from_rpc(error, self.target) from None
        return call.result(response)
