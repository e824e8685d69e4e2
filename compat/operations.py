"""What answers a request, and who closes its connection afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

from aiohttp import web

from bootstrap_grpc.compat.closing import Connection
from bootstrap_grpc.compat.replies import Closing, Reply

__all__ = ["Answer", "Operation", "Target", "connection_of", "fixed", "target"]

Answer: TypeAlias = Callable[[web.BaseRequest], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Operation:
    """What answers a request, and who closes its connection afterwards."""

    answer: Answer
    closing: Closing


@dataclass(frozen=True, slots=True)
class Target:
    """One path, with its query: an operation for each method and one for any other."""

    operations: Mapping[str, Operation]
    otherwise: Operation


def fixed(reply: Reply) -> Answer:
    """Always the same reply."""

    async def answer(_: web.BaseRequest) -> Reply:
        return reply

    return answer


def target(operations: Mapping[str, Operation]) -> Target:
    """A path that refuses other methods as aiohttp's router does, which SGLang's server shows."""
    allow = (("Allow", ",".join(operations)),)
    refused = Reply(405, b"405: Method Not Allowed", headers=allow)
    return Target(operations, Operation(fixed(refused), Closing.LEARNED))


def connection_of(request: web.BaseRequest) -> Connection:
    """The connection that ``request`` came on."""
    return cast("Connection", request.protocol)
