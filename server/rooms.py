"""Which DP rank took each room: a bounded table whose entries end by age.

Rooms belong to no generation: only their lifetime and the cap remove them (design section 4).
Plain synchronous Python: not thread-safe, all calls come from one event loop.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bootstrap_grpc.protos.errors import BootstrapError
from bootstrap_grpc.protos.model import MAX_DP_RANK, MAX_MESSAGE_ROOMS, MAX_ROOM
from bootstrap_grpc.server.validation import check_room_batch

__all__ = ["RoomStats", "RoomTable", "check_rooms"]

_RANK_BITS = 16  # MAX_DP_RANK fits
_EXPIRED_PER_STORE = 2  # more than one, so that a backlog shrinks while rooms arrive


@dataclass(slots=True)
class RoomStats:
    """Counts since the start of the service."""

    stored: int = 0
    """Rooms registered, repetitions included."""
    conflicts: int = 0
    """Rooms registered again with another DP rank while known."""
    evicted: int = 0
    """Rooms dropped young because the table was full."""
    expired: int = 0
    """Rooms dropped at the end of their lifetime."""


class RoomTable:
    """Room to DP rank, for ``lifetime`` seconds after it was last registered.

    An entry costs one dict entry and one small int: the deadline in milliseconds and the rank
    share it. The table is kept in the order of deadlines, so expiry takes from its front and
    never looks at a room that stays.
    """

    def __init__(
        self, clock: Callable[[], float], *, lifetime: float = 360.0, capacity: int = 2_000_000
    ) -> None:
        """``clock`` must be monotonic, in seconds; a step of the wall clock expires nothing.

        Raises ValueError for a lifetime or a capacity with which nothing could be held.
        """
        if not 0 < lifetime < math.inf:
            raise ValueError(f"lifetime is {lifetime}, must be more than 0 seconds")
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}, must be at least 1 room")
        self._clock = clock
        self._lifetime_ms = round(lifetime * 1000)
        self._capacity = capacity
        self._entries: OrderedDict[int, int] = OrderedDict()
        self.stats = RoomStats()
        self.on_stored: Callable[[Iterable[int], Iterable[int]], None] | None = None
        """Called with the rooms and ranks of every batch that was stored."""

    def __len__(self) -> int:
        """Rooms in memory; those past their lifetime count until they are dropped."""
        return len(self._entries)

    def register(self, rooms: Sequence[int], dp_ranks: Sequence[int]) -> None:
        """Store that ``rooms[i]`` was taken by ``dp_ranks[i]``; the last writer wins.

        Raises
        ------
        BootstrapError
            INVALID_FIELD for arrays of unequal length, a room outside 0 to 2^64-1 or a rank
            outside 0 to 65,535; LIMIT_EXCEEDED for more than 65,536 rooms. Nothing is stored.
        """
        _check_batch(rooms, dp_ranks)
        now_ms = self._now_ms()
        deadline = (now_ms + self._lifetime_ms) << _RANK_BITS
        entries = self._entries
        for room, rank in zip(rooms, dp_ranks, strict=True):
            known = entries.get(room)
            if known is not None:
                entries.move_to_end(room)
                if known & MAX_DP_RANK != rank and known >> _RANK_BITS > now_ms:
                    self.stats.conflicts += 1
            elif len(entries) >= self._capacity:
                self._drop_oldest(now_ms)
            entries[room] = deadline | rank
        self.stats.stored += len(rooms)
        self._expire(now_ms, _EXPIRED_PER_STORE * len(rooms))
        if self.on_stored is not None:
            self.on_stored(rooms, dp_ranks)

    def register_unknown(self, rooms: Sequence[int], dp_ranks: Sequence[int]) -> None:
        """Like ``register``, but rooms that are known keep their rank and their lifetime.

        For what a publisher sends again: it must never overwrite a newer rank.
        """
        _check_batch(rooms, dp_ranks)
        known = self.query(rooms)
        unknown = {r: rank for r, rank in zip(rooms, dp_ranks, strict=True) if r not in known}
        self.register(list(unknown), list(unknown.values()))

    def query(self, rooms: Sequence[int]) -> dict[int, int]:
        """The DP rank of each room that is known; unknown and expired rooms are left out.

        Raises
        ------
        BootstrapError
            INVALID_FIELD for a room outside 0 to 2^64-1; LIMIT_EXCEEDED for more than 65,536.
        """
        check_rooms(rooms)
        now_ms = self._now_ms()
        found: dict[int, int] = {}
        for room in rooms:
            entry = self._entries.get(room)
            if entry is not None and entry >> _RANK_BITS > now_ms:
                found[room] = entry & MAX_DP_RANK
        return found

    def expire(self, most: int) -> bool:
        """Drop at most ``most`` rooms past their lifetime; true where more are left.

        Called from a timer in small portions, so that a million rooms that end together never
        hold up the event loop.
        """
        now_ms = self._now_ms()
        return self._expire(now_ms, most) and self._front_is_expired(now_ms)

    def _expire(self, now_ms: int, most: int) -> bool:
        for _ in range(most):
            if not self._front_is_expired(now_ms):
                return False
            self._entries.popitem(last=False)
            self.stats.expired += 1
        return True

    def _front_is_expired(self, now_ms: int) -> bool:
        front = next(iter(self._entries.values()), None)
        return front is not None and front >> _RANK_BITS <= now_ms

    def _drop_oldest(self, now_ms: int) -> None:
        _, entry = self._entries.popitem(last=False)
        if entry >> _RANK_BITS > now_ms:
            self.stats.evicted += 1
        else:
            self.stats.expired += 1

    def _now_ms(self) -> int:
        return round(self._clock() * 1000)


def _check_batch(rooms: Sequence[int], dp_ranks: Sequence[int]) -> None:
    check_room_batch(len(rooms), len(dp_ranks))
    check_rooms(rooms)
    for index, rank in enumerate(dp_ranks):
        if not 0 <= rank <= MAX_DP_RANK:
            raise BootstrapError.invalid(f"dp_ranks[{index}]", rank, f"from 0 to {MAX_DP_RANK}")


def check_rooms(rooms: Sequence[int]) -> None:
    """Raise INVALID_FIELD or LIMIT_EXCEEDED for what no message may carry."""
    if len(rooms) > MAX_MESSAGE_ROOMS:
        raise BootstrapError.limit("rooms", len(rooms), MAX_MESSAGE_ROOMS)
    # min and max run in C; the loop that finds the culprit runs only when there is one.
    if rooms and not (min(rooms) >= 0 and max(rooms) <= MAX_ROOM):
        index, room = next((i, r) for i, r in enumerate(rooms) if not 0 <= r <= MAX_ROOM)
        raise BootstrapError.invalid(f"rooms[{index}]", room, f"from 0 to {MAX_ROOM}")
