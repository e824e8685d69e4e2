"""A decode scheduler on asyncio in a few lines: which DP rank took each room, and where it is.

Run ``bootstrap-grpc serve``, register a rank (``examples/engine_with_stubs.py``), then this:

    python examples/asyncio_scheduler.py 127.0.0.1:18998 42 43
"""

from __future__ import annotations

import asyncio
import sys

from bootstrap_grpc.client import AsyncBootstrapClient, RankKey


async def schedule(target: str, rooms: list[int]) -> None:
    """Print the address that each room's KV cache comes from."""
    async with AsyncBootstrapClient(target) as client:
        topology = client.topology_cache()
        resolver = client.resolver()
        resolver.submit(rooms, timeout=30)
        left = set(rooms)
        while left:
            # A real scheduler calls poll() in each turn of its loop instead: it never waits.
            known = await resolver.wait(1.0)
            # Topology and rooms come over two streams: either may be the first.
            current = await topology.wait_ready(30) if known else None
            routes = {route.key: route for route in current.routes} if current else {}
            for room, dp_rank in known.items():
                route = routes.get(RankKey(dp_rank=dp_rank))
                where = f"{route.rank_ip}:{route.rank_port}" if route else "no route yet"
                sys.stdout.write(f"room {room}: DP rank {dp_rank} at {where}\n")
            expired = set(resolver.expired())
            for room in sorted(expired):
                sys.stdout.write(f"room {room}: nobody took it\n")
            left -= known.keys() | expired


if __name__ == "__main__":
    asyncio.run(schedule(sys.argv[1], [int(room) for room in sys.argv[2:]]))
