"""Many ResolveDpRanks streams, each on a connection of its own: ``holders.py HOST:PORT``.

Stands for as many decode processes, one stream each. Raw streams, so that what is measured is the
server; the channel arguments are the client library's.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import grpc  # after the path

from bootstrap_grpc.client.config import ClientConfig, channel_options  # after the path
from bootstrap_grpc.protos import bootstrap_pb2 as pb  # after the path
from bootstrap_grpc.protos import bootstrap_pb2_grpc as rpc  # after the path
from harness.limits import raise_file_limit  # after the path
from harness.worker import serve_calls  # after the path

_T = TypeVar("_T")

_AT_ONCE = 50
"""Streams that are opened at the same time."""


class Holders:
    """The calls: see ``harness.worker``."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._held: list[tuple[grpc.aio.Channel, Any]] = []

    def calls(self) -> dict[str, Callable[..., Any]]:
        methods = (self.hold, self.add, self.receive, self.add_and_drop, self.cancel, self.close)
        return {method.__name__: self._running(method) for method in methods}

    def _running(self, method: Callable[..., Coroutine[Any, Any, _T]]) -> Callable[..., _T]:
        return lambda **arguments: self._loop.run_until_complete(method(**arguments))

    async def hold(self, *, count: int) -> None:
        """Have ``count`` streams open in all."""
        opening = range(len(self._held), count)
        self._held += await _in_groups([self._open() for _ in opening])

    async def _open(self) -> tuple[grpc.aio.Channel, Any]:
        channel = self._channel()
        call = rpc.BootstrapServiceStub(channel).ResolveDpRanks(wait_for_ready=True)
        await call.initial_metadata()
        return channel, call

    async def add(self, *, room: int) -> None:
        """Have every stream wait for ``room``."""
        message = pb.ResolveDpRanksRequest(add=[room])
        await asyncio.gather(*[call.write(message) for _, call in self._held])

    async def receive(self) -> dict[str, Any]:
        """Wait for one answer on every stream, and drop its room; times are monotonic."""

        async def one(call: Any) -> int:
            answer = await call.read()
            at = time.monotonic_ns()
            await call.write(pb.ResolveDpRanksRequest(drop=answer.rooms))
            return at if len(answer.rooms) == 1 else 0

        times = await asyncio.gather(*[one(call) for _, call in self._held])
        return {"last_ns": max(times), "wrong": times.count(0)}

    async def add_and_drop(self, *, pairs: int, batch: int, base: int) -> None:
        """Add and drop ``pairs`` rooms on one stream, ``batch`` a message."""
        channel = self._channel()
        async with channel:
            call: Any = rpc.BootstrapServiceStub(channel).ResolveDpRanks(wait_for_ready=True)
            added: range = range(0)
            for start in range(base, base + pairs, batch):
                adding = range(start, start + batch)
                await call.write(pb.ResolveDpRanksRequest(add=adding, drop=added))
                added = adding
            await call.write(pb.ResolveDpRanksRequest(drop=added))
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass

    async def cancel(self, *, count: int, rooms: int, base: int) -> None:
        """Open ``count`` streams over one connection, add ``rooms`` to each, and cancel it."""
        async with self._channel() as channel:
            stub = rpc.BootstrapServiceStub(channel)

            async def one(number: int) -> None:
                call: Any = stub.ResolveDpRanks(wait_for_ready=True)
                await call.initial_metadata()
                first = base + number * rooms
                await call.write(pb.ResolveDpRanksRequest(add=range(first, first + rooms)))
                call.cancel()

            await _in_groups([one(number) for number in range(count)])

    async def close(self) -> None:
        """End every stream that is held."""
        for channel, call in self._held:
            call.cancel()
            await channel.close()
        self._held.clear()

    def _channel(self) -> grpc.aio.Channel:
        own = ("grpc.use_local_subchannel_pool", 1)  # else channels to one target share a socket
        return grpc.aio.insecure_channel(
            self._target, options=[*channel_options(ClientConfig()), own]
        )


async def _in_groups(coroutines: list[Coroutine[Any, Any, _T]]) -> list[_T]:
    done: list[_T] = []
    for start in range(0, len(coroutines), _AT_ONCE):
        done += await asyncio.gather(*coroutines[start : start + _AT_ONCE])
    return done


def main() -> None:
    raise_file_limit()
    serve_calls(Holders(sys.argv[1]).calls())


if __name__ == "__main__":
    main()
