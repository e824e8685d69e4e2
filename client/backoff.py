"""When to try again, and how often to say so: a clock, a die and a log."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

__all__ = ["Backoff", "LogBudget"]


class Backoff:
    """Full jitter: each delay is drawn from 0 to a bound that doubles from 0.1 s to 2 s."""

    def __init__(self, *, first: float = 0.1, most: float = 2.0) -> None:
        self._first = first
        self._most = most
        self._bound = first

    def next_delay(self) -> float:
        """Seconds to wait before the next attempt."""
        delay = random.uniform(0, self._bound)  # noqa: S311 - spreads load, guards no secret
        self._bound = min(self._bound * 2, self._most)
        return delay

    def reset(self) -> None:
        """The last attempt succeeded."""
        self._bound = self._first


class LogBudget:
    """Lets one line through every ``interval`` seconds and counts what it kept back.

    Shared by all that talks to one address. Thread-safe.
    """

    def __init__(self, clock: Callable[[], float], interval: float = 10.0) -> None:
        self._clock = clock
        self._interval = interval
        self._next = -float("inf")
        self._kept_back = 0
        self._lock = threading.Lock()

    def warn(self, log: logging.Logger, text: str) -> None:
        """Log ``text`` at WARNING with the count of lines kept back, or keep it back too."""
        with self._lock:
            now = self._clock()
            if now < self._next:
                self._kept_back += 1
                return
            self._next = now + self._interval
            kept_back, self._kept_back = self._kept_back, 0
        more = f" ({kept_back} more since the last line)" if kept_back else ""
        log.warning("%s%s", text, more)
