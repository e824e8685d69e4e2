"""How long an event loop holds up others."""

from __future__ import annotations

import asyncio
import time

__all__ = ["StallWatch"]

TICK = 0.001
"""Seconds between two looks."""


class StallWatch:
    """A task that wants its turn every millisecond and notes the worst delay. In one loop."""

    def __init__(self) -> None:
        self._worst = self._worst_cpu = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Watch the running loop. Idempotent."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def take(self) -> tuple[float, float]:
        """Since the last call, in milliseconds: the worst delay, and the most CPU in one.

        A delay with little CPU in it is another process's turn on the core, not the loop's work.
        """
        worst, self._worst = self._worst, 0.0
        worst_cpu, self._worst_cpu = self._worst_cpu, 0.0
        return round(worst * 1000, 2), round(worst_cpu * 1000, 2)

    async def _run(self) -> None:
        while True:
            before, before_cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(TICK)
            self._worst = max(self._worst, time.perf_counter() - before - TICK)
            self._worst_cpu = max(self._worst_cpu, time.thread_time() - before_cpu)
