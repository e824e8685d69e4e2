"""Brings time to the registry and the rooms, which have no timer of their own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from bootstrap_grpc.server.registry import RankRegistry
from bootstrap_grpc.server.rooms import RoomTable

__all__ = ["Timekeeper"]

PORTION = 500
"""Rooms dropped before other work gets its turn: about half a millisecond."""

IDLE = 1.0
"""Seconds between looks at the rooms, which announce no deadline."""


class Timekeeper:
    """Advances a registry at its deadlines and expires rooms in portions."""

    def __init__(
        self, registry: RankRegistry, rooms: RoomTable, clock: Callable[[], float]
    ) -> None:
        """``clock`` is the one that the registry and the rooms were given."""
        self._registry = registry
        self._rooms = rooms
        self._clock = clock
        self._changed = asyncio.Event()
        self._unsubscribe = registry.subscribe(self._changed.set)

    async def run(self) -> None:
        """Keep time until cancelled."""
        try:
            while True:
                self._changed.clear()
                self._registry.advance()
                if self._rooms.expire(PORTION):
                    await asyncio.sleep(0)
                    continue
                deadline = self._registry.next_deadline()
                wait = IDLE if deadline is None else min(IDLE, deadline - self._clock())
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), max(wait, 0.001))
        finally:
            self._unsubscribe()
