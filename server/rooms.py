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

_SHARDS = 61
"""Tables that the rooms are spread over: a dict that doubles copies itself at once, which for a
million rooms holds up the event loop for a quarter of a second."""

_SLOTS = 1021
"""Room modulo this gives the shard. A prime, because a room may carry a rank in its low bits."""

_RANK_BITS = 16  # MAX_DP_RANK fits
_SERIAL_BITS = 16  # tells rooms of one millisecond apart
_LOW_BITS = _SERIAL_BITS + _RANK_BITS
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

    An entry costs one dict entry and one int: the deadline in milliseconds, a serial number and
    the rank share it. Each shard is kept in the order of deadlines, so expiry takes from its
    front and never looks at a room that stays.
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
        self._shards: list[OrderedDict[int, int]] = [OrderedDict() for _ in range(_SHARDS)]
        self._slots = [self._shards[shard] for shard in _shards_of_slots()]
        self._held = 0
        self._serial = 0
        self.stats = RoomStats()
        self.on_stored: Callable[[Iterable[int], Iterable[int]], None] | None = None
        """Called with the rooms and ranks of every batch that was stored."""

    def __len__(self) -> int:
        """Rooms in memory; those past their lifetime count until they are dropped."""
        return self._held

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
        deadline = (now_ms + self._lifetime_ms) << _LOW_BITS
        slots = self._slots
        for room, rank in zip(rooms, dp_ranks, strict=True):
            shard = slots[room % _SLOTS]
            known = shard.get(room)
            if known is not None:
                shard.move_to_end(room)
                if known & MAX_DP_RANK != rank and known >> _LOW_BITS > now_ms:
                    self.stats.conflicts += 1
            else:
                self._expire(shard, now_ms, _EXPIRED_PER_STORE)
                if self._held >= self._capacity:
                    self._drop_oldest(now_ms)
                self._held += 1
            self._serial = (self._serial + 1) % (1 << _SERIAL_BITS)
            shard[room] = deadline | self._serial << _RANK_BITS | rank
        self.stats.stored += len(rooms)
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
        slots = self._slots
        found: dict[int, int] = {}
        for room in rooms:
            entry = slots[room % _SLOTS].get(room)
            if entry is not None and entry >> _LOW_BITS > now_ms:
                found[room] = entry & MAX_DP_RANK
        return found

    def expire(self, most: int) -> bool:
        """Drop at most ``most`` rooms past their lifetime; true where more are left.

        Called from a timer in small portions, so that a million rooms that end together never
        hold up the event loop.
        """
        now_ms = self._now_ms()
        for shard in self._shards:
            most -= self._expire(shard, now_ms, most)
        return any(_front(shard) >> _LOW_BITS <= now_ms for shard in self._shards if shard)

    def _expire(self, shard: OrderedDict[int, int], now_ms: int, most: int) -> int:
        """Drop at most ``most`` rooms past their lifetime from one shard; how many it were."""
        dropped = 0
        while dropped < most and shard and _front(shard) >> _LOW_BITS <= now_ms:
            shard.popitem(last=False)
            dropped += 1
        self._held -= dropped
        self.stats.expired += dropped
        return dropped

    def _drop_oldest(self, now_ms: int) -> None:
        shard = min((shard for shard in self._shards if shard), key=_front)
        _, entry = shard.popitem(last=False)
        self._held -= 1
        if entry >> _LOW_BITS > now_ms:
            self.stats.evicted += 1
        else:
            self.stats.expired += 1

    def _now_ms(self) -> int:
        return round(self._clock() * 1000)


def _shards_of_slots() -> list[int]:
    """The shard of each slot. The largest shard has twice the slots of the smallest: shards of
    one size would all double within the same few rooms, which took 50 ms (measured)."""
    return [int(_SHARDS * math.log2(1 + slot / _SLOTS)) for slot in range(_SLOTS)]


def _front(shard: OrderedDict[int, int]) -> int:
    return next(iter(shard.values()))


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
