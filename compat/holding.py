"""Requests that are held until the prefill server is READY.

The decodes of dialects A and B die of any answer but 200, and wait for one without a time-out
(issue 4). Such a request is held until READY, until its client hangs up, or for ``seconds``. Then
it is redirected to itself: ``requests``, which all of them use, follows 30 redirects before it
calls that an error, so the client asks again and lives, where any other answer ends its scheduler.

A held request costs a future and a timer; nothing else waits for it. One event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from bootstrap_grpc.compat.closing import Connection

__all__ = ["Holds", "Outcome"]


class Outcome(Enum):
    """How a wait ended."""

    READY = auto()
    OVER = auto()
    """Its time has passed, or the service stops."""
    GONE = auto()
    """The client hung up."""
    FULL = auto()
    """Too many wait already: it did not begin."""


@dataclass(eq=False, slots=True)
class _Held:
    is_ready: Callable[[], bool]
    outcome: asyncio.Future[Outcome]

    def end(self, outcome: Outcome) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)


class Holds:
    """The requests that wait, at most ``most`` at a time, each for at most ``seconds``."""

    def __init__(self, *, most: int, seconds: float, may_end: Callable[[], bool]) -> None:
        """``may_end`` says cheaply that no wait can be over: it is asked before any of them."""
        self._may_end = may_end
        self._most = most
        self._seconds = seconds
        self._held: dict[_Held, None] = {}
        self._checking = False
        self._stopped = False

    def __len__(self) -> int:
        return len(self._held)

    async def until(self, is_ready: Callable[[], bool], connection: Connection) -> Outcome:
        """Wait until ``is_ready``, which is asked after each ``check``."""
        if self._stopped:
            return Outcome.OVER
        if len(self._held) >= self._most:
            return Outcome.FULL
        loop = asyncio.get_running_loop()
        held = _Held(is_ready, loop.create_future())
        self._held[held] = None
        connection.on_lost = lambda: held.end(Outcome.GONE)
        timer = loop.call_later(self._seconds, held.end, Outcome.OVER)
        try:
            return await held.outcome
        finally:
            timer.cancel()
            connection.on_lost = None
            del self._held[held]

    def check(self) -> None:
        """Something changed: ask every ``is_ready``, once for all changes of this step."""
        if self._held and not self._checking:
            self._checking = True
            asyncio.get_running_loop().call_soon(self._check)

    def _check(self) -> None:
        self._checking = False
        if not self._may_end():
            return
        for held in self._held:
            if held.is_ready():
                held.end(Outcome.READY)

    def stop(self) -> None:
        """End every wait, and begin no other."""
        self._stopped = True
        for held in self._held:
            held.end(Outcome.OVER)
