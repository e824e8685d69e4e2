"""SGLang's own server with its insides on show, and its clients: ``sglang_probe.py FOLDER``.

FOLDER holds the release, as ``install_release`` returns it.

The server is filled by its own request handlers, called in its loop without a socket between, so
that a million rooms do not take half an hour.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True  # the cache holds the release as it was published
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil  # noqa: E402 # after the path

from harness.load import DP_RANKS, ROOMS  # noqa: E402 # after the path
from harness.stalls import StallWatch  # noqa: E402 # after the path
from harness.worker import serve_calls  # noqa: E402 # after the path
from support.sglang_roles import Engine, LogCapture, PrefillRank, Server  # noqa: E402 # after the path


@dataclass(frozen=True, slots=True)
class _Request:
    """As much of an aiohttp request as the handler reads."""

    body: dict[str, int]

    async def json(self) -> dict[str, int]:
        return self.body


class SglangProbe:
    """The calls: see ``harness.worker``."""

    def __init__(self, root: Path) -> None:
        self._log = LogCapture().install()
        self._engine = Engine(root)
        self._process = psutil.Process()
        self._watch = StallWatch()
        self._server: Server | None = None

    def calls(self) -> dict[str, Callable[..., Any]]:
        return {
            "serve": self.serve,
            "hold_rooms": self.hold_rooms,
            "expire": self.expire,
            "stats": self.stats,
            "register_ranks": self.register_ranks,
            "time_topology": self.time_topology,
        }

    def serve(self) -> str:
        """Start the server and watch its loop; return its address."""
        self._server = self._engine.serve("127.0.0.1")
        self._inner()._loop.call_soon_threadsafe(self._watch.start)
        return f"127.0.0.1:{self._server.port}"

    def hold_rooms(self, *, begin: int, end: int) -> float:
        """Have the server hold ``end`` rooms rather than ``begin``; the seconds that took."""
        server = self._inner()

        async def fill() -> None:
            for number in range(begin, end):
                room = ROOMS.start + number
                body = {"bootstrap_room": room, "dp_rank": room % DP_RANKS}
                await server._handle_register_dp_rank(_Request(body))
                if number % 100 == 0:
                    await asyncio.sleep(0)

        start = time.perf_counter()
        asyncio.run_coroutine_threadsafe(fill(), server._loop).result()
        return time.perf_counter() - start

    def expire(self) -> tuple[float, float]:
        """Let every room end by SGLang's own clean-up; what ``StallWatch.take`` says of it."""
        server = self._inner()
        server.entry_cleanup_interval = 0.1

        async def clean_up() -> None:
            task = asyncio.create_task(server._cleanup_expired_entries())
            while server.room_to_dp_rank:  # noqa: ASYNC110 # SGLang tells nobody
                await asyncio.sleep(0.1)
            task.cancel()

        time.sleep(0.2)
        self._watch.take()
        asyncio.run_coroutine_threadsafe(clean_up(), server._loop).result()
        return self._watch.take()

    def stats(self) -> dict[str, Any]:
        times = self._process.cpu_times()
        return {
            "rss": self._process.memory_info().rss,
            "cpu_seconds": times.user + times.system,
            "held": len(self._inner().room_to_dp_rank) if self._server else 0,
        }

    def register_ranks(self, *, address: str, tp: int, dp: int) -> float:
        """Register every rank, one after the other; the seconds that took."""
        template = PrefillRank(sizes=(tp, 1, dp, 1))
        start = time.perf_counter()
        for dp_rank, tp_rank in product(range(dp), range(tp)):
            self._engine.register(address, replace(template, ranks=(tp_rank, 0, dp_rank, 0)))
        seconds = time.perf_counter() - start
        if lines := self._log.take():
            raise RuntimeError("; ".join(lines[:3]))
        return seconds

    def time_topology(self, *, address: str, tp: int, dp: int, count: int) -> list[float]:
        """Read the topology; the microseconds of each time."""
        decode = self._engine.decode(address, (tp, 1, dp, 1))
        times: list[float] = []
        for _ in range(count):
            start = time.perf_counter()
            if decode.topology() is None:
                raise RuntimeError("; ".join(self._log.take()[:3]))
            times.append(round((time.perf_counter() - start) * 1e6, 1))
        return times

    def _inner(self) -> Any:
        if self._server is None:
            raise RuntimeError("there is no server")
        return self._server._server


def main() -> None:
    serve_calls(SglangProbe(Path(sys.argv[1])).calls())


if __name__ == "__main__":
    main()
