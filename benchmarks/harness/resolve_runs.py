"""The runs of ``benchmarks/resolve.py``. Each starts what it needs and stops it again."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from harness.load import LoadProcess
from harness.pacing import Stamps
from harness.paired import percentile, turns
from harness.redis_yardstick import run_redis
from harness.servers import run_sglang
from harness.worker import Worker
from support.serve import serving
from support.sglang_release import NEWEST, install_release

__all__ = [
    "BURST_RATE",
    "LOOP_RATE",
    "PENDING",
    "RATES",
    "Burst",
    "Loop",
    "RateRun",
    "Silence",
    "run_burst",
    "run_loop",
    "run_rates",
    "run_silence",
]

PENDING = 64
LOOP_RATE = 2_000
"""Rooms a second that arrive at a scheduler."""

RATES = (500, 2_000, 20_000)
BURST_RATE = 100_000

LEAD = PENDING / LOOP_RATE
"""Seconds from a room's submission to its publication."""

_PATIENCE = 10.0
"""Seconds after the last arrival until an answer counts as lost."""

Report = Callable[[str], None]
"""Told what begins."""

_bases = itertools.count(1)


def _new_base() -> int:
    """The first room of a run: no two runs share a room."""
    return next(_bases) * 10_000_000


# --- the scheduler's loop ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loop:
    """What a scheduler's loop paid, in microseconds over all blocks."""

    poll_p50: float
    poll_p99: float
    submit_p50: float
    submit_p99: float
    publish_p50: float
    publish_p99: float
    sglang_query_p50: float
    sglang_query_p99: float
    sglang_failures: int
    queries: int
    polls: int
    publishes: int
    pending: float
    """Rooms on their way at a poll, median."""
    resolver_slow_down: float
    """A 5 ms step with the resolver live over one without: median of the pairs' ratios of
    medians."""
    publisher_slow_down: float
    resolver_slow_down_mean: float
    """The same with means in place of medians: what the loop loses in all."""
    publisher_slow_down_mean: float


def run_loop(pairs: int, seconds: float, queries: int, report: Report) -> Loop:
    """Run a decode's loop, a prefill's, and SGLang's query, in turns."""
    live: dict[str, list[dict[str, Any]]] = {"resolver": [], "publisher": []}
    bare: dict[str, list[dict[str, Any]]] = {"resolver": [], "publisher": []}
    polled: list[float] = []
    failures = 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(serving(folder, "--log-level", "warning"))
        sglang = stack.enter_context(run_sglang(NEWEST, host="127.0.0.1"))
        polling = LoadProcess(f"127.0.0.1:{sglang.http}", install_release(NEWEST))
        stack.enter_context(polling)
        scheduler, prefill = _clients(stack, server.grpc)
        scheduler.call("calibrate")
        polling.begin("query", queries)  # connects and warms up
        polling.finish()

        def block(side: str, *, on: bool) -> None:
            report(f"scheduler's loop with the {side} {'live' if on else 'idle'}")
            base = _new_base()
            start_ns = time.monotonic_ns() + 100_000_000
            if side == "resolver":
                count = int((seconds + LEAD) * LOOP_RATE)
                prefill.begin("publish", **_run(folder, base, LOOP_RATE, count, start_ns))
            scheduler.begin(
                "steps",
                live=side if on else "nothing",
                base=base,
                rate=LOOP_RATE,
                pending=PENDING,
                seconds=seconds,
                start_ns=start_ns,
            )
            (live if on else bare)[side].append(scheduler.finish())
            if side == "resolver":
                prefill.finish()

        for order in turns(pairs):
            for side in ("resolver", "publisher"):
                for which in order:
                    block(side, on=bool(which))
            report("SGLang's query")
            polling.begin("query", queries, latencies=True)
            outcome = polling.finish()
            polled += outcome.latencies_us
            failures += outcome.failures

    def calls(side: str, name: str) -> list[float]:
        return [took for blk in live[side] for took in blk["calls_us"][name]]

    def slow_down(side: str, average: Callable[[Sequence[float]], float]) -> float:
        return median(
            average(on["steps_us"]) / average(off["steps_us"])
            for on, off in zip(live[side], bare[side], strict=True)
        )

    polls, publishes = calls("resolver", "poll"), calls("publisher", "publish")
    submits = calls("resolver", "submit")
    return Loop(
        *_percentiles(polls),
        *_percentiles(submits),
        *_percentiles(publishes),
        *_percentiles(polled),
        failures,
        len(polled),
        len(polls),
        len(publishes),
        median(count for blk in live["resolver"] for count in blk["pending"]),
        slow_down("resolver", median),
        slow_down("publisher", median),
        slow_down("resolver", _mean),
        slow_down("publisher", _mean),
    )


