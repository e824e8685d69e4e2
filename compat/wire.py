"""A reply as bytes.

aiohttp builds a reply header by header, which takes longer than all that the shim does for one.
Nearly every reply here differs from the one before in its length alone, so the rest of its head is
kept, and the whole is one write.
"""

from __future__ import annotations

import string
import time
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

from aiohttp import HttpVersion, HttpVersion10, web

from bootstrap_grpc.compat.closing import Connection, cork
from bootstrap_grpc.compat.replies import Reply

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter

__all__ = ["Heads", "WireReply"]

_HEADER_SAFE = string.punctuation.replace("%", "")


class Heads:
    """Writes the heads of replies, with the headers that every reply of one service has."""

    def __init__(
        self,
        grpc_port: int,
        server_id: str,
        instance_id: Callable[[], str],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``clock`` is that of the ``Date`` header, in seconds since 1970."""
        self._common = (
            "Server: bootstrap-grpc\r\n"
            f"Bootstrap-Grpc-Port: {grpc_port}\r\n"
            f"Bootstrap-Server-Id: {server_id}\r\n"
        )
        self._instance_id = instance_id
        self._instance = ""
        self._clock = clock
        self._second = -1
        self._date = b""
        self._beginnings: dict[tuple[int, str, HttpVersion], bytes] = {}

    def head(self, reply: Reply, version: HttpVersion, *, keep: bool) -> bytes:
        """All that comes before the body."""
        instance = self._instance_id()
        if instance != self._instance:
            self._instance = instance
            self._beginnings.clear()
        kind = (reply.status, reply.content_type, version)
        beginning = self._beginnings.get(kind)
        if beginning is None:
            beginning = self._beginnings[kind] = self._beginning(*kind)
        second = int(self._clock())
        if second != self._second:
            self._second = second
            self._date = formatdate(second, usegmt=True).encode()
        end = b"\r\n"
        if not keep:
            end = b"Connection: close\r\n\r\n"
        elif version == HttpVersion10:
            end = b"Connection: keep-alive\r\n\r\n"
        if reply.headers:
            more = "".join([f"{name}: {value}\r\n" for name, value in reply.headers])
            end = more.encode() + end
        return b"%b%d\r\nDate: %b\r\n%b" % (beginning, len(reply.body), self._date, end)

    def _beginning(self, status: int, content_type: str, version: HttpVersion) -> bytes:
        # Whatever an operator chose: a header carries visible ASCII only.
        instance = quote(self._instance, safe=_HEADER_SAFE)
        return (
            f"HTTP/1.{int(version != HttpVersion10)} {status} {HTTPStatus(status).phrase}\r\n"
            f"Content-Type: {content_type}\r\n"
            f"{self._common}"
            f"{f'Bootstrap-Instance-Id: {instance}{chr(13)}{chr(10)}' if instance else ''}"
            "Content-Length: "
        ).encode()


class WireReply(web.StreamResponse):
    """Bytes for aiohttp to send as a response, and how the connection goes on.

    Where it is not kept the server closes first, with its FIN in the last segment of the reply.
    """

    def __init__(self, data: bytes, connection: Connection, *, keep: bool) -> None:
        # Not super().__init__(): it makes the headers that ``data`` has already.
        self._data = data
        self._connection = connection
        self._keep = keep

    @property
    def keep_alive(self) -> bool | None:
        return self._keep

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        transport = self._connection.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client hung up")
        if not self._keep:
            cork(transport)
        transport.write(self._data)
        if transport.get_write_buffer_size():
            await request.writer.drain()
        return None

    async def write_eof(self, data: bytes = b"") -> None:  # noqa: ARG002 - all is written
        if not self._keep:
            await self._connection.end_writing()
