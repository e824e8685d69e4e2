"""The real service in the real event loop, with its insides on show: ``service_probe.py``.

Serves gRPC on a free port of loopback, with the product's defaults. The counters are here, not in
the product.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil  # after the path

from bootstrap_grpc.server.service import BootstrapService, ServiceConfig  # after the path
from harness.limits import raise_file_limit  # after the path
from harness.stalls import StallWatch  # after the path

RPCS = (
    *("RegisterRank", "HoldRank", "DeregisterRank", "GetTopology", "GetRoute", "WatchTopology"),
    *("RegisterDpRanks", "QueryDpRanks", "PublishDpRanks", "ResolveDpRanks"),
)


class Probe:
    """The calls: see ``harness.worker``. They run in the service's loop."""

    def __init__(self, service: BootstrapService) -> None:
        self._service = service
        self._process = psutil.Process()
        self._calls: Counter[str] = Counter()
        self._watch = StallWatch()
        for name in RPCS:
            self._count(name)

    def _count(self, name: str) -> None:
        servicer: Any = self._service._servicer
        handler = getattr(servicer, name)

        def counted(request: Any, context: Any) -> Any:
            self._calls[name] += 1
            return handler(request, context)

        # An instance attribute is found before the method when the servicer is registered. The
        # coroutine or the async iterator that the handler gives is passed on as it is.
        setattr(servicer, name, _like(handler, counted))

    def port(self) -> int:
        return self._service.port

    def watch_stalls(self) -> None:
        """Measure from now on how long the loop holds up others."""
        self._watch.start()

    def stats(self) -> dict[str, Any]:
        """Memory, CPU and counts now; the stalls are those since the last call."""
        worst, worst_cpu = self._watch.take()
        times, waiting = self._process.cpu_times(), self._service.waiting
        return {
            "rss": self._process.memory_info().rss,
            "cpu_seconds": times.user + times.system,
            "at": time.monotonic(),
            "calls": dict(self._calls),
            "held": len(self._service.rooms),
            "expired": self._service.rooms.stats.expired,
            "waiting": len(waiting),
            # A set where several streams wait for one room: see ``WaitingRooms``.
            "waiters": sum(
                len(waiter) if isinstance(waiter, set) else 1
                for waiter in waiting._waiters.values()
            ),
            "streams": len(self._service._servicer._open),
            "registered": self._service.registry.registered,
            "stall_ms": worst,
            "stall_cpu_ms": worst_cpu,
            "tasks": len(asyncio.all_tasks()),
        }


def _like(handler: Any, counted: Any) -> Any:
    """``counted``, of the kind that grpc.aio takes ``handler`` for."""
    if asyncio.iscoroutinefunction(handler):

        async def unary(request: Any, context: Any) -> Any:
            return await counted(request, context)

        return unary

    async def stream(request: Any, context: Any) -> Any:
        async for response in counted(request, context):
            yield response

    return stream


async def serve(config: ServiceConfig) -> None:
    service = BootstrapService(config)
    probe = Probe(service)
    await service.start()
    gc.collect()  # these two as ``bootstrap-grpc serve`` does
    gc.freeze()
    print(json.dumps({"ready": True, "port": service.port, "rpcs": RPCS}), flush=True)
    loop = asyncio.get_running_loop()
    try:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            request = json.loads(line)
            value = getattr(probe, request["call"])(**request["with"])
            print(json.dumps({"value": value}), flush=True)
    finally:
        await service.drain(1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--room-lifetime", type=float, default=360.0)
    arguments = parser.parse_args()
    raise_file_limit()
    asyncio.run(serve(ServiceConfig(grpc_port=0, room_lifetime=arguments.room_lifetime)))


if __name__ == "__main__":
    main()
