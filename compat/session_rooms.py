"""The rooms that this process asks one prefill server for, and what is known of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from bootstrap_grpc.client.resolver import DpRankResolver

__all__ = ["KEEP", "RoomAnswers"]

KEEP = 60.0
"""Seconds for which a room that nobody asks for any more is kept. SGLang drops answers that it
prefetched, and asks again from another thread."""

_MOST_KEPT = 1_000_000
_SWEEP = 512
"""Rooms that one call forgets, or twice as many as it asks for: it must not pay for all others."""


class RoomAnswers:
    """Answers of one prefill server by room. Thread-safe; no method waits or does I/O."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._resolver: DpRankResolver | None = None
        self._known: dict[int, int] = {}
        self._asked: dict[int, float] = {}  # in the order of the last time each was asked for

    def __len__(self) -> int:
        """Rooms kept, answered or not."""
        return len(self._asked)

    def ask(self, rooms: Sequence[int], resolver: DpRankResolver) -> dict[int, int]:
        """The DP ranks that are known by now; the other rooms are asked for in the background.

        Raises BootstrapError for what is no room; nothing is asked then.
        """
        with self._lock:
            now = self._clock()
            known, asked = self._known, self._asked
            if resolver is not self._resolver:
                # Another resolver, another connection: it was asked for nothing yet.
                pending = [room for room in asked if room not in known]
                if pending:
                    resolver.submit(pending)
                self._resolver = resolver
            new = [room for room in rooms if room not in asked]
            if new:
                resolver.submit(new)
            arrived = resolver.poll()
            if arrived:
                known.update(arrived)
            overdue = resolver.expired()
            if overdue:
                resolver.submit([room for room in overdue if room in asked])
            found: dict[int, int] = {}
            for room in rooms:
                asked.pop(room, None)  # so that it goes to the end
                asked[room] = now
                dp_rank = known.get(room)
                if dp_rank is not None:
                    found[room] = dp_rank
            self._forget(now, max(_SWEEP, 2 * len(rooms)), resolver)
            return found

    def _forget(self, now: float, most: int, resolver: DpRankResolver) -> None:
        gone: list[int] = []
        for room, at in self._asked.items():
            if len(gone) >= most or (now - at < KEEP and len(self._asked) <= _MOST_KEPT):
                break
            gone.append(room)
        if not gone:
            return
        unanswered: list[int] = []
        for room in gone:
            del self._asked[room]
            if self._known.pop(room, None) is None:
                unanswered.append(room)
        if unanswered:
            resolver.discard(unanswered)