# --- from published to resolved --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RateRun:
    """What one rate came to: medians over the repetitions, sums where a count."""

    name: str
    rate: int
    rooms: int
    p50_us: float
    p99_us: float
    lost: int
    repeated: int
    wrong: int
    server_cpu_us: float
    """Server CPU for each room."""


@dataclass(frozen=True, slots=True)
class _Party:
    """One way from a publishing process to a resolving one."""

    name: str
    server: psutil.Process
    publisher: Worker
    resolver: Worker


def run_rates(
    rates: Sequence[int], seconds: float, repeats: int, report: Report, *, redis: bool
) -> list[RateRun]:
    """Measure each rate, this project and Redis in turns."""
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(serving(folder, "--log-level", "warning"))
        resolver, publisher = _clients(stack, server.grpc)
        parties = [_Party("bootstrap-grpc", psutil.Process(server.pid), publisher, resolver)]
        if redis:
            yardstick = stack.enter_context(run_redis())
            theirs = [Worker("redis_client", str(yardstick.port)) for _ in range(2)]
            for worker in theirs:
                stack.enter_context(worker)
                worker.call("warm_up", room=0)
            parties.append(_Party("Redis 7 pub/sub", psutil.Process(yardstick.pid), *theirs))
        for order, rate in itertools.product(turns(repeats), rates):
            for which in order:
                if which < len(parties):
                    party = parties[which]
                    report(f"{party.name} at {rate:,} rooms/s")
                    run = _publish_and_resolve(party, folder, rate, int(rate * seconds))
                    runs.setdefault((party.name, rate), []).append(run)
                    if party.name != parties[0].name:
                        party.publisher.call("forget")
    return [
        RateRun(
            name,
            rate,
            sum(run["count"] for run in done),
            median(run["p50"] for run in done),
            median(run["p99"] for run in done),
            sum(run["lost"] for run in done),
            sum(run["repeated"] for run in done),
            sum(run["wrong"] for run in done),
            median(run["cpu_us"] for run in done),
        )
        for (name, rate), done in sorted(runs.items(), key=lambda item: item[0])
    ]


@dataclass(frozen=True, slots=True)
class Burst:
    """A rate past what is asked for."""

    name: str
    rate: int
    rooms: int
    lost: int
    repeated: int
    wrong: int
    dropped: int
    """Rooms that the publisher gave up."""
    offered_seconds: float
    """How long the publishing process took to publish them all."""
    seconds: float
    """Until the last was resolved."""
    p50_us: float
    p99_us: float
    server_cpu_us: float


