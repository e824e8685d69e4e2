"""Reading a request's body within its limits."""

from __future__ import annotations

import asyncio

from aiohttp import HttpVersion11, web
from aiohttp.http import HttpProcessingError

from bootstrap_grpc.compat.fields import JsonObject, parse_object
from bootstrap_grpc.compat.replies import Reply, text_reply

__all__ = ["Answered", "BodyReader"]


class Answered(Exception):  # noqa: N818 - not a fault: the reply is known before the handler ran
    """The request was answered where it was read."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class BodyReader:
    """Reads bodies of at most ``most_bytes`` that arrive within ``timeout`` seconds."""

    def __init__(self, most_bytes: int, timeout: float) -> None:
        self._timeout = timeout
        self._too_long = text_reply(413, f"Maximum request body size {most_bytes} exceeded.")
        self.most_bytes = most_bytes

    async def json_object(self, request: web.BaseRequest) -> JsonObject:
        """The JSON object of the body. Raises ``Answered`` and ``BootstrapError``."""
        return parse_object(await self.read(request))

    async def read(self, request: web.BaseRequest) -> bytes:
        """The body. Raises ``Answered``."""
        if (request.content_length or 0) > self.most_bytes:
            raise Answered(self._too_long)
        try:
            if request.content.is_eof():  # nearly always: it came with the headers
                body = request.content.read_nowait()
                if len(body) > self.most_bytes:
                    raise Answered(self._too_long)
                return body
            self._allow(request)
            return await asyncio.wait_for(request.read(), self._timeout)
        except web.HTTPRequestEntityTooLarge:
            raise Answered(self._too_long) from None
        except asyncio.TimeoutError:
            text = f"the body did not arrive within {self._timeout:g} s"
            raise Answered(text_reply(408, text)) from None
        except (web.RequestPayloadError, HttpProcessingError):
            raise Answered(
                text_reply(400, "the body breaks off, or is not encoded as its headers say")
            ) from None

    def _allow(self, request: web.BaseRequest) -> None:
        """Answer ``Expect: 100-continue`` (RFC 9110, 10.1.1): curl waits a second for it."""
        expectation = request.headers.get("Expect")
        if expectation is None or request.version < HttpVersion11:
            return
        if expectation.lower() != "100-continue":
            raise Answered(text_reply(417, f"Unknown Expect: {expectation[:80]}"))
        if request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
