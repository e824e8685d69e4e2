"""The standard ``grpc.health.v1.Health`` service, without a companion package.

grpcio-health-checking ties grpcio and protobuf to its own release line, which breaks engine
environments (operator case 15b), and generating its .proto a second time would collide with it
in the descriptor pool. Its two messages are one field each, so protobuf's own wrapper types
read and write them: ``HealthCheckRequest{string service = 1}`` is a ``StringValue`` on the
wire, ``HealthCheckResponse{enum status = 1}`` an ``Int32Value``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from enum import IntEnum
from typing import Any

import grpc
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

__all__ = ["Health", "ServingStatus"]


class ServingStatus(IntEnum):
    """``grpc.health.v1.HealthCheckResponse.ServingStatus``."""

    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class Health:
    """Answers ``Check`` and ``Watch`` for the server ("") and for each named service alike.

    NOT_SERVING until ``set(ServingStatus.SERVING)``. Belongs to one event loop.
    """

    def __init__(self, *services: str) -> None:
        self._services = frozenset(("", *services))
        self._status = ServingStatus.NOT_SERVING
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closed = False

    def set(self, status: ServingStatus) -> None:
        """Change the status and tell every watcher."""
        self._status = status
        self._wake()

    def close(self) -> None:
        """End every ``Watch`` after its last status."""
        self._closed = True
        self._wake()

    def handler(self) -> grpc.GenericRpcHandler:
        """For ``server.add_generic_rpc_handlers``."""
        codec: dict[str, Any] = {
            "request_deserializer": StringValue.FromString,
            "response_serializer": Int32Value.SerializeToString,
        }
        check: Any = self._check
        watch: Any = self._watch
        return grpc.method_handlers_generic_handler(
            "grpc.health.v1.Health",
            {
                "Check": grpc.unary_unary_rpc_method_handler(check, **codec),
                "Watch": grpc.unary_stream_rpc_method_handler(watch, **codec),
            },
        )

    def _wake(self) -> None:
        done, self._changed = self._changed, asyncio.get_running_loop().create_future()
        done.set_result(None)

    async def _check(self, request: Any, context: Any) -> Any:
        if request.value not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return Int32Value(value=self._status)

    async def _watch(self, request: Any, _context: Any) -> AsyncIterator[Any]:
        known = request.value in self._services
        told: ServingStatus | None = None
        while True:
            status = self._status if known else ServingStatus.SERVICE_UNKNOWN
            if status is not told:
                told = status
                yield Int32Value(value=status)
            elif self._closed:
                return
            else:
                await asyncio.shield(self._changed)
