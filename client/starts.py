"""Starts streams no faster than gRPC ends them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

__all__ = ["PacedStarts", "Startable"]

_TICK = 0.001
"""Seconds by which a timer may be early."""


class Startable(Protocol):
    """What is started: a stream of ``client.background``."""

    is_over: bool

    def start(self) -> None: ...


class PacedStarts:
    """Starts what it is given in order: at once, up to a burst, then at a steady rate.

    A bad router may name addresses faster than gRPC clears away their channels, which it does on
    threads that it adds for the purpose: on a loaded machine 50 KB for each address, and up to a
    thread for 200 of them (measured). Paced, most such addresses are given up before they are
    dialled, and what is over by then costs nothing. Belongs to one event loop.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, burst: int = 768, rate: float = 300.0
    ) -> None:
        """``burst`` starts at once, then ``rate`` a second. An address has up to 3 streams."""
        self._loop = loop
        self._interval = 1 / rate
        self._ahead = burst / rate  # seconds
        self._spent_until = loop.time()  # ahead of the clock by an interval for each start
        self._waiting: deque[Startable] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def start(self, stream: Startable) -> None:
        """Start ``stream`` once it is its turn, unless it is over by then."""
        self._waiting.append(stream)
        if self._timer is None:
            self._start_allowed()

    def clear(self) -> None:
        """Forget what waits."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_allowed(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._waiting:
            if not self._waiting[0].is_over:
                spent_until = max(self._spent_until, now) + self._interval
                allowed_at = spent_until - self._ahead
                if allowed_at > now + _TICK:
                    self._timer = self._loop.call_at(allowed_at, self._start_allowed)
                    return
                self._spent_until = spent_until
                self._waiting[0].start()
            self._waiting.popleft()
