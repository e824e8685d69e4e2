"""Topology changes for any number of watchers: one snapshot, serialised once, for all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, replace

from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos.convert import topology_to_proto
from bootstrap_grpc.protos.errors import BootstrapError
from bootstrap_grpc.protos.model import Topology, TopologyState
from bootstrap_grpc.server.registry import RankRegistry

__all__ = ["TopologyFeed"]

COALESCE = 0.05
"""Seconds for which changes gather before they go out as one state."""

UNREADY_INTERVAL = 1.0
"""Least seconds between two states that are not READY: a start of 4,096 ranks is no flood."""


@dataclass(frozen=True, slots=True)
class _Published:
    message: bytes
    version: int
    ready: bool


class TopologyFeed:
    """Follows a registry and serves ``WatchTopology``. Belongs to one event loop.

    ``run`` must run as a task while watchers are served.
    """

    def __init__(self, registry: RankRegistry) -> None:
        self._registry = registry
        self._changed = asyncio.Event()
        self._latest: _Published | None = None
        self._whole: tuple[Topology, bytes] | None = None
        self._next: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closed: BootstrapError | None = None
        self._unsubscribe = registry.subscribe(self._changed.set)

    def whole(self) -> bytes:
        """The state now with every route, as serialised ``GetTopologyResponse``.

        Made once for each change: 4,096 routes would hold up the loop at every call.
        """
        topology = self._registry.topology()  # the same object until something changes
        if self._whole is None or self._whole[0] is not topology:
            message = pb.GetTopologyResponse(topology=topology_to_proto(topology))
            self._whole = topology, message.SerializeToString()
        return self._whole[1]

    async def run(self) -> None:
        """Publish every change, coalesced; never returns."""
        clock = asyncio.get_running_loop().time
        unready_at = -UNREADY_INTERVAL
        while True:
            await self._changed.wait()
            await asyncio.sleep(COALESCE)
            self._changed.clear()
            while not self._is_ready() and (wait := unready_at + UNREADY_INTERVAL - clock()) > 0:
                await _wait(self._changed.wait(), wait)
                self._changed.clear()
            if not self._current().ready:
                unready_at = clock()
            self._wake()

    async def watch(self) -> AsyncIterator[bytes]:
        """The state now and after every change, as serialised ``WatchTopologyResponse``.

        Ends by raising what ``close`` was given.
        """
        clock = asyncio.get_running_loop().time
        version, unready_at = -1, -UNREADY_INTERVAL
        while True:
            if self._closed is not None:
                raise self._closed
            latest = self._current()
            wait: float | None = None
            if latest.version != version:
                wait = 0.0 if latest.ready else unready_at + UNREADY_INTERVAL - clock()
                if wait <= 0:
                    yield latest.message
                    version = latest.version
                    unready_at = unready_at if latest.ready else clock()
                    continue
            await _wait(asyncio.shield(self._next), wait)

    def close(self, reason: BootstrapError) -> None:
        """End every watch, now and later, with ``reason``."""
        self._unsubscribe()
        self._closed = reason
        self._wake()

    def _wake(self) -> None:
        done, self._next = self._next, asyncio.get_running_loop().create_future()
        done.set_result(None)

    def _is_ready(self) -> bool:
        return self._registry.state is TopologyState.READY

    def _current(self) -> _Published:
        topology = self._registry.topology()
        if self._latest is None or self._latest.version != topology.version:
            self._latest = _publish(topology)
        return self._latest


def _publish(topology: Topology) -> _Published:
    ready = topology.state is TopologyState.READY
    shown = topology if ready else replace(topology, routes=())
    message = pb.WatchTopologyResponse(topology=topology_to_proto(shown))
    return _Published(message.SerializeToString(), topology.version, ready)


async def _wait(what: Awaitable[object], timeout: float | None) -> None:
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(what, timeout)
