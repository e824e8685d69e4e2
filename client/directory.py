"""``PrefillDirectory``: the prefill servers that a scheduler meets, by address."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from bootstrap_grpc.client.config import ClientConfig
from bootstrap_grpc.client.publisher import DpRankPublisher
from bootstrap_grpc.client.resolver import DpRankResolver
from bootstrap_grpc.client.sync import BootstrapClient
from bootstrap_grpc.client.target import Target, parse_target
from bootstrap_grpc.client.topology_cache import TopologyCache
from bootstrap_grpc.protos.model import Topology

__all__ = ["PrefillDirectory"]

_log = logging.getLogger("bootstrap_grpc.client")


@dataclass(slots=True, eq=False)
class _Prefill:
    client: BootstrapClient
    cache: TopologyCache
    used_at: float
    made_at: float
    resolver: DpRankResolver | None = None
    publisher: DpRankPublisher | None = None
    server_id: str = ""


class PrefillDirectory:
    """Resolvers, publishers and topology caches by address, made at the first use.

    Addresses come with requests, so they are not trusted to be few: at most ``limit`` are kept,
    those used last, and one that was not used or was out of reach for ``idle`` seconds goes with
    all it held. Ask for the object each time rather than keep it: it is closed when its address
    goes. Addresses that turn out to be one service share a connection. Some 250 addresses are
    dialled at once, further ones 100 to 300 a second. Thread-safe; nothing waits or does I/O.
    """

    def __init__(
        self,
        config: ClientConfig | None = None,
        *,
        limit: int = 1_024,
        idle: float = 600.0,
        local_answers: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``local_answers`` as for ``BootstrapClient.resolver``; ``idle`` in seconds."""
        if limit < 1:
            raise ValueError(f"limit is {limit}, must be at least 1 address")
        if not idle > 0:
            raise ValueError(f"idle is {idle}, must be more than 0 seconds")
        self._config = config
        self._limit = limit
        self._idle = idle
        self._local_answers = local_answers
        self._clock = clock
        self._lock = threading.Lock()
        self._prefills: OrderedDict[Target, _Prefill] = OrderedDict()
        self._by_server: dict[str, Target] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself keeps no reference
        self._pid = os.getpid()

    def __len__(self) -> int:
        """Addresses kept."""
        return len(self._prefills)

    def resolver(self, address: str) -> DpRankResolver:
        """The resolver of one prefill server. Raises ValueError for what is no address."""
        with self._lock:
            prefill = self._prefill(address)
            if prefill.resolver is None:
                prefill.resolver = prefill.client.resolver(local_answers=self._local_answers)
            return prefill.resolver

    def publisher(self, address: str) -> DpRankPublisher:
        """The publisher to one prefill server. Raises ValueError for what is no address."""
        with self._lock:
            prefill = self._prefill(address)
            if prefill.publisher is None:
                prefill.publisher = prefill.client.publisher()
            return prefill.publisher

    def topology_cache(self, address: str) -> TopologyCache:
        """The topology of one prefill server. Raises ValueError for what is no address."""
        with self._lock:
            return self._prefill(address).cache

    def close(self) -> None:
        """Drop every address. Idempotent."""
        with self._lock:
            self._follow_fork()
            while self._prefills:
                self._drop(next(iter(self._prefills)))

    def __enter__(self) -> PrefillDirectory:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _prefill(self, address: str) -> _Prefill:
        target = parse_target(address)
        self._follow_fork()
        now = self._clock()
        self._drop_idle(now)
        prefill = self._prefills.get(target)
        if prefill is None:
            client = BootstrapClient(str(target), self._config)
            prefill = _Prefill(client, client.topology_cache(), now, now)
            prefill.cache.on_change(lambda topology: self._identify(target, topology))
            prefill.cache.on_lost(lambda _error: self._forget(target))
            self._prefills[target] = prefill
            if len(self._prefills) > self._limit:
                self._drop(next(iter(self._prefills)))
        prefill.used_at = now
        self._prefills.move_to_end(target)
        return prefill

    def _drop_idle(self, now: float) -> None:
        # In the order of their use, so the first that was used lately ends the search; one that
        # is used all the time and out of reach is found when it is asked for.
        while self._prefills:
            target, prefill = next(iter(self._prefills.items()))
            out_of_reach = min(prefill.cache.age(), now - prefill.made_at) >= self._idle
            if now - prefill.used_at < self._idle and not out_of_reach:
                return
            self._drop(target)

    def _drop(self, target: Target) -> None:
        prefill = self._prefills.pop(target)
        if self._by_server.get(prefill.server_id) == target:
            del self._by_server[prefill.server_id]
        prefill.client.close()

    def _follow_fork(self) -> None:
        """In a forked child: the parent's addresses are not the child's."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._prefills.clear()
            self._by_server.clear()

    # --- in the background's loop ---------------------------------------------------------

    def _identify(self, target: Target, topology: Topology) -> None:
        """The service at ``target`` said who it is: share the connection of its other names."""
        with self._lock:
            prefill = self._prefills.get(target)
            if prefill is None or prefill.server_id == topology.server_id:
                return
            prefill.server_id = topology.server_id
            first = self._by_server.setdefault(topology.server_id, target)
            connection = prefill.client.connection
        if first != target:
            _log.info("%s and %s are one service: they share a connection", target, first)
            self._soon(connection.redial(first))

    def _forget(self, target: Target) -> None:
        """Contact is lost: the next one may be with another service."""
        with self._lock:
            prefill = self._prefills.get(target)
            if prefill is None:
                return
            if self._by_server.get(prefill.server_id) == target:
                del self._by_server[prefill.server_id]
            prefill.server_id = ""
            connection = prefill.client.connection
        if connection.dialled != target:
            self._soon(connection.redial(target))

    def _soon(self, redial: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(redial)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
