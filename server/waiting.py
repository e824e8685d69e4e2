"""Which streams wait for which rooms: a stored room wakes just the streams that hold it.

One entry for each (stream, room). Plain synchronous Python, no I/O; not thread-safe, all calls
come from one event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from bootstrap_grpc.protos.errors import BootstrapError
from bootstrap_grpc.server.rooms import RoomTable

__all__ = ["Waiter", "WaitingRooms"]

_UNANSWERED = -1


class Waiter:
    """The rooms that one stream waits for, and its answers that were not yet taken."""

    __slots__ = ("_on_answer", "answers", "rooms", "unanswered")

    def __init__(self, on_answer: Callable[[], None]) -> None:
        self._on_answer = on_answer
        self.rooms: dict[int, int] = {}
        """Room to the rank it was answered with last, or -1."""
        self.answers: dict[int, int] = {}
        """What is to be sent. Never larger than ``rooms``, so a slow reader's backlog is
        bounded by what it may wait for."""
        self.unanswered = 0
        """Rooms that have no answer yet."""

    def offer(self, room: int, dp_rank: int) -> None:
        """A rank for ``room`` is known: an answer, unless it was given already."""
        before = self.rooms.get(room, dp_rank)
        if before != dp_rank:
            self.unanswered -= before == _UNANSWERED
            self.rooms[room] = dp_rank
            self.answers[room] = dp_rank
            self._on_answer()

    def take(self, most: int) -> dict[int, int]:
        """Up to ``most`` answers, room to DP rank, to be sent as one message."""
        if len(self.answers) <= most:
            taken, self.answers = self.answers, {}
            return taken
        taken = dict(islice(self.answers.items(), most))
        for room in taken:
            del self.answers[room]
        return taken


class WaitingRooms:
    """Every waiter of a room table, by room."""

    def __init__(self, rooms: RoomTable, *, limit: int = 1_000_000) -> None:
        """``limit`` bounds the rooms of one waiter."""
        self._rooms = rooms
        self._limit = limit
        # Nearly every room has one waiter: a set for each would cost four times the memory.
        self._waiters: dict[int, Waiter | set[Waiter]] = {}
        rooms.on_stored = self._stored

    def __len__(self) -> int:
        """Rooms that anybody waits for, answered ones that were not dropped included."""
        return len(self._waiters)

    def add(self, waiter: Waiter, rooms: Sequence[int]) -> None:
        """Wait for ``rooms``; those that are known are answered at once.

        Raises
        ------
        BootstrapError
            LIMIT_EXCEEDED for more rooms than one waiter may hold; none is added then.
        """
        new = [room for room in dict.fromkeys(rooms) if room not in waiter.rooms]
        if len(waiter.rooms) + len(new) > self._limit:
            raise BootstrapError.limit("waiting rooms", len(waiter.rooms) + len(new), self._limit)
        for room in new:
            waiter.rooms[room] = _UNANSWERED
            waiter.unanswered += 1
            others = self._waiters.setdefault(room, waiter)
            if isinstance(others, set):
                others.add(waiter)
            elif others is not waiter:
                self._waiters[room] = {others, waiter}
        for room, dp_rank in self._rooms.query(new).items():
            waiter.offer(room, dp_rank)

    def drop(self, waiter: Waiter, rooms: Iterable[int]) -> None:
        """Wait for ``rooms`` no longer. Rooms that were not waited for are no error."""
        for room in rooms:
            before = waiter.rooms.pop(room, None)
            if before is not None:
                waiter.unanswered -= before == _UNANSWERED
                waiter.answers.pop(room, None)
                self._forget(waiter, room)

    def close(self, waiter: Waiter, most: int) -> bool:
        """Drop up to ``most`` of the rooms of a stream that ended; true where more are left.

        In portions, because a stream may leave a million rooms behind.
        """
        self.drop(waiter, list(islice(waiter.rooms, most)))
        return bool(waiter.rooms)

    def _forget(self, waiter: Waiter, room: int) -> None:
        others = self._waiters[room]
        if isinstance(others, set):
            others.discard(waiter)
            if len(others) == 1:
                self._waiters[room] = others.pop()
        else:
            del self._waiters[room]

    def _stored(self, rooms: Iterable[int], dp_ranks: Iterable[int]) -> None:
        if not self._waiters:
            return
        waiters = self._waiters
        for room, dp_rank in zip(rooms, dp_ranks, strict=True):
            waiting = waiters.get(room)
            if waiting is None:
                continue
            if isinstance(waiting, set):
                for waiter in waiting:
                    waiter.offer(room, dp_rank)
            else:
                waiting.offer(room, dp_rank)
