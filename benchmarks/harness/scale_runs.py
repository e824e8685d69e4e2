"""The runs of ``benchmarks/scale.py``. Each starts what it needs and stops it again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from bootstrap_grpc.client import BootstrapClient
from bootstrap_grpc.protos.convert import topology_to_proto
from bootstrap_grpc.protos.model import MAX_MESSAGE_ROOMS, Registration, Shape, TopologyState
from harness.load import DP_RANKS, ROOMS, LoadProcess
from harness.paired import percentile
from harness.worker import Worker
from support.sglang_release import NEWEST, install_release

__all__ = [
    "Churn",
    "Ranks",
    "Rooms",
    "Streams",
    "run_churn",
    "run_ranks",
    "run_rooms",
    "run_streams",
]

MIB = 2**20
KIB = 2**10

Report = Callable[[str], None]
"""Told what begins."""


# --- rooms held ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rooms:
    """A server that holds so many rooms."""

    name: str
    held: int
    rss_mib: float
    """Resident memory above the empty server's."""
    query_p50_us: float
    """One query of 64 rooms by the party's own client."""
    query_p99_us: float
    expiry_stall_ms: float
    """Worst delay of the event loop while all of them expired; 0 where that was not tried."""
    expiry_cpu_ms: float
    """The most CPU of the loop in one delay: without what other processes took meanwhile."""


def run_rooms(counts: Sequence[int], queries: int, report: Report) -> list[Rooms]:
    """Fill this project's server step by step, let all expire, and do the same to SGLang's."""
    return [*_our_rooms(counts, queries, report), *_their_rooms(counts, queries, report)]


def _our_rooms(counts: Sequence[int], queries: int, report: Report) -> list[Rooms]:
    # As short as the filling allows: what was registered first must still be there at the end.
    lifetime = 10 + max(counts) / 100_000
    with ExitStack() as stack:
        probe = stack.enter_context(Worker("service_probe", "--room-lifetime", str(lifetime)))
        address = f"127.0.0.1:{probe.ready['port']}"
        client = stack.enter_context(BootstrapClient(address))
        load = stack.enter_context(LoadProcess(address, None))
        fill(client, 0, 64)
        _query(load, queries)  # warms up
        probe.call("watch_stalls")
        empty, held = probe.call("stats")["rss"], 64
        rows: list[Rooms] = []
        for count in counts:
            report(f"{count:,} rooms in bootstrap-grpc")
            fill(client, held, count)
            held = count
            rss = (probe.call("stats")["rss"] - empty) / MIB
            rows.append(Rooms("bootstrap-grpc", count, rss, *_query(load, queries), 0.0, 0.0))
        if (now := probe.call("stats")["held"]) != held:
            raise RuntimeError(f"{now:,} of {held:,} rooms are held")
        report(f"{held:,} rooms expire")
        stall = stall_cpu = 0.0
        while now:
            time.sleep(1)
            stats = probe.call("stats")
            now, stall = stats["held"], max(stall, stats["stall_ms"])
            stall_cpu = max(stall_cpu, stats["stall_cpu_ms"])
    return [*rows[:-1], replace(rows[-1], expiry_stall_ms=stall, expiry_cpu_ms=stall_cpu)]


def _their_rooms(counts: Sequence[int], queries: int, report: Report) -> list[Rooms]:
    name, root = f"SGLang {NEWEST}", install_release(NEWEST)
    with ExitStack() as stack:
        probe = stack.enter_context(Worker("sglang_probe", str(root)))
        load = stack.enter_context(LoadProcess(probe.call("serve"), root))
        probe.call("hold_rooms", begin=0, end=64)
        _query(load, queries)
        empty, held = probe.call("stats")["rss"], 64
        rows: list[Rooms] = []
        for count in counts:
            report(f"{count:,} rooms in {name}")
            probe.call("hold_rooms", begin=held, end=count)
            held = count
            rss = (probe.call("stats")["rss"] - empty) / MIB
            rows.append(Rooms(name, count, rss, *_query(load, queries), 0.0, 0.0))
        report(f"{held:,} rooms expire")
        stall, stall_cpu = probe.call("expire")
    return [*rows[:-1], replace(rows[-1], expiry_stall_ms=stall, expiry_cpu_ms=stall_cpu)]


