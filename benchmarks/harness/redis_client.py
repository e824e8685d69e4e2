"""A client process of the Redis yardstick: ``redis_client.py PORT``.

As favourable to Redis as can be: what is due together goes out as one pipeline of MSET and
PUBLISH, and the subscriber waits in the kernel and looks nothing up.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from redis import Redis  # after the path

from harness.pacing import Arrivals, Stamps  # after the path
from harness.worker import serve_calls  # after the path

CHANNEL = "rooms"
DP_RANKS = 8


class RedisClient:
    """The calls: see ``harness.worker``. The same as those of ``room_client``."""

    def __init__(self, port: int) -> None:
        self._redis = Redis("127.0.0.1", port)

    def calls(self) -> dict[str, Callable[..., Any]]:
        return {
            "warm_up": self.warm_up,
            "publish": self.publish,
            "resolve": self.resolve,
            "forget": self.forget,
        }

    def warm_up(self, room: int) -> bool:
        """Connect."""
        del room
        return bool(self._redis.ping())

    def forget(self) -> None:
        """Drop every room, so that each run finds the same server."""
        self._redis.flushall()

    def publish(
        self, *, stamps: str, base: int, rate: float, count: int, start_ns: int
    ) -> dict[str, Any]:
        """Publish at ``rate``; returns how long the offer took."""
        clock = time.monotonic_ns
        with Stamps(Path(stamps), count) as published:
            times = published.times
            for due in Arrivals(rate, count, start_ns).paced():
                rooms = {}
                for number in due:
                    times[number] = clock()
                    rooms[base + number] = number % DP_RANKS
                pipeline = self._redis.pipeline(transaction=False)
                pipeline.mset(rooms)
                pipeline.publish(CHANNEL, " ".join(f"{room}:{rooms[room]}" for room in rooms))
                pipeline.execute()
        return {"offered_seconds": (clock() - start_ns) / 1e9, "stored": True, "dropped": 0}

    def resolve(
        self, *, stamps: str, base: int, rate: float, count: int, start_ns: int, patience: float
    ) -> dict[str, Any]:
        """Listen until every room has come."""
        resolved: dict[int, int] = {}
        wrong = 0
        deadline = start_ns + int((count / rate + patience) * 1e9)
        with self._redis.pubsub(ignore_subscribe_messages=True) as channel:
            channel.subscribe(CHANNEL)
            while len(resolved) < count and time.monotonic_ns() < deadline:
                message = channel.get_message(timeout=0.5)
                if message is None:
                    continue
                rooms = message["data"].split()
                now = time.monotonic_ns()
                for text in rooms:
                    room, _, dp_rank = text.partition(b":")
                    number = int(room) - base
                    resolved.setdefault(number, now)
                    wrong += int(dp_rank) != number % DP_RANKS
        ended = time.monotonic_ns()
        with Stamps(Path(stamps), count) as published:
            times = published.times
            latencies = [round((at - times[n]) / 1000, 1) for n, at in resolved.items()]
        return {
            "latencies_us": latencies,
            "lost": count - len(resolved),
            "repeated": 0,
            "wrong": wrong,
            "seconds": (ended - start_ns) / 1e9,
        }


def main() -> None:
    serve_calls(RedisClient(int(sys.argv[1])).calls())


if __name__ == "__main__":
    main()
