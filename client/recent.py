"""The rooms that were published of late, kept so that they do not hold up the host.

At 200,000 rooms the obvious ways do: an OrderedDict stops the process for tens of milliseconds
when it grows, and so does each full garbage collection where every room is an object (measured).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

__all__ = ["Published", "RecentRooms"]

Published = tuple[int, float, bool]
"""The DP rank; when it was published; whether the room was published with another rank before. A
plain tuple of plain values: the garbage collector soon leaves it alone."""


class RecentRooms:
    """At most ``capacity`` rooms, none older than ``lifetime`` seconds. Not thread-safe."""

    def __init__(self, capacity: int, lifetime: float) -> None:
        self._capacity = capacity
        self._lifetime = lifetime
        self._rooms: dict[int, Published] = {}
        # In the order of publication. A room that was published again is here twice, and only
        # the entry with its current time counts.
        self._order: deque[tuple[int, float]] = deque()

    def __len__(self) -> int:
        return len(self._rooms)

    def __iter__(self) -> Iterator[int]:
        """The rooms, the one published last at the end."""
        return (room for room, at in self._order if self._is_current(room, at))

    def get(self, room: int) -> Published | None:
        return self._rooms.get(room)

    def dp_ranks(self, rooms: Iterable[int]) -> list[int]:
        """The rank of each of ``rooms``. Raises ``KeyError`` for one that is not here."""
        return [self._rooms[room][0] for room in rooms]

    def put(self, room: int, dp_rank: int, now: float) -> None:
        """``room`` is published: it now is the youngest."""
        known = self._rooms.get(room)
        if known is None:
            self._rooms[room] = dp_rank, now, False
        else:
            before, published_at, changed = known
            self._rooms[room] = dp_rank, now, changed or before != dp_rank
            if published_at == now:
                return  # its entry stands for both
        self._order.append((room, now))
        if len(self._order) > 2 * len(self._rooms) + 1_000:
            self._order = deque(entry for entry in self._order if self._is_current(*entry))

    def forget_old(self, now: float) -> list[int]:
        """Let go of what is too old or too much; which rooms those were."""
        forgotten: list[int] = []
        while self._order:
            room, published_at = self._order[0]
            if self._is_current(room, published_at):
                young = now - published_at < self._lifetime
                if young and len(self._rooms) <= self._capacity:
                    break
                del self._rooms[room]
                forgotten.append(room)
            self._order.popleft()
        return forgotten

    def _is_current(self, room: int, published_at: float) -> bool:
        known = self._rooms.get(room)
        return known is not None and known[1] == published_at