def fill(client: BootstrapClient, begin: int, end: int) -> None:
    """Have the server hold ``end`` rooms rather than ``begin``."""
    for start in range(begin, end, MAX_MESSAGE_ROOMS):
        numbers = range(start, min(end, start + MAX_MESSAGE_ROOMS))
        client.register_dp_ranks({ROOMS.start + n: (ROOMS.start + n) % DP_RANKS for n in numbers})


def _query(load: LoadProcess, queries: int) -> tuple[float, float]:
    load.begin("query", queries, latencies=True)
    outcome = load.finish()
    if outcome.failures:
        raise RuntimeError(f"{outcome.failures} of {outcome.queries} queries failed")
    return percentile(outcome.latencies_us, 50), percentile(outcome.latencies_us, 99)


# --- streams -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Streams:
    """A server with so many resolve streams, a connection for each."""

    streams: int
    rss_kib: float
    """Resident memory above the server's without any, for each stream."""
    open_seconds: float
    """How long the streams took that were opened for this row."""
    reach_ms: float
    """From a publication until the last holder of its room has the answer: median."""
    wrong: int


def run_streams(counts: Sequence[int], publications: int, report: Report) -> list[Streams]:
    """Open more and more streams; each time publish rooms that all of them hold."""
    rows: list[Streams] = []
    with ExitStack() as stack:
        probe = stack.enter_context(Worker("service_probe"))
        address = f"127.0.0.1:{probe.ready['port']}"
        client = stack.enter_context(BootstrapClient(address))
        holders = stack.enter_context(Worker("holders", address))
        client.get_topology()
        holders.call("hold", count=1)  # warms up
        holders.call("close")
        empty = probe.call("stats")["rss"]
        for count in counts:
            report(f"{count:,} streams")
            before = time.perf_counter()
            holders.call("hold", count=count)
            seconds = time.perf_counter() - before
            rss = probe.call("stats")["rss"] - empty
            reach, wrong = [], 0
            for number in range(publications):
                room = 1_000_000 * count + number
                holders.call("add", room=room)
                _wait_for_holders(probe, count)
                holders.begin("receive")
                time.sleep(0.1)  # until it listens; an early answer would wait in the stream
                start = time.monotonic_ns()
                client.register_dp_ranks({room: 1})
                answer = holders.finish()
                reach.append((answer["last_ns"] - start) / 1e6)
                wrong += answer["wrong"]
            rows.append(Streams(count, rss / count / KIB, seconds, median(reach), wrong))
        holders.call("close")
    return rows


def _wait_for_holders(probe: Worker, count: int, timeout: float = 20.0) -> None:
    deadline = time.monotonic() + timeout
    while probe.call("stats")["waiters"] != count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{count} streams do not hold the room within {timeout} s")
        time.sleep(0.02)


# --- ranks -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ranks:
    """A prefill server of so many ranks."""

    name: str
    ranks: int
    register_seconds: float
    """All of them, one after the other from one process."""
    topology_p50_us: float
    """One read of the topology, by the party's own client."""
    routes: int
    """Addresses in the answer."""
    topology_bytes: int
    """Size of the answer; 0 where it was not looked at."""


def run_ranks(counts: Sequence[int], reads: int, report: Report) -> list[Ranks]:
    """Register ``counts`` ranks, each on a new server of this project and of SGLang."""
    ours: list[Ranks] = []
    theirs: list[Ranks] = []
    for count in counts:
        report(f"{count:,} ranks in bootstrap-grpc")
        ours.append(_our_ranks(count, reads))
        report(f"{count:,} ranks in SGLang {NEWEST}")
        theirs.append(_their_ranks(count, reads))
    return [*ours, *theirs]


