"""What every call has in common: malformed messages, refusals and faults become statuses."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import quote

import grpc

from bootstrap_grpc.protos.errors import BootstrapError, ErrorCode
from bootstrap_grpc.protos.status import (
    ERROR_METADATA_KEY,
    GRPC_STATUS,
    INSTANCE_ID_METADATA_KEY,
    SERVER_ID_METADATA_KEY,
    error_detail,
)

__all__ = ["GuardInterceptor"]

_log = logging.getLogger(__name__)

_MOST_TEXT = 1_024  # a status travels in a header block, which peers limit to 8 KiB


class _Malformed:
    """Stands for a request that is not the message its method takes."""


class GuardInterceptor(grpc.aio.ServerInterceptor):
    """Turns what a handler raises into a status with an ``ErrorDetail``.

    A ``BootstrapError`` becomes its row of ``protos.status``; bytes that are no message become
    INVALID_ARGUMENT; anything else is INTERNAL without detail to the peer, and a log line with
    its traceback here. A handler of a stream is closed before its call ends.
    """

    def __init__(self, server_id: str, instance_id: str) -> None:
        """The ids open every stream, as initial metadata: a client learns at once who answers."""
        self._identity = (
            (SERVER_ID_METADATA_KEY, server_id),
            # Whatever an operator chose: a header carries visible ASCII only.
            (INSTANCE_ID_METADATA_KEY, quote(instance_id)),
        )
        self._guarded: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = handler_call_details.method
        guarded = self._guarded.get(method)
        if guarded is None:
            handler = await continuation(handler_call_details)
            if handler is None:  # no such method: grpc answers UNIMPLEMENTED
                return None
            guarded = self._guarded[method] = _guard(handler, method, self._identity)
        return guarded


def _guard(
    handler: Any, method: str, identity: tuple[tuple[str, str], ...]
) -> grpc.RpcMethodHandler[Any, Any]:
    inner = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )

    async def unary(request: Any, context: Any) -> Any:
        try:
            _check_wellformed(request, method)
            return await inner(request, context)
        except Exception as error:  # noqa: BLE001 - every fault has to end as a status
            await _refuse(context, error, method)

    async def stream(request: Any, context: Any) -> None:
        # Writing from here, not from the handler's generator, closes the generator before the
        # call ends: its `finally` never waits for the garbage collector.
        try:
            if handler.request_streaming:
                request = _wellformed(request, method)
            else:
                _check_wellformed(request, method)
            await context.send_initial_metadata(identity)
            responses = inner(request, context)
            try:
                async for response in responses:
                    await context.write(response)
            finally:
                await responses.aclose()
        except Exception as error:  # noqa: BLE001 - every fault has to end as a status
            await _refuse(context, error, method)

    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    behavior: Any = stream if handler.response_streaming else unary
    return make(
        behavior,
        request_deserializer=_tolerant(handler.request_deserializer),
        response_serializer=_unless_serialised(handler.response_serializer),
    )


def _check_wellformed(request: Any, method: str) -> None:
    if isinstance(request, _Malformed):
        raise BootstrapError.invalid("request", "malformed", f"the message that {method} takes")


async def _wellformed(requests: AsyncIterator[Any], method: str) -> AsyncIterator[Any]:
    async for request in requests:
        _check_wellformed(request, method)
        yield request


def _tolerant(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def tolerant(data: bytes) -> Any:
        try:
            return deserialize(data)
        except Exception:  # noqa: BLE001 - whatever the bytes are, the peer is told, not the log
            return _Malformed()

    return tolerant


def _unless_serialised(serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Lets a handler pass on bytes that it serialised once for many peers."""
    return lambda message: message if isinstance(message, bytes) else serialize(message)


async def _refuse(context: Any, error: Exception, method: str) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if not isinstance(error, BootstrapError):
        _log.error("%s failed", method, exc_info=error)
        error = BootstrapError(ErrorCode.INTERNAL, "internal error; the service's log has it")
    await context.abort(
        GRPC_STATUS[error.code],
        str(error)[:_MOST_TEXT],
        ((ERROR_METADATA_KEY, error_detail(error).SerializeToString()),),
    )
