"""A client of one resolve stream on either of grpcio's stacks: ``stack_client.py HOST:PORT``.

Plain stubs, so that the stacks are compared and not what this project builds on them.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import grpc  # after the path

from bootstrap_grpc.protos import bootstrap_pb2 as pb  # after the path
from bootstrap_grpc.protos import bootstrap_pb2_grpc as rpc  # after the path
from harness.worker import serve_calls  # after the path


class StackClient:
    """The calls: see ``harness.worker``. Each opens a stream and asks for one known room a time."""

    def __init__(self, target: str) -> None:
        self._target = target

    def register(self, base: int, count: int) -> None:
        """Make rooms known that the round trips ask for."""
        with grpc.insecure_channel(self._target) as channel:
            rooms = range(base, base + count)
            request = pb.RegisterDpRanksRequest(rooms=rooms, dp_ranks=[1] * count)
            rpc.BootstrapServiceStub(channel).RegisterDpRanks(request)

    def sync(self, base: int, count: int, pause: float) -> dict[str, Any]:
        """Round trips on the sync stack: requests from a queue, a blocking iterator of answers."""
        threads = threading.active_count()
        with grpc.insecure_channel(self._target) as channel:
            requests: SimpleQueue[Any] = SimpleQueue()
            call = rpc.BootstrapServiceStub(channel).ResolveDpRanks(iter(requests.get, None))
            times = _Times()
            for number in range(count):
                with times.one():
                    requests.put(_request(base, number))
                    next(call)
                time.sleep(pause)
            result = times.result(threading.active_count() - threads)
            requests.put(None)
            call.cancel()
        return result

    def aio(self, base: int, count: int, pause: float) -> dict[str, Any]:
        """The same on the asyncio stack, in a loop of this thread."""
        return asyncio.run(self._aio(base, count, pause))

    async def _aio(self, base: int, count: int, pause: float) -> dict[str, Any]:
        threads = threading.active_count()
        async with grpc.aio.insecure_channel(self._target) as channel:
            call: Any = rpc.BootstrapServiceStub(channel).ResolveDpRanks()
            times = _Times()
            for number in range(count):
                with times.one():
                    await call.write(_request(base, number))
                    await call.read()
                await asyncio.sleep(pause)
            result = times.result(threading.active_count() - threads)
            call.cancel()
        return result

    def calls(self) -> dict[str, Callable[..., Any | Awaitable[Any]]]:
        return {"register": self.register, "sync": self.sync, "aio": self.aio}


class _Times:
    def __init__(self) -> None:
        self._times: list[float] = []
        self._cpu = time.process_time()

    def one(self) -> _Times:
        return self

    def __enter__(self) -> None:
        self._at = time.perf_counter()

    def __exit__(self, *_exc: object) -> None:
        self._times.append(round((time.perf_counter() - self._at) * 1e6, 1))

    def result(self, threads: int) -> dict[str, Any]:
        cpu = (time.process_time() - self._cpu) / len(self._times) * 1e6
        return {"latencies_us": self._times, "cpu_us": cpu, "threads": threads}


def _request(base: int, number: int) -> pb.ResolveDpRanksRequest:
    done = [base + number - 1] if number else []
    return pb.ResolveDpRanksRequest(add=[base + number], drop=done)


if __name__ == "__main__":
    serve_calls(StackClient(sys.argv[1]).calls())
