"""The HTTP shim: unmodified SGLang releases on the registry that gRPC serves."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import cast

from aiohttp import HttpVersion11, StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from yarl import URL

from bootstrap_grpc.compat.bodies import Answered
from bootstrap_grpc.compat.closing import Connection
from bootstrap_grpc.compat.config import HttpConfig
from bootstrap_grpc.compat.endpoints import Endpoints
from bootstrap_grpc.compat.habits import Habits
from bootstrap_grpc.compat.listening import bind
from bootstrap_grpc.compat.replies import Closing, Reply, refusal, text_reply
from bootstrap_grpc.compat.wire import Heads, WireReply
from bootstrap_grpc.protos.errors import BootstrapError
from bootstrap_grpc.server.registry import RankRegistry
from bootstrap_grpc.server.rooms import RoomTable

__all__ = ["HttpShim"]

_log = logging.getLogger(__name__)

_BACKLOG = 1_024
_LAST_MOMENT = 0.1
_FAULT = text_reply(500, "Internal error: the log of the bootstrap service has the reason.")
_GONE = text_reply(400, "the connection broke off")  # nobody reads it


class _Refusal(asyncio.Protocol):
    """The end of a connection that came while the shim stopped."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()


class HttpShim:
    """Serves SGLang's HTTP protocol in the running event loop, beside gRPC.

    Make it, ``start`` it and ``stop`` it within one running loop; not thread-safe.
    """

    def __init__(
        self,
        registry: RankRegistry,
        rooms: RoomTable,
        config: HttpConfig | None = None,
        *,
        grpc_port: int,
    ) -> None:
        """``grpc_port`` is the one that was bound: every reply names it."""
        self.config = config or HttpConfig()
        self.port = 0
        """The port that was bound; 0 before ``start``."""
        self._registry = registry
        self._grpc_port = grpc_port
        self._endpoints = Endpoints(registry, rooms, self.config)
        self._habits = Habits(
            time.monotonic,
            learned_for=self.config.learned_for,
            max_peers=self.config.max_peers,
        )
        self._heads = Heads(grpc_port, registry.server_id, lambda: registry.instance_id)
        self._server: web.Server | None = None
        self._listeners: list[asyncio.Server] = []
        self._in_flight: set[Connection] = set()
        self._all_answered = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Bind and serve. Raises ``server.service.BindError``, naming the address."""
        loop = asyncio.get_running_loop()
        sockets = await bind(self.config.host, self.config.port)
        self.port = sockets[0].getsockname()[1]
        self._server = web.Server(self._handle, request_factory=self._request)
        try:
            for sock in sockets:
                listener = await loop.create_server(self._connection, sock=sock, backlog=_BACKLOG)
                self._listeners.append(listener)
        except BaseException:
            for sock in sockets:
                sock.close()
            await self.stop(0)
            raise

    async def stop(self, timeout: float) -> None:
        """Accept no more, let requests in flight finish within ``timeout`` seconds. Idempotent.

        Does nothing before ``start``; a shim that was stopped starts no more.
        """
        if self._server is None:
            return
        if self._stopping is None:
            stop = self._stop(self._server, timeout)
            self._stopping = asyncio.get_running_loop().create_task(stop)
        await asyncio.shield(self._stopping)

    async def _stop(self, server: web.Server, timeout: float) -> None:
        # Before the listeners close: asyncio (3.10 to 3.13) loses a connection that was accepted in
        # the step in which its listener closes, open, and without a word to its protocol.
        loop = asyncio.get_running_loop()
        for sock in (sock for listener in self._listeners for sock in listener.sockets):
            with suppress(RuntimeError):  # uvloop, which has no reader for it
                loop.remove_reader(sock.fileno())
        await asyncio.sleep(0)  # what was accepted in this step gets its turn
        await asyncio.sleep(0)  # and is told so
        for listener in self._listeners:
            listener.close()
        self._endpoints.stop()
        for connection in server.connections:
            cast("Connection", connection).stop_lingering()
            if connection not in self._in_flight:
                connection.force_close()
        # aiohttp's own shutdown drops what arrives from then on, be it the rest of a body.
        deadline = asyncio.get_running_loop().time() + timeout
        if self._in_flight:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._all_answered.wait(), timeout)
        # Replies that are being written have the rest; 0 would mean for ever there.
        left = deadline - asyncio.get_running_loop().time()
        await server.shutdown(max(left, _LAST_MOMENT))
        await asyncio.sleep(0)  # transports close in the step after

    def _connection(self) -> asyncio.Protocol:
        server = self._server
        if server is None or self._stopping is not None:
            return _Refusal()
        return Connection(
            server,
            loop=asyncio.get_running_loop(),
            habits=self._habits,
            keepalive_timeout=self.config.keepalive_timeout,
            first_request_timeout=self.config.first_request_timeout,
            linger=self.config.linger,
            on_error=self._broken,
            no_url=self._no_url,
        )

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        loop, most = asyncio.get_running_loop(), self.config.max_body_bytes
        try:
            return web.BaseRequest(
                message, payload, protocol, writer, task, loop, client_max_size=most
            )
        except ValueError:  # aiohttp 3.9 reads a port such as "http://a:99999/" only here
            message = message._replace(url=URL("/"))  # which is no path of the shim
            return web.BaseRequest(
                message, payload, protocol, writer, task, loop, client_max_size=most
            )

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = cast("Connection", request.protocol)
        connection.begin_request()
        self._in_flight.add(connection)
        closing = Closing.LEARNED
        try:
            operation = self._endpoints.operation(request)
            closing = operation.closing
            reply = await operation.answer(request)
        except BootstrapError as error:
            reply = refusal(error)
        except Answered as answered:
            reply = answered.reply
        except ConnectionError:
            reply = _GONE
        except Exception:  # noqa: BLE001 - the border to the peer, which gets no detail
            _log.exception("fault in %s %s", request.method, request.path)
            reply = _FAULT
        finally:
            self._in_flight.discard(connection)
            if self._stopping is not None and not self._in_flight:
                self._all_answered.set()
        keep = (
            request.keep_alive
            and self._stopping is None
            # What is left of a body would be read as the next request.
            and request.content.is_eof()
            # aiohttp 3.9 stops reading after an upgrade that was declined.
            and "Upgrade" not in request.headers
            and connection.keeps(closing)
        )
        return self._response(reply, request, keep=keep)

    def _response(self, reply: Reply, request: web.BaseRequest, *, keep: bool) -> WireReply:
        head = self._heads.head(reply, request.version, keep=keep)
        data = head if request.method == "HEAD" else head + reply.body
        return WireReply(data, cast("Connection", request.protocol), keep=keep)

    def _broken(
        self, request: web.BaseRequest, status: int, exc: BaseException | None
    ) -> web.StreamResponse:
        """The reply to what is no HTTP request, or to a fault outside of the handlers."""
        if status >= 500:
            _log.error("fault outside of a handler, from %s", request.remote, exc_info=exc)
            return self._response(_FAULT, request, keep=False)
        return self._response(self._not_http(), request, keep=False)

    def _no_url(self) -> bytes:
        reply = self._not_http()
        return self._heads.head(reply, HttpVersion11, keep=False) + reply.body

    def _not_http(self) -> Reply:
        text = f"Not a valid HTTP/1.1 request. gRPC is served on port {self._grpc_port}."
        return text_reply(400, text)
