"""``DpRankResolver``: which DP rank took each room, for a loop that must not wait."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import repeat

from bootstrap_grpc.client.background import Stream
from bootstrap_grpc.client.connection import Connection
from bootstrap_grpc.client.errors import BootstrapError, ForkedError, typed
from bootstrap_grpc.client.forks import process_number
from bootstrap_grpc.client.resolving import ResolverLogic
from bootstrap_grpc.client.streams import resolve_stream
from bootstrap_grpc.protos.model import MAX_ROOM

__all__ = ["DpRankResolver", "checked_rooms"]


class DpRankResolver:
    """Learns the DP rank of each submitted room, in the background.

    No method waits, does I/O or raises for a bad network: ``submit`` leaves word, ``poll`` reads
    memory. The background owns one stream, reconnects, and asks again for what is unresolved.
    Made by ``BootstrapClient.resolver``. Thread-safe: each answer goes to one caller of ``poll``.
    """

    def __init__(
        self,
        connection: Connection,
        answer_locally: Callable[[Iterable[int]], dict[int, int]] | None = None,
    ) -> None:
        self._connection = connection
        self._answer_locally = answer_locally
        self._process = process_number()
        # The caller's side: what was submitted and is not yet answered, with its deadline; the
        # answers that are not yet given out.
        self._live: dict[int, float] = {}
        self._answers: deque[dict[int, int]] = deque()
        # Held while an answer goes from the one to the other, for microseconds: a room that is
        # discarded at that moment is in neither.
        self._sorting = threading.Lock()
        self._expired: deque[list[tuple[int, float]]] = deque()
        # The loop's side.
        self._logic = ResolverLogic()
        self._wake: asyncio.Event | None = None
        self._stream: Stream | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        """Rooms submitted and neither given out, discarded nor expired."""
        return len(self._live) + sum(map(len, tuple(self._answers)))

    def submit(self, rooms: Iterable[int], timeout: float = 360.0) -> None:
        """Ask for ``rooms``; each is given out by ``poll``, or by ``expired`` after ``timeout`` s.

        A room that is asked for already gets the new deadline.

        Raises
        ------
        InvalidRequest
            A room is no integer from 0 to 2^64-1; nothing is submitted.
        ForkedError
            Called in a child of the process that made the resolver.
        """
        rooms = checked_rooms(rooms)
        self._check_usable()
        deadline = time.monotonic() + timeout
        if self._answers:  # what is answered and waits for the next poll is not asked for again
            answered = tuple(self._answers)
            rooms = [r for r in rooms if not any(r in answers for answers in answered)]
        self._live.update(dict.fromkeys(rooms, deadline))
        if self._answer_locally is not None and (answers := self._answer_locally(rooms)):
            self._deliver(answers)
            rooms = [room for room in rooms if room not in answers]
        if rooms:
            self._connection.host.soon(lambda: self._submit(rooms, deadline))

    def poll(self) -> dict[int, int]:
        """What became known since the last poll, room to DP rank. Each room is given out once."""
        known: dict[int, int] = {}
        while self._answers:
            try:
                answers = self._answers.popleft()
            except IndexError:  # another thread was faster
                break
            known.update(answers)
        return known

    def expired(self) -> list[int]:
        """The rooms whose time was over since the last call: they never will be given out."""
        rooms: list[int] = []
        while self._expired:
            try:
                expired = self._expired.popleft()
            except IndexError:  # another thread was faster
                break
            for room, deadline in expired:
                # Unless it was submitted again, with a new deadline.
                if self._live.get(room) == deadline:
                    self._live.pop(room, None)
                    rooms.append(room)
        return rooms

    def discard(self, rooms: Iterable[int]) -> None:
        """Ask for ``rooms`` no longer; they are not given out. Unknown rooms are no error."""
        rooms = checked_rooms(rooms)
        self._check_usable()
        with self._sorting:
            gone = [room for room in rooms if self._live.pop(room, None) is not None]
            for answers in tuple(self._answers):
                for room in rooms:
                    answers.pop(room, None)
        if gone:
            self._connection.host.soon(lambda: self._discard(gone))

    def close(self) -> None:
        """End the stream. Idempotent, never waits."""
        if self._process == process_number() and not self._closed:
            self._closed = True
            self._connection.host.soon(self._close)

    def __enter__(self) -> DpRankResolver:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _check_usable(self) -> None:
        if self._process != process_number():
            raise ForkedError("this resolver belongs to the parent process; make one in the child")
        if self._closed:
            raise ValueError(f"the resolver of {self._connection.target} is closed")

    def _deliver(self, answers: dict[int, int]) -> None:
        """Have the next poll give out ``answers``, less what was discarded meanwhile."""
        with self._sorting:
            live = list(map(self._live.pop, answers, repeat(None)))
            if None in live:
                kept = zip(answers.items(), live, strict=True)
                answers = dict(answer for answer, deadline in kept if deadline is not None)
            if answers:
                self._answers.append(answers)

    # --- in the host's loop -----------------------------------------------------------

    def _submit(self, rooms: list[int], deadline: float) -> None:
        if self._closed:
            return
        self._logic.submit(rooms, deadline)
        self._schedule_expiry()
        if self._stream is None:
            self._wake = asyncio.Event()
            self._stream = self._connection.keep(self._run)
        self._told()

    async def _run(self) -> None:
        if self._wake is not None:
            await resolve_stream(self._logic, self._wake, self._deliver, self._connection)

    def answer_pending_locally(self) -> None:
        """The topology became known: answer what was submitted before it was."""
        if self._answer_locally is None or self._closed:
            return
        if answers := self._answer_locally(self._logic.pending()):
            self._deliver(answers)
            self._discard(answers)

    def _discard(self, rooms: Iterable[int]) -> None:
        self._logic.discard(rooms)
        self._told()

    def _told(self) -> None:
        if self._wake is not None:
            self._wake.set()

    def _schedule_expiry(self) -> None:
        deadline = self._logic.next_deadline()
        if deadline is None or (self._timer is not None and self._timer.when() <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        # asyncio's clock is time.monotonic.
        self._timer = asyncio.get_running_loop().call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if expired := self._logic.expire(time.monotonic()):
            self._expired.append(expired)
            self._told()
        self._schedule_expiry()

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
        if self._timer is not None:
            self._timer.cancel()


def checked_rooms(rooms: Iterable[int]) -> list[int]:
    """``rooms`` as a list. Raises InvalidRequest for one that is no integer from 0 to 2^64-1."""
    rooms = list(rooms)
    # These three run in C; the loop that finds the culprit runs only when there is one.
    if rooms:
        with contextlib.suppress(TypeError):
            if set(map(type, rooms)) == {int} and min(rooms) >= 0 and max(rooms) <= MAX_ROOM:
                return rooms
        for room in rooms:
            wrong: object = room
            if type(wrong) is not int or not 0 <= wrong <= MAX_ROOM:
                wanted = f"an integer from 0 to {MAX_ROOM}"
                raise typed(BootstrapError.invalid("room", wrong, wanted))
    return rooms
