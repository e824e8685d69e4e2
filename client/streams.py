"""Drives the long-lived streams: opens them, feeds them, and opens them again after a break.

Coroutines for one event loop each, used alike by the background thread and by asyncio hosts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import grpc

from bootstrap_grpc.client.backoff import Backoff
from bootstrap_grpc.client.config import STREAM_DEADLINE
from bootstrap_grpc.client.connection import Connection
from bootstrap_grpc.client.errors import BootstrapError, NoContact, from_rpc
from bootstrap_grpc.client.publishing import PublisherLogic
from bootstrap_grpc.client.resolving import ResolverLogic
from bootstrap_grpc.protos.status import SERVER_ID_METADATA_KEY

__all__ = ["Deliver", "publish_stream", "resolve_stream"]

Deliver = Callable[[dict[int, int]], None]

GATHER_PUBLISHED = 0.0007
"""Least seconds between two messages of a publish stream. What a message costs is itself, not the
rooms in it: at 2,000 rooms/s one for each room would keep two cores busy, and a queue would grow
where nothing gathers."""

GATHER_ASKED = 0.002
"""The same of a resolve stream, whose rooms are mostly asked for before they are published."""

GATHER_BUSY = 0.01
"""The same where the host's own Python keeps the interpreter's lock. Every turn that a stream takes
then is taken from the host, so there are to be few."""

_LATE = 0.003
"""Seconds after which a turn is late; an interpreter whose lock is kept lends it after 5 ms."""

_LATE_OF = 8
"""Turns over which the share of late ones is taken."""

_BUSY = 0.3
"""Share of late turns that makes a busy host; on a loaded machine one is late now and then."""

_LASTED = 1.0
"""Seconds after which a stream counts as a success, so that the next one need not back off."""

_log = logging.getLogger("bootstrap_grpc.client")


async def resolve_stream(
    logic: ResolverLogic,
    wake: asyncio.Event,
    deliver: Deliver,
    connection: Connection,
) -> None:
    """Ask for what ``logic`` has pending and ``deliver`` the answers, until cancelled.

    ``wake`` is to be set when ``logic`` has something new to say.
    """

    async def converse(call: Any, _server_id: str) -> None:
        logic.on_connect()
        async with _writing(call, logic.take_message, wake, GATHER_ASKED):
            while (answer := await call.read()) is not grpc.aio.EOF:
                if answers := logic.on_answers(answer.rooms, answer.dp_ranks):
                    deliver(answers)
                wake.set()

    await _keep_open(converse, connection, "ResolveDpRanks")


async def publish_stream(
    logic: PublisherLogic,
    wake: asyncio.Event,
    on_acknowledged: Callable[[], None],
    connection: Connection,
) -> None:
    """Send what ``logic`` has to say until cancelled; ``on_acknowledged`` after each answer."""

    async def converse(call: Any, server_id: str) -> None:
        logic.on_connect(server_id)
        async with _writing(call, logic.take_message, wake, GATHER_PUBLISHED):
            while (answer := await call.read()) is not grpc.aio.EOF:
                logic.on_acknowledged(answer.sequence)
                wake.set()
                on_acknowledged()

    await _keep_open(converse, connection, "PublishDpRanks")


async def _keep_open(
    converse: Callable[[Any, str], Awaitable[None]],
    connection: Connection,
    method: str,
) -> None:
    """Open a stream, ``converse`` over it until it breaks, wait a moment, and again."""
    backoff = Backoff()
    clock = asyncio.get_running_loop().time
    target = str(connection.target)
    while True:
        opened_at = clock()
        open_stream = getattr(connection.stub(), method)
        call = open_stream(timeout=STREAM_DEADLINE, wait_for_ready=True)
        error: BootstrapError | NoContact
        try:
            # The service sends its metadata at once: from here on the stream is live.
            metadata: dict[str, str] = dict(await call.initial_metadata() or ())
            opened_at = clock()
            await converse(call, metadata.get(SERVER_ID_METADATA_KEY, ""))
            error = NoContact(target, "the service ended the stream")
        except grpc.RpcError as rpc_error:
            error = from_rpc(rpc_error, target)
        finally:
            call.cancel()
        if clock() - opened_at >= _LASTED:
            backoff.reset()
        connection.budget.warn(_log, f"{method}: {error}; trying again")
        await asyncio.sleep(backoff.next_delay())


@contextlib.asynccontextmanager
async def _writing(
    call: Any, take_message: Callable[[], Any], wake: asyncio.Event, least: float
) -> AsyncGenerator[None, None]:
    clock = asyncio.get_running_loop().time

    async def write() -> None:
        gather, late_share = least, 0.0
        while True:
            await wake.wait()
            wake.clear()
            while (message := take_message()) is not None:
                await call.write(message)
                slept_at = clock()
                await asyncio.sleep(gather)
                late = clock() - slept_at - gather > _LATE
                late_share += (late - late_share) / _LATE_OF
                gather = GATHER_BUSY if late_share > _BUSY else least

    wake.set()
    writer = asyncio.get_running_loop().create_task(write())
    try:
        yield
    finally:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
