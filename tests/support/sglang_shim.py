"""Run the whole service, gRPC and HTTP on one registry, as a child of a test or a benchmark.

Its first line on stdout is ``{"http": PORT, "grpc": PORT}``; the end of stdin drains and ends it.
``--busy-us N`` keeps its event loop busy in steps of N microseconds, as a loaded host would: the
loop is never idle, and what becomes ready waits for the step under way. That hook is here, not in
the product.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time

from bootstrap_grpc.compat.config import HttpConfig
from bootstrap_grpc.compat.shim import HttpShim
from bootstrap_grpc.server.service import BootstrapService, ServiceConfig


async def _spin(seconds: float) -> None:
    while True:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass
        await asyncio.sleep(0)


async def _serve(config: HttpConfig, busy_us: int) -> None:
    host = config.host
    service = BootstrapService(ServiceConfig(host=host, grpc_port=0))
    await service.start()
    shim = HttpShim(
        service.registry,
        service.rooms,
        config,
        grpc_port=service.port,
    )
    spinner: asyncio.Task[None] | None = None
    try:
        await shim.start()
        if busy_us:
            spinner = asyncio.create_task(_spin(busy_us / 1e6))
        sys.stdout.write(json.dumps({"http": shim.port, "grpc": service.port}) + "\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    finally:
        if spinner:
            spinner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await spinner
        await shim.stop(1.0)
        await service.drain(1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--http", default="{}", help="fields of HttpConfig, as a JSON object")
    parser.add_argument("--busy-us", type=int, default=0)
    arguments = parser.parse_args()
    fields = {
        name: frozenset(value) if isinstance(value, list) else value
        for name, value in json.loads(arguments.http).items()
    }
    config = HttpConfig(**{"host": arguments.host, "port": 0, **fields})
    asyncio.run(_serve(config, arguments.busy_us))


if __name__ == "__main__":
    main()
