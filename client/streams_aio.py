"""The resolver, the publisher and the topology cache for asyncio hosts: in the host's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

from bootstrap_grpc.client.connection import Connection
from bootstrap_grpc.client.publisher import DpRankPublisher
from bootstrap_grpc.client.resolver import DpRankResolver
from bootstrap_grpc.client.topology_cache import KnownTopology
from bootstrap_grpc.protos.model import Topology

__all__ = ["AsyncDpRankPublisher", "AsyncDpRankResolver", "AsyncTopologyCache"]


class AsyncDpRankResolver(DpRankResolver):
    """``DpRankResolver`` whose caller may also await answers. Belongs to its event loop."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._answered = asyncio.Event()

    async def wait(self, timeout: float | None = None) -> dict[int, int]:
        """The next answers, as ``poll`` gives them; empty where none came in ``timeout`` s.

        For one task at a time.
        """
        if not (known := self.poll()):
            self._answered.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._answered.wait(), timeout)
            known = self.poll()
        return known

    async def resolve(self, rooms: Iterable[int], timeout: float = 360.0) -> dict[int, int]:
        """Submit ``rooms`` and wait for them; those unknown after ``timeout`` s are left out.

        Gives out what others have submitted, too: use it with a resolver of its own.
        """
        rooms = list(rooms)
        self.submit(rooms, timeout)
        known: dict[int, int] = {}
        deadline = time.monotonic() + timeout
        while len(self) and (left := deadline - time.monotonic()) > 0:
            known.update(await self.wait(left))
        self.discard(rooms)
        return known

    def _deliver(self, answers: dict[int, int]) -> None:
        super()._deliver(answers)
        self._answered.set()


class AsyncDpRankPublisher(DpRankPublisher):
    """``DpRankPublisher`` in the host's own loop: ``drain`` awaits what ``flush`` blocks for."""

    async def drain(self, timeout: float | None = 10.0) -> bool:
        """Wait until all is acknowledged; false where ``timeout`` seconds are over."""
        done = asyncio.Event()
        self._flush(done.set)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(done.wait(), timeout)
        return done.is_set()

    def flush(self, timeout: float | None = 10.0) -> bool:
        """Not for an event loop, which it would block: raises ``TypeError``. See ``drain``."""
        del timeout
        raise TypeError("flush() would block the event loop; await drain() instead")


class AsyncTopologyCache(KnownTopology):
    """``TopologyCache`` whose waits are awaited. Belongs to its event loop, as its callbacks do."""

    def __init__(self, connection: Connection) -> None:
        self._news = asyncio.Event()
        super().__init__(connection)

    async def wait(self, timeout: float | None = 10.0) -> Topology:
        """The newest state, waiting for the first. Raises ``NoContact``."""
        return self._first(await self._wait_for(self.current, timeout))

    async def wait_ready(self, timeout: float | None = 10.0) -> Topology | None:
        """What ``ready`` gives, waiting for it; ``None`` where ``timeout`` seconds are over."""
        return await self._wait_for(self.ready, timeout)

    async def __aenter__(self) -> AsyncTopologyCache:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.close()

    async def _wait_for(
        self, ask: Callable[[], Topology | None], timeout: float | None
    ) -> Topology | None:
        async def asked() -> Topology:
            while (found := ask()) is None:
                await self._news.wait()
            return found

        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(asked(), timeout)
        return ask()

    def _wake(self) -> None:
        # Another event for whoever waits next: this one stays set for all who wait now.
        news, self._news = self._news, asyncio.Event()
        news.set()