def run_burst(rate: int, seconds: float, report: Report) -> Burst:
    """Publish ``rate`` rooms a second from one process and resolve them in another."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(serving(folder, "--log-level", "warning"))
        resolver, publisher = _clients(stack, server.grpc)
        party = _Party("bootstrap-grpc", psutil.Process(server.pid), publisher, resolver)
        report(f"{rate:,} rooms/s")
        run = _publish_and_resolve(party, folder, rate, int(rate * seconds))
    return Burst(
        party.name,
        rate,
        run["count"],
        run["lost"],
        run["repeated"],
        run["wrong"],
        run["dropped"],
        run["offered_seconds"],
        run["seconds"],
        run["p50"],
        run["p99"],
        run["cpu_us"],
    )


def _publish_and_resolve(party: _Party, folder: Path, rate: int, count: int) -> dict[str, Any]:
    base = _new_base()
    start_ns = time.monotonic_ns() + 200_000_000
    published_ns = start_ns + int(LEAD * 1e9)
    run = _run(folder, base, rate, count, start_ns)
    before = party.server.cpu_times()
    party.resolver.begin("resolve", **run, patience=_PATIENCE)
    party.publisher.begin("publish", **{**run, "start_ns": published_ns})
    resolved, published = party.resolver.finish(), party.publisher.finish()
    after = party.server.cpu_times()
    Path(run["stamps"]).unlink()
    cpu = after.user + after.system - before.user - before.system
    p50, p99 = _percentiles(resolved.pop("latencies_us"))
    return {
        **resolved,
        **published,
        "count": count,
        "p50": p50,
        "p99": p99,
        "cpu_us": cpu / count * 1e6,
    }


# --- rooms that nobody registers ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Silence:
    """Rooms that nobody registers, and then no server."""

    clients: int
    rooms: int
    seconds: float
    streams: int
    """Streams opened in all."""
    other_calls: int
    """Calls of any other kind."""
    answered: int
    server_cpu_percent: float
    """Of one core, the opening of the streams included."""
    log_lines: int
    """Most lines of one client while the server was there."""
    log_lines_without_server: int
    """Most lines of one client in as many seconds without it."""


def run_silence(clients: int, rooms: int, seconds: float, report: Report) -> Silence:
    """Let every client wait for the same rooms, with the server and then without it."""
    base = _new_base()
    with ExitStack() as stack:
        probe = Worker("service_probe")
        with probe:
            team = [
                Worker("room_client", f"127.0.0.1:{probe.ready['port']}") for _ in range(clients)
            ]
            for worker in team:
                stack.callback(worker.close)
            for worker in team:
                worker.start()
            report(f"{rooms} rooms that nobody registers")
            before = probe.call("stats")
            for worker in team:
                worker.begin("ask", base=base, count=rooms, seconds=seconds)
            answered = sum(worker.finish() for worker in team)
            after = probe.call("stats")
            lines = max(_lines(worker) for worker in team)
            report("the same without a server")
            probe.kill()
            for worker in team:
                worker.begin("ask", base=base, count=rooms, seconds=seconds)
            answered += sum(worker.finish() for worker in team)
            lines_without = max(_lines(worker) for worker in team) - lines
    streams = after["calls"].pop("ResolveDpRanks", 0)
    used = after["cpu_seconds"] - before["cpu_seconds"]
    return Silence(
        clients,
        rooms,
        seconds,
        streams,
        sum(after["calls"].values()),
        answered,
        used / (after["at"] - before["at"]) * 100,
        lines,
        lines_without,
    )


def _lines(worker: Worker) -> int:
    return worker.errors().count("\n")


# --- helpers -----------------------------------------------------------------------------------


def _clients(stack: ExitStack, target: str) -> tuple[Worker, Worker]:
    """Two client processes with their streams open."""
    pair = Worker("room_client", target), Worker("room_client", target)
    for worker in pair:
        stack.enter_context(worker)
        if not worker.call("warm_up", room=next(_bases) * 10_000_000):
            raise RuntimeError(f"{target} does not resolve rooms\n{worker.errors()}")
    return pair


def _run(folder: Path, base: int, rate: int, count: int, start_ns: int) -> dict[str, Any]:
    stamps = str(Stamps.new_path(folder))
    return {"stamps": stamps, "base": base, "rate": rate, "count": count, "start_ns": start_ns}


def _percentiles(values: Sequence[float]) -> tuple[float, float]:
    """The 50th and the 99th."""
    if not values:
        return float("nan"), float("nan")
    return round(percentile(values, 50), 2), round(percentile(values, 99), 2)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