def _sizes(count: int) -> tuple[int, int]:
    """(tp, dp) of a server of ``count`` ranks."""
    tp = min(count, 8)
    return tp, count // tp


def _our_ranks(count: int, reads: int) -> Ranks:
    tp, dp = _sizes(count)
    shape = Shape(attn_tp_size=tp, dp_size=dp, page_size=64, kv_cache_dtype="auto")
    with Worker("service_probe") as probe:
        client = BootstrapClient(f"127.0.0.1:{probe.ready['port']}")
        with client:
            client.get_topology()  # connects
            start = time.perf_counter()
            for key in tuple(shape.keys()):
                client.register_rank(Registration(key, "10.0.0.7", 40_000, shape))
            seconds = time.perf_counter() - start
            times: list[float] = []
            for _ in range(reads):
                start = time.perf_counter()
                topology = client.get_topology()
                times.append((time.perf_counter() - start) * 1e6)
            if topology.state is not TopologyState.READY or len(topology.routes) != count:
                raise RuntimeError(f"{len(topology.routes)} routes of {count}")
    size = topology_to_proto(topology).ByteSize()
    return Ranks("bootstrap-grpc", count, seconds, median(times), count, size)


def _their_ranks(count: int, reads: int) -> Ranks:
    tp, dp = _sizes(count)
    root = install_release(NEWEST)
    with Worker("sglang_probe", str(root)) as server, Worker("sglang_probe", str(root)) as client:
        peer: dict[str, Any] = {"address": server.call("serve"), "tp": tp, "dp": dp}
        client.begin("register_ranks", **peer)
        seconds = client.finish(600)
        times = client.call("time_topology", **peer, count=reads)
    return Ranks(f"SGLang {NEWEST}", count, seconds, median(times), 0, 0)


# --- churn -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Churn:
    """What is left behind by streams and rooms that came and went."""

    pairs: int
    pairs_growth_mib: float
    cancelled: int
    cancelled_growth_mib: float
    waiting: int
    """Rooms that the server thinks somebody waits for, afterwards."""
    streams: int
    tasks: int
    """Tasks in its event loop more than before."""


def run_churn(pairs: int, cancelled: int, report: Report) -> Churn:
    """Add and drop rooms on one stream, then open streams and cancel them."""
    with ExitStack() as stack:
        probe = stack.enter_context(Worker("service_probe"))
        holders = stack.enter_context(Worker("holders", f"127.0.0.1:{probe.ready['port']}"))
        # Warms up: the first thousand of each fill the allocator's pools.
        holders.call("add_and_drop", pairs=1_000, batch=10, base=1)
        holders.call("cancel", count=100, rooms=64, base=1)
        before = _settled(probe)
        report(f"{pairs:,} rooms added and dropped")
        holders.begin("add_and_drop", pairs=pairs, batch=10, base=10_000)
        holders.finish(300)
        between = _settled(probe)
        report(f"{cancelled:,} streams cancelled")
        holders.begin("cancel", count=cancelled, rooms=64, base=10_000)
        holders.finish(300)
        after = _settled(probe)
    return Churn(
        pairs,
        (between["rss"] - before["rss"]) / MIB,
        cancelled,
        (after["rss"] - between["rss"]) / MIB,
        after["waiting"],
        after["streams"],
        after["tasks"] - before["tasks"],
    )


def _settled(probe: Worker) -> dict[str, Any]:
    """The figures once nothing changes any more: streams end a moment after their clients."""
    stats: dict[str, Any] = probe.call("stats")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        time.sleep(0.5)
        last, stats = stats, probe.call("stats")
        if stats["streams"] == 0 and last["waiting"] == stats["waiting"] == 0:
            break
    return stats
