"""The resolver and the publisher for asyncio hosts: the same, in the host's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from typing import Any

from bootstrap_grpc.client.publisher import DpRankPublisher
from bootstrap_grpc.client.resolver import DpRankResolver

__all__ = ["AsyncDpRankPublisher", "AsyncDpRankResolver"]


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
