"""``DpRankPublisher``: tells the service which DP rank took each room, without waiting for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable

from bootstrap_grpc.client.background import Stream
from bootstrap_grpc.client.connection import Connection
from bootstrap_grpc.client.errors import BootstrapError, ForkedError, typed
from bootstrap_grpc.client.forks import process_number
from bootstrap_grpc.client.publishing import PublisherLogic
from bootstrap_grpc.client.streams import publish_stream
from bootstrap_grpc.protos.model import MAX_DP_RANK, MAX_ROOM

__all__ = ["DpRankPublisher"]


class DpRankPublisher:
    """Publishes rooms in the background, in order, until the service has acknowledged them.

    ``publish`` neither waits, does I/O nor raises for a bad network. The newest 200,000 rooms of
    the last 360 s are kept, acknowledged or not, and sent again to a service that has started
    anew: a crash of the service loses no room while this process lives. Made by
    ``BootstrapClient.publisher``. Thread-safe.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._process = process_number()
        self._closed = False
        self._published: deque[tuple[int, int]] = deque()
        self._told = False  # the loop will look at what was published
        # The loop's side.
        self._logic = PublisherLogic(time.monotonic)
        self._flushing: list[Callable[[], None]] = []
        self._wake: asyncio.Event | None = None
        self._stream: Stream | None = None

    @property
    def dropped(self) -> int:
        """Rooms given up because more than 200,000 came while the service was away."""
        return self._logic.dropped

    def publish(self, room: int, dp_rank: int) -> None:
        """``room`` was taken by ``dp_rank``; a later call with another rank wins.

        Raises
        ------
        InvalidRequest
            ``room`` is no integer from 0 to 2^64-1, or ``dp_rank`` none from 0 to 65,535.
        ForkedError
            Called in a child of the process that made the publisher.
        """
        if type(room) is not int or not 0 <= room <= MAX_ROOM:
            raise _invalid("room", room, MAX_ROOM)
        if type(dp_rank) is not int or not 0 <= dp_rank <= MAX_DP_RANK:
            raise _invalid("dp_rank", dp_rank, MAX_DP_RANK)
        self._check_usable()
        self._published.append((room, dp_rank))
        if not self._told:
            self._told = True
            self._connection.host.soon(self._take)

    def flush(self, timeout: float | None = 10.0) -> bool:
        """Wait until all that was published is acknowledged; false where ``timeout`` s are over.

        The one method that waits.
        """
        self._check_usable()
        done = threading.Event()
        self._connection.host.soon(lambda: self._flush(done.set))
        return done.wait(timeout)

    def close(self) -> None:
        """End the stream; what is not acknowledged is given up (``flush`` first). Never waits."""
        if self._process == process_number() and not self._closed:
            self._closed = True
            self._connection.host.soon(self._close)

    def __enter__(self) -> DpRankPublisher:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _check_usable(self) -> None:
        if self._process != process_number():
            raise ForkedError("this publisher belongs to the parent process; make one in the child")
        if self._closed:
            raise ValueError(f"the publisher to {self._connection.target} is closed")

    # --- in the host's loop -----------------------------------------------------------

    def _take(self) -> None:
        """Take over what was published."""
        self._told = False  # first: what is published from now on is announced again
        if self._closed:
            return
        published = self._published
        while published:
            self._logic.publish(*published.popleft())
        if self._stream is None:
            self._wake = asyncio.Event()
            self._stream = self._connection.keep(self._run)
        if self._wake is not None:
            self._wake.set()

    async def _run(self) -> None:
        if self._wake is not None:
            await publish_stream(self._logic, self._wake, self._acknowledged, self._connection)

    def _flush(self, done: Callable[[], None]) -> None:
        """Have ``done`` called once everything is acknowledged."""
        self._take()
        self._flushing.append(done)
        self._acknowledged()

    def _acknowledged(self) -> None:
        if self._flushing and self._logic.is_settled:
            flushing, self._flushing = self._flushing, []
            for done in flushing:
                done()

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.cancel()


def _invalid(name: str, value: object, most: int) -> BootstrapError:
    return typed(BootstrapError.invalid(name, value, f"an integer from 0 to {most}"))
