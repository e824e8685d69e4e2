"""The two room streams: publications in, answers out, each coalesced into as few messages as fit.

What costs on a stream is the message, not the room in it, so whatever has gathered while the last
message was under way goes out as one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from types import TracebackType
from typing import Any

from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos.model import MAX_MESSAGE_ROOMS
from bootstrap_grpc.server.rooms import RoomTable, check_rooms
from bootstrap_grpc.server.waiting import Waiter, WaitingRooms

__all__ = ["publish", "resolve"]

ACK_DELAY = 0.005
"""Seconds for which acknowledgements gather, unless ``ACK_EVERY`` messages came: each answers all
messages before it."""

ACK_EVERY = 8
"""Messages after which an acknowledgement is due: half of what a client may have in flight."""

PORTION = 4_096
"""Rooms handled before other work gets its turn: about a millisecond."""


async def publish(
    requests: AsyncIterator[pb.PublishDpRanksRequest],
    rooms: RoomTable,
    ended: asyncio.Future[None],
) -> AsyncGenerator[pb.PublishDpRanksResponse, None]:
    """Store every message and acknowledge it by its sequence number.

    Ends when the client has no more to say, or with the error that ``ended`` is given.
    """
    bell, due = _Bell(), _Bell()
    stored = acknowledged = since = 0

    async def read() -> None:
        nonlocal stored, since
        async for request in requests:
            store = rooms.register_unknown if request.resend else rooms.register
            store(request.rooms, request.dp_ranks)
            stored = request.sequence
            since += 1
            bell.ring()
            if since >= ACK_EVERY:
                due.ring()

    async with _Reader(read(), bell, ended) as reader:
        while not reader.is_done or stored != acknowledged:
            if stored != acknowledged:
                acknowledged, since = stored, 0
                due.clear()
                yield pb.PublishDpRanksResponse(sequence=acknowledged)
            else:
                await bell.wait()
                if not reader.is_done:
                    await due.wait(ACK_DELAY)


async def resolve(
    requests: AsyncIterator[pb.ResolveDpRanksRequest],
    waiting: WaitingRooms,
    ended: asyncio.Future[None],
) -> AsyncGenerator[pb.ResolveDpRanksResponse, None]:
    """Answer each room that the client adds, once it is known, until the client drops it.

    Ends when the client has no more to say and every room is answered, or with the error that
    ``ended`` is given.
    """
    bell = _Bell()
    waiter = Waiter(bell.ring)
    pace = _Pace(waiter)

    async def read() -> None:
        async for request in requests:
            check_rooms(request.add)
            check_rooms(request.drop)
            for start in range(0, len(request.drop), PORTION):
                waiting.drop(waiter, request.drop[start : start + PORTION])
                if start:
                    await asyncio.sleep(0)
            for start in range(0, len(request.add), PORTION):
                waiting.add(waiter, request.add[start : start + PORTION])
                if start:
                    await asyncio.sleep(0)
            pace.on_dropped()

    try:
        async with _Reader(read(), bell, ended) as reader:
            while True:
                if waiter.answers:
                    if not reader.is_done:
                        await pace.wait()
                    if answers := waiter.take(MAX_MESSAGE_ROOMS):
                        pace.on_sent(next(reversed(answers)))
                        yield pb.ResolveDpRanksResponse(
                            rooms=answers.keys(), dp_ranks=answers.values()
                        )
                elif reader.is_done and not waiter.unanswered:
                    break
                else:
                    await bell.wait()
                reader.check()
    finally:
        more = True
        while more:
            more = waiting.close(waiter, PORTION)
            await asyncio.sleep(0)


class _Pace:
    """How many answers may be under way to a client that has not yet dropped what they answered.

    A busy client, whose interpreter gives its streams a turn every few milliseconds, is then sent
    a few messages a turn rather than hundreds that it can only queue. One that does not drop at
    all is sent one message each ``PATIENCE``.
    """

    MOST = 4
    """Answers under way to a client that keeps up: with one, a room that is published just after
    another waits for the client's turn."""

    PATIENCE = 0.01
    """Most seconds that an answer waits."""

    def __init__(self, waiter: Waiter) -> None:
        self._waiter = waiter
        self._window = self.MOST
        self._unheard: deque[tuple[int, float]] = deque()  # each answer's last room, and when sent
        self._clock = asyncio.get_running_loop().time
        self._heard = _Bell()

    def on_sent(self, last_room: int) -> None:
        self._unheard.append((last_room, self._clock()))

    def on_dropped(self) -> None:
        """The client dropped rooms. Its drops come in the order of the answers."""
        while self._unheard and self._unheard[0][0] not in self._waiter.rooms:
            _, sent_at = self._unheard.popleft()
            if self._clock() - sent_at < self.PATIENCE:
                self._window = min(self.MOST, self._window + 1)
            else:
                self._window = max(1, self._window - 1)
            self._heard.ring()

    async def wait(self) -> None:
        """Wait until another answer may go out."""
        while len(self._unheard) >= self._window:
            self._heard.clear()
            await self._heard.wait(self.PATIENCE)
            if len(self._unheard) >= self._window:
                self._window = 1
                self._unheard.clear()


class _Bell:
    """An event for one waiting task, with a time-out that costs no task of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = False
        self._waiting: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self._rung = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def clear(self) -> None:
        self._rung = False

    async def wait(self, timeout: float | None = None) -> None:
        """Wait for the next ring, or for the one that came since the last wait."""
        if not self._rung:
            self._waiting = self._loop.create_future()
            timer = None if timeout is None else self._loop.call_later(timeout, self.ring)
            try:
                await self._waiting
            finally:
                self._waiting = None
                if timer is not None:
                    timer.cancel()
        self._rung = False


class _Reader:
    """Reads a stream's requests beside its writer; both end together."""

    def __init__(
        self, read: Coroutine[Any, Any, None], bell: _Bell, ended: asyncio.Future[None]
    ) -> None:
        self._ended = ended
        self._task = asyncio.get_running_loop().create_task(read)
        self._task.add_done_callback(lambda _task: bell.ring())
        ended.add_done_callback(lambda _ended: bell.ring())

    @property
    def is_done(self) -> bool:
        """Whether the client has no more to say; raises what ended the stream otherwise."""
        self.check()
        return self._task.done()

    def check(self) -> None:
        """Raise what a bad request or the service's end raised."""
        if self._ended.done():
            self._ended.result()
        if self._task.done():
            self._task.result()

    async def __aenter__(self) -> _Reader:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
