"""A client process of this project for the room benchmarks: ``room_client.py HOST:PORT``."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bootstrap_grpc.client import BootstrapClient  # after the path
from harness.pacing import Arrivals, Stamps  # after the path
from harness.worker import serve_calls  # after the path

POLL_INTERVAL = 0.0001
"""Seconds that a resolving process sleeps between two polls."""

DP_RANKS = 8

STEP_SECONDS = 0.005
"""A scheduler's step: Python that holds the interpreter lock all the time."""

STEP_SPREAD = 0.2
"""How much a step may be longer or shorter. Without it every step would end when the interpreter's
switch interval does, which is 5 ms, too, and every poll would meet another thread's turn."""


class RoomClient:
    """The calls: see ``harness.worker``. Rooms are ``base`` plus the number of their arrival."""

    def __init__(self, target: str) -> None:
        self._client = BootstrapClient(target)
        self._resolver = self._client.resolver()
        self._publisher = self._client.publisher()
        self._rounds = 0

    def calls(self) -> dict[str, Callable[..., Any]]:
        return {
            "warm_up": self.warm_up,
            "publish": self.publish,
            "resolve": self.resolve,
            "ask": self.ask,
            "discard": self.discard,
            "calibrate": self.calibrate,
            "steps": self.steps,
        }

    def warm_up(self, room: int) -> bool:
        """Open both streams, by a room of its own; false where that takes too long."""
        self._resolver.submit([room])
        self._publisher.publish(room, 0)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if self._resolver.poll():
                return True
            time.sleep(0.001)
        return False

    def publish(
        self, *, stamps: str, base: int, rate: float, count: int, start_ns: int
    ) -> dict[str, Any]:
        """Publish at ``rate``; returns how long the offer took and whether all was stored."""
        publish, clock = self._publisher.publish, time.monotonic_ns
        with Stamps(Path(stamps), count) as published:
            times = published.times
            for due in Arrivals(rate, count, start_ns).paced():
                for number in due:
                    times[number] = clock()
                    publish(base + number, number % DP_RANKS)
        offered = (clock() - start_ns) / 1e9
        return {
            "offered_seconds": offered,
            "stored": self._publisher.flush(30),
            "dropped": self._publisher.dropped,
        }

    def resolve(
        self, *, stamps: str, base: int, rate: float, count: int, start_ns: int, patience: float
    ) -> dict[str, Any]:
        """Submit at ``rate`` from ``start_ns`` on, and poll until every room was answered.

        :param patience: seconds after the last arrival until what is missing counts as lost.
        """
        submit, poll, clock = self._resolver.submit, self._resolver.poll, time.monotonic_ns
        arrivals = Arrivals(rate, count, start_ns)
        resolved: dict[int, int] = {}
        repeated = wrong = 0
        deadline = start_ns + int((count / rate + patience) * 1e9)
        while len(resolved) < count and clock() < deadline:
            if due := arrivals.due():
                submit(range(base + due.start, base + due.stop))
            if known := poll():
                now = clock()
                for room, dp_rank in known.items():
                    number = room - base
                    repeated += number in resolved
                    resolved.setdefault(number, now)
                    wrong += dp_rank != number % DP_RANKS
            time.sleep(POLL_INTERVAL)
        ended = clock()
        with Stamps(Path(stamps), count) as published:
            times = published.times
            latencies = [round((at - times[n]) / 1000, 1) for n, at in resolved.items()]
        self._resolver.discard([base + n for n in range(count) if n not in resolved])
        return {
            "latencies_us": latencies,
            "lost": count - len(resolved),
            "repeated": repeated,
            "wrong": wrong,
            "seconds": (ended - start_ns) / 1e9,
        }

    def ask(self, *, base: int, count: int, seconds: float) -> int:
        """Submit rooms that nobody registers and poll for ``seconds``; how many were answered."""
        self._resolver.submit(range(base, base + count))
        answered = 0
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            answered += len(self._resolver.poll())
            time.sleep(STEP_SECONDS)
        return answered

    def discard(self, *, base: int, count: int) -> None:
        """Ask no longer for what ``ask`` submitted."""
        self._resolver.discard(range(base, base + count))

    def calibrate(self) -> None:
        """Find out how much work ``STEP_SECONDS`` are."""
        self._rounds = 1_000
        while True:
            took = min(self._step() for _ in range(5))
            if abs(took - STEP_SECONDS) < STEP_SECONDS / 50:
                return
            self._rounds = max(1, int(self._rounds * STEP_SECONDS / took))

    def steps(
        self,
        *,
        live: str,
        base: int,
        rate: float,
        pending: int,
        seconds: float,
        start_ns: int,
    ) -> dict[str, Any]:
        """Run a scheduler's loop: what arrived, one poll, one CPU-bound step.

        :param live: ``resolver``: submit what arrives and poll, with ``pending`` rooms on their
            way; ``publisher``: publish what arrives; ``nothing``: the steps alone.
        """
        count = int(rate * seconds)
        arrivals = Arrivals(rate, count, start_ns)
        lengths = Random(1)  # the same in every block
        calls: dict[str, list[float]] = {"poll": [], "submit": [], "publish": []}
        steps: list[float] = []
        backlog: list[int] = []
        known = 0
        if live == "resolver":
            self._resolver.submit(range(base, base + pending))
            base += pending
        time.sleep(max(0.0, (start_ns - time.monotonic_ns()) / 1e9))
        while arrivals.left:
            due = arrivals.due()
            if live == "resolver":
                before = time.perf_counter()
                answers = self._resolver.poll()
                after = time.perf_counter()
                calls["poll"].append((after - before) * 1e6)
                known += len(answers)
                backlog.append(len(self._resolver))
                if due:
                    rooms = list(range(base + due.start, base + due.stop))
                    before = time.perf_counter()
                    self._resolver.submit(rooms)
                    calls["submit"].append((time.perf_counter() - before) * 1e6)
            elif live == "publisher":
                for number in due:
                    before = time.perf_counter()
                    self._publisher.publish(base + number, number % DP_RANKS)
                    calls["publish"].append((time.perf_counter() - before) * 1e6)
            length = lengths.uniform(1 - STEP_SPREAD, 1 + STEP_SPREAD)
            steps.append(self._step(length) / length * 1e6)
        if live == "publisher":
            self._publisher.flush(10)
        return {"calls_us": calls, "steps_us": steps, "known": known, "pending": backlog}

    def _step(self, length: float = 1.0) -> float:
        rounds = int(self._rounds * length)
        start = time.perf_counter()
        table = dict.fromkeys(range(256), 0)
        for number in range(rounds):
            table[number & 255] = (table[number & 127] + number * 3) % 1021
        return time.perf_counter() - start


def main() -> None:
    # One line each on stderr, where the benchmark counts them.
    logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
    serve_calls(RoomClient(sys.argv[1]).calls())


if __name__ == "__main__":
    main()
