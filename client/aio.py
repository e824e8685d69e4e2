"""``AsyncBootstrapClient``: the client for asyncio hosts."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar
from weakref import WeakSet

import grpc

from bootstrap_grpc.client import calls
from bootstrap_grpc.client.background import InLoop
from bootstrap_grpc.client.backoff import LogBudget
from bootstrap_grpc.client.config import ClientConfig
from bootstrap_grpc.client.connection import Connection
from bootstrap_grpc.client.errors import BootstrapError, from_rpc, typed
from bootstrap_grpc.client.hold_aio import AsyncRankHold
from bootstrap_grpc.client.holding import HoldLogic
from bootstrap_grpc.client.local_answers import LocalAnswers
from bootstrap_grpc.client.streams_aio import (
    AsyncDpRankPublisher,
    AsyncDpRankResolver,
    AsyncTopologyCache,
)
from bootstrap_grpc.client.target import parse_target
from bootstrap_grpc.client.watch import WatchLogic
from bootstrap_grpc.client.watch_aio import watch
from bootstrap_grpc.protos.model import (
    Deregistration,
    RankKey,
    Registered,
    Registration,
    Route,
    Topology,
)

__all__ = ["AsyncBootstrapClient"]

_T = TypeVar("_T")

_LEAVE_TIMEOUT = 1.0  # seconds that closing a hold may wait for its deregistration


class AsyncBootstrapClient:
    """``BootstrapClient`` with awaitable methods: the same meanings and errors.

    Belongs to the event loop that first uses it, and must not be used after a fork. Close it,
    or use it as ``async with``.
    """

    def __init__(self, target: str = "127.0.0.1", config: ClientConfig | None = None) -> None:
        """``target`` as for ``BootstrapClient``. Raises ValueError."""
        self._target = parse_target(target)
        self._config = config or ClientConfig()
        self._owner = uuid.uuid4().hex
        self._connection: Connection | None = None
        self._holds: WeakSet[AsyncRankHold] = WeakSet()
        self._streams: WeakSet[AsyncDpRankResolver | AsyncDpRankPublisher | AsyncTopologyCache]
        self._streams = WeakSet()
        self._cache: AsyncTopologyCache | None = None
        self._log = LogBudget(time.monotonic)
        self._closed = False

    @property
    def target(self) -> str:
        """``host:port`` of the service."""
        return str(self._target)

    @property
    def owner(self) -> str:
        """Who this client registers as where a registration names no owner."""
        return self._owner

    async def register_rank(
        self, registration: Registration, *, timeout: float | None = None
    ) -> Registered:
        """Register one rank; it stays until it is replaced or deregistered."""
        call = calls.register_rank(self._owned(registration))
        return await self._run(call, timeout or self._config.register_timeout)

    async def deregister_rank(
        self, deregistration: Deregistration, *, timeout: float | None = None
    ) -> None:
        """Remove one rank. An empty owner stands for this client's."""
        if not deregistration.owner:
            deregistration = replace(deregistration, owner=self._owner)
        await self._run(calls.deregister_rank(deregistration), timeout)

    def hold_rank(self, registration: Registration) -> AsyncRankHold:
        """Keep one rank registered until the hold is closed. Needs a running loop."""
        try:
            logic = HoldLogic(
                self._owned(registration), self.target, clock=time.monotonic, log=self._log
            )
        except BootstrapError as error:
            raise typed(error) from None

        async def leave(deregistration: Deregistration) -> None:
            await self.deregister_rank(deregistration, timeout=_LEAVE_TIMEOUT)

        hold = AsyncRankHold(logic, self._connected().stub().HoldRank, leave, self.target)
        self._holds.add(hold)
        return hold

    async def get_topology(self, *, timeout: float | None = None) -> Topology:
        """The topology now, with its routes, however complete."""
        return await self._run(calls.get_topology(), timeout)

    async def get_route(self, key: RankKey, *, timeout: float | None = None) -> Route:
        """The address of one rank, or ``NotFound``."""
        return await self._run(calls.get_route(key), timeout)

    def watch_topology(self, *, timeout: float | None = None) -> AsyncGenerator[Topology, None]:
        """Iterate over the states of the topology, for ``timeout`` seconds or for ever.

        Close the generator (``aclose``, or ``contextlib.aclosing``) where the loop is left early.
        """
        logic = WatchLogic(timeout, clock=time.monotonic, log=self._log)
        return watch(logic, self._connected().stub().WatchTopology, self.target)

    async def register_dp_ranks(
        self, dp_ranks: Mapping[int, int], *, timeout: float | None = None
    ) -> None:
        """Store which DP rank took each room. ``timeout`` bounds each message of 65,536 rooms."""
        for call in calls.register_dp_ranks(dp_ranks):
            await self._run(call, timeout)

    async def query_dp_ranks(
        self, rooms: Iterable[int], *, timeout: float | None = None
    ) -> dict[int, int]:
        """The DP rank of each room that is known. ``timeout`` bounds each 65,536 rooms."""
        known: dict[int, int] = {}
        for call in calls.query_dp_ranks(rooms):
            answered: dict[int, int] = await self._run(call, timeout)
            known.update(answered)
        return known

    def resolver(self, *, local_answers: bool = False) -> AsyncDpRankResolver:
        """As ``BootstrapClient.resolver``, in this loop, with awaitable answers."""
        cache = self.topology_cache() if local_answers else None
        resolver = AsyncDpRankResolver(
            self._connected(), None if cache is None else LocalAnswers(cache)
        )
        if cache is not None:
            cache.on_change(lambda _topology: resolver.answer_pending_locally())
        self._streams.add(resolver)
        return resolver

    def publisher(self) -> AsyncDpRankPublisher:
        """As ``BootstrapClient.publisher``, in this loop, with an awaitable ``drain``."""
        publisher = AsyncDpRankPublisher(self._connected())
        self._streams.add(publisher)
        return publisher

    def topology_cache(self) -> AsyncTopologyCache:
        """As ``BootstrapClient.topology_cache``, in this loop, with awaitable waits."""
        if self._cache is None:
            self._cache = AsyncTopologyCache(self._connected())
            self._streams.add(self._cache)
        return self._cache

    async def close(self) -> None:
        """Close the holds (which deregisters their ranks), then the connection. Idempotent."""
        for stream in tuple(self._streams):
            stream.close()
        for hold in tuple(self._holds):
            await hold.close()
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def __aenter__(self) -> AsyncBootstrapClient:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    def _owned(self, registration: Registration) -> Registration:
        return registration if registration.owner else replace(registration, owner=self._owner)

    def _connected(self) -> Connection:
        if self._connection is None:
            if self._closed:
                raise ValueError(f"the client of {self.target} is closed")
            self._connection = Connection(InLoop(), self._target, self._config, self._log)
        return self._connection

    async def _run(self, call: calls.Call[_T], timeout: float | None) -> _T:
        method: Any = getattr(self._connected().stub(), call.method)
        try:
            response = await method(
                call.request,
                timeout=self._config.timeout if timeout is None else timeout,
                wait_for_ready=self._config.wait_for_ready,
            )
        except grpc.RpcError as error:
            raise from_rpc(error, self.target) from None
        return call.result(response)
