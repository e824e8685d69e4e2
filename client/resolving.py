"""What a resolver asks and hears: the bookkeeping of one resolve stream, without threads or I/O."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable

from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos.model import MAX_MESSAGE_ROOMS

__all__ = ["ResolverLogic"]


class ResolverLogic:
    """The rooms that are unresolved, and what the service must still be told of them.

    Not thread-safe: its driver calls it from one task.
    """

    def __init__(self) -> None:
        self._pending: dict[int, float] = {}
        # A batch for each call of submit, not an entry for each room: those would be the host's
        # garbage collector's to walk. The number tells batches of one deadline apart.
        self._deadlines: list[tuple[float, int, tuple[int, ...]]] = []
        self._batches = itertools.count()
        self._batched = 0
        self._add: dict[int, None] = {}
        self._drop: dict[int, None] = {}

    def __len__(self) -> int:
        """Unresolved rooms."""
        return len(self._pending)

    def __contains__(self, room: int) -> bool:
        return room in self._pending

    def pending(self) -> list[int]:
        return list(self._pending)

    def submit(self, rooms: Iterable[int], deadline: float) -> None:
        """Ask for ``rooms`` until ``deadline``; a room that is asked for already gets it anew."""
        rooms = tuple(rooms)
        for room in rooms:
            if room not in self._pending:
                self._add[room] = None
            self._pending[room] = deadline
        self._remember(deadline, rooms)

    def discard(self, rooms: Iterable[int]) -> None:
        """Ask for ``rooms`` no longer."""
        for room in rooms:
            if self._pending.pop(room, None) is not None:
                self._let_go(room)

    def on_connect(self) -> None:
        """A new stream: it knows nothing of what the last one was told."""
        self._add = dict.fromkeys(self._pending)
        self._drop.clear()

    def on_answers(self, rooms: Iterable[int], dp_ranks: Iterable[int]) -> dict[int, int]:
        """What the service answered, less what is no longer asked for."""
        answers: dict[int, int] = {}
        for room, dp_rank in zip(rooms, dp_ranks, strict=True):
            if self._pending.pop(room, None) is not None:
                answers[room] = dp_rank
                self._let_go(room)
        return answers

    def expire(self, now: float) -> list[tuple[int, float]]:
        """The rooms whose deadline has passed, each with it. They are asked for no longer."""
        expired: list[tuple[int, float]] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, _, rooms = heapq.heappop(self._deadlines)
            self._batched -= len(rooms)
            for room in rooms:
                # One that was answered, discarded or given a new deadline is here still.
                if self._pending.get(room) == deadline:
                    del self._pending[room]
                    self._let_go(room)
                    expired.append((room, deadline))
        return expired

    def next_deadline(self) -> float | None:
        """When ``expire`` next may have something to do; ``None`` for never."""
        if self._batched > 2 * len(self._pending) + 1_000:
            # Answered rooms stay in their batches until they are due: minutes, at a high rate.
            batches: dict[float, list[int]] = {}
            for room, deadline in self._pending.items():
                batches.setdefault(deadline, []).append(room)
            self._deadlines, self._batched = [], 0
            for deadline, rooms in batches.items():
                self._remember(deadline, tuple(rooms))
        return self._deadlines[0][0] if self._deadlines else None

    def take_message(self) -> pb.ResolveDpRanksRequest | None:
        """The next message; ``None`` where the service knows everything."""
        if not self._add and not self._drop:
            return None
        message = pb.ResolveDpRanksRequest(drop=_take(self._drop))
        # The service drops before it adds: a room that is asked for again waits its turn.
        if not self._drop:
            message.add.extend(_take(self._add))
        return message

    def _remember(self, deadline: float, rooms: tuple[int, ...]) -> None:
        heapq.heappush(self._deadlines, (deadline, next(self._batches), rooms))
        self._batched += len(rooms)

    def _let_go(self, room: int) -> None:
        if room in self._add:
            del self._add[room]  # the service was never told
        else:
            self._drop[room] = None


def _take(rooms: dict[int, None]) -> list[int]:
    taken = list(itertools.islice(rooms, MAX_MESSAGE_ROOMS))
    if len(taken) == len(rooms):
        rooms.clear()
    else:
        for room in taken:
            del rooms[room]
    return taken
