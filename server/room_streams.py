"""The two room streams: publications in, answers out, each coalesced into as few messages as fit.

What costs on a stream is the message, not the room in it, so whatever has gathered while the last
message was under way goes out as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from types import TracebackType
from typing import Any

from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos.model import MAX_MESSAGE_ROOMS
from bootstrap_grpc.server.rooms import RoomTable, check_rooms
from bootstrap_grpc.server.waiting import Waiter, WaitingRooms

__all__ = ["publish", "resolve"]

ACK_DELAY = 0.005
"""Seconds for which acknowledgements gather: each answers all messages before it."""

PACE = 0.005
"""Most seconds that an answer waits for the client to drop what the last one answered. A busy
client, whose interpreter gives its streams a turn every few milliseconds, is then sent one
message a turn rather than hundreds that it can only queue."""

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
    bell = _Bell()
    stored = acknowledged = 0

    async def read() -> None:
        nonlocal stored
        async for request in requests:
            store = rooms.register_unknown if request.resend else rooms.register
            store(request.rooms, request.dp_ranks)
            stored = request.sequence
            bell.ring()

    async with _Reader(read(), bell, ended) as reader:
        while not reader.is_done or stored != acknowledged:
            if stored != acknowledged:
                acknowledged = stored
                yield pb.PublishDpRanksResponse(sequence=acknowledged)
            else:
                await bell.wait()
                if not reader.is_done:
                    await asyncio.sleep(ACK_DELAY)


async def resolve(
    requests: AsyncIterator[pb.ResolveDpRanksRequest],
    waiting: WaitingRooms,
    ended: asyncio.Future[None],
) -> AsyncGenerator[pb.ResolveDpRanksResponse, None]:
    """Answer each room that the client adds, once it is known, until the client drops it.

    Ends when the client has no more to say and every room is answered, or with the error that
    ``ended`` is given.
    """
    bell, heard = _Bell(), _Bell()
    waiter = Waiter(bell.ring)

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
            heard.ring()

    try:
        async with _Reader(read(), bell, ended) as reader:
            while True:
                if answers := waiter.take(MAX_MESSAGE_ROOMS):
                    heard.clear()
                    yield pb.ResolveDpRanksResponse(rooms=answers.keys(), dp_ranks=answers.values())
                    if not reader.is_done:
                        await heard.wait(PACE)
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
