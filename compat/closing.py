"""Who closes a connection first, and how (design section 6).

The side that closes a TCP connection first keeps its TIME-WAIT (RFC 9293, 3.6), and only a
client's TIME-WAIT costs an ephemeral port. A reply after which the server closes therefore has the
FIN in its last segment: ``cork``, write, ``Connection.end_writing``. So it has arrived when the
client reads the reply, and however fast the client closes, it closes second.

Everything here lives in one event loop, whichever (asyncio's or uvloop's).
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from aiohttp import web

from bootstrap_grpc.compat.habits import Habits
from bootstrap_grpc.compat.replies import Closing

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Connection", "cork"]

MOST_LINGER = 30.0
"""Seconds after which a connection ends whatever its peer still sends."""

# Linux. Where there is none the FIN follows in a segment of its own, a few microseconds later.
_CORK = getattr(socket, "TCP_CORK", None)


class Connection(web.RequestHandler):
    """One client's connection: aiohttp's protocol, which also observes who closes it.

    ``web.Server`` calls ``handle_error`` for what never becomes a request; ``on_error`` makes
    that reply, and logs it where it is worth a line. ``no_url`` is the reply, as bytes, to a target
    that aiohttp cannot even report.
    """

    __slots__ = (
        "_first_request",
        "_first_request_timeout",
        "_habits",
        "_linger",
        "_lingering",
        "_no_url",
        "_on_error",
        "_served",
        "_trial",
        "on_lost",
        "peer",
    )

    def __init__(
        self,
        server: web.Server,
        *,
        loop: asyncio.AbstractEventLoop,
        habits: Habits,
        keepalive_timeout: float,
        first_request_timeout: float,
        linger: float,
        on_error: Callable[[web.BaseRequest, int, BaseException | None], web.StreamResponse],
        no_url: Callable[[], bytes],
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=keepalive_timeout,
            access_log=None,  # type: ignore[arg-type]  # None is aiohttp's own "off"
            # ``end_writing`` does aiohttp's lingering, for it must begin after the FIN.
            lingering_time=0,
        )
        self._habits = habits
        self._on_error = on_error
        self._no_url = no_url
        self._trial: float | None = None
        self._served = 0
        self._lingering: _Lingering | None = None
        self._linger = linger
        self._first_request_timeout = first_request_timeout
        self._first_request: asyncio.TimerHandle | None = None
        self.on_lost: Callable[[], None] | None = None
        """Called when the connection ends: while a reply is being waited for, nobody else sees."""
        self.peer = ""
        """The peer's IP address."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peername = transport.get_extra_info("peername")
        self.peer = peername[0] if peername else ""
        self._first_request = asyncio.get_running_loop().call_later(
            self._first_request_timeout, self.force_close
        )
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except ValueError:  # aiohttp 3.9 lets yarl's refusal of "http://[::1/" through
            if self.transport is not None:
                self.transport.write(self._no_url())
            self.force_close()

    def begin_request(self) -> None:
        """Another request has come: a connection that is used again is worth keeping."""
        self._served += 1
        self._stop_waiting()
        self._end_trial(closed_by_peer=False)

    def keeps(self, closing: Closing) -> bool:
        """Whether the connection is kept after the reply to a client that would keep it."""
        # A client that has sent its next request already must get that reply too.
        if self._messages or closing is Closing.CLIENT:
            return True
        if closing is Closing.SERVER:
            return False
        if self._served > 1:
            return True
        self._trial = self._habits.begin_trial(self.peer)
        return self._trial is not None

    def eof_received(self) -> None:
        self._end_trial(closed_by_peer=True)
        super().eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_waiting()
        self._end_trial(closed_by_peer=False)
        if self.on_lost is not None:
            self.on_lost()
        super().connection_lost(exc)

    def _stop_waiting(self) -> None:
        if self._first_request is not None:
            self._first_request.cancel()
            self._first_request = None

    def _end_trial(self, *, closed_by_peer: bool) -> None:
        if self._trial is not None:
            self._habits.end_trial(self.peer, self._trial, closed_by_peer=closed_by_peer)
            self._trial = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - aiohttp's words; ours name the ports
    ) -> web.StreamResponse:
        return self._on_error(request, status, exc)

    async def end_writing(self) -> None:
        """Send the FIN, then discard what comes until the peer's FIN or ``linger`` of silence."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self._lingering = _Lingering(self, transport)
        await self._lingering.ended(self._linger)

    def stop_lingering(self) -> None:
        """Wait for the peer's close no more, neither now nor later: the service stops."""
        self._linger = 0.0
        if self._lingering is not None:
            self._lingering.end()


class _Lingering(asyncio.Protocol):
    """Takes over a connection whose reply is written: sends the FIN and discards what comes.

    Closing at once would answer whatever still arrives with a reset, and a reset may overtake the
    reply in the client.
    """

    def __init__(self, connection: Connection, transport: asyncio.Transport) -> None:
        self._connection = connection
        self._transport = transport
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._received = False
        transport.set_protocol(self)
        # Nothing reads a body that was too long any more, so aiohttp may have paused reading.
        transport.resume_reading()
        try:
            # The FIN leaves once all is written, also where the kernel could not take it all yet;
            # it pushes out what the cork held back, and travels in that segment.
            transport.write_eof()
        except OSError:  # the peer reset the connection meanwhile
            self.end()

    async def ended(self, silence: float) -> None:
        """Return when the peer has closed, was silent for ``silence``, or talks for too long."""
        loop = asyncio.get_running_loop()
        latest = loop.time() + MOST_LINGER

        def check() -> None:
            if self._received and loop.time() < latest:
                self._received = False
                self._timer = loop.call_later(silence, check)
            else:
                self.end()

        self._timer = loop.call_later(silence, check)
        try:
            await self._over
        finally:
            self._timer.cancel()

    def end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def data_received(self, data: bytes) -> None:  # noqa: ARG002 - discarded
        self._received = True

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connection.connection_lost(exc)
        self.end()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()


def cork(transport: asyncio.BaseTransport) -> None:
    """Hold back partial segments: the FIN that is to follow would travel in one of its own."""
    sock = transport.get_extra_info("socket")
    if _CORK is not None and sock is not None:
        with suppress(OSError):  # the peer reset the connection: the write will say so
            sock.setsockopt(socket.IPPROTO_TCP, _CORK, 1)
