"""How cost grows: with the rooms held, with the streams open, with the ranks registered.

SGLang's own code is measured beside it in the same run, where it has such a thing. Everything
shares two cores. ``--only`` picks parts of it.

Exit status: 0 where every target is met, 1 where not, 2 where SGLang cannot be had here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from harness.plots import Panel, draw, have_matplotlib
from harness.report import ReportTable, write_section
from harness.scale_runs import (
    Churn,
    Ranks,
    Rooms,
    Streams,
    run_churn,
    run_ranks,
    run_rooms,
    run_streams,
)
from harness.targets import Target, targets_table
from harness.worker import share_cores
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from support.sglang_release import ReleaseUnavailableError

OURS = "bootstrap-grpc"
PARTS = ("rooms", "streams", "ranks", "churn")


@dataclass(frozen=True)
class Figures:
    """What was measured; empty or ``None`` where a part was left out."""

    rooms: tuple[Rooms, ...] = ()
    streams: tuple[Streams, ...] = ()
    ranks: tuple[Ranks, ...] = ()
    churn: Churn | None = None


def measure(arguments: argparse.Namespace) -> Figures:
    """Run the parts that are asked for."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    figures = Figures()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("starts")

        def report(what: str) -> None:
            progress.update(task, description=what)

        if "rooms" in arguments.only:
            counts = [10**power for power in range(3, arguments.rooms_power + 1)]
            rooms = run_rooms(counts, arguments.queries, report)
            figures = replace(figures, rooms=tuple(rooms))
        if "streams" in arguments.only:
            counts = [count for count in (1, 10, 100, 1_000) if count <= arguments.streams]
            streams = run_streams(counts, arguments.publications, report)
            figures = replace(figures, streams=tuple(streams))
        if "ranks" in arguments.only:
            counts = [count for count in (1, 16, 256, 4_096) if count <= arguments.ranks]
            ranks = run_ranks(counts, arguments.reads, report)
            figures = replace(figures, ranks=tuple(ranks))
        if "churn" in arguments.only:
            churn = run_churn(arguments.pairs, arguments.cancelled, report)
            figures = replace(figures, churn=churn)
    return figures


def targets_of(figures: Figures) -> list[Target]:
    """Every promise that the run could judge."""
    targets: list[Target] = []
    if rooms := [row for row in figures.rooms if row.name == OURS]:
        most = rooms[-1]
        targets += [
            Target(f"memory for {most.held:,} rooms", most.rss_mib, 250, "MiB"),
            Target(f"stall while {most.held:,} rooms expire", most.expiry_stall_ms, 20, "ms"),
        ]
    if figures.streams:
        streams = figures.streams[-1]
        what = f"{streams.streams:,} streams"
        targets += [
            Target(f"{what}, memory of the server for each", streams.rss_kib, 64, "KiB"),
            Target(f"{what}, all reached by one publication", streams.reach_ms, 300, "ms"),
            Target(f"{what}, wrong answers", streams.wrong, 0),
        ]
    if (churn := figures.churn) is not None:
        pairs, cancelled = (
            f"{churn.pairs:,} add/drop pairs",
            f"{churn.cancelled:,} cancelled streams",
        )
        left = churn.waiting + churn.streams + max(0, churn.tasks)
        targets += [
            Target(f"{pairs}, memory growth", churn.pairs_growth_mib, 50, "MiB"),
            Target(f"{cancelled}, memory growth", churn.cancelled_growth_mib, 50, "MiB"),
            Target("waiting rooms, streams and tasks left", left, 0),
        ]
    return targets


def tables_of(figures: Figures) -> list[ReportTable]:
    """The figures as tables."""
    tables: list[ReportTable] = []
    if figures.rooms:
        headings = ("held", "memory MiB", "query of 64, p50 µs", "p99 µs")
        table = ReportTable("rooms", *headings, "stall at expiry ms", "CPU of it ms")
        for row in figures.rooms:
            stalls = (row.expiry_stall_ms, row.expiry_cpu_ms)
            shown = (f"{stall:,.1f}" if stall else "" for stall in stalls)
            query = (f"{row.query_p50_us:,.0f}", f"{row.query_p99_us:,.0f}")
            table.add(row.name, f"{row.held:,}", f"{row.rss_mib:,.1f}", *query, *shown)
        tables.append(table)
    if figures.streams:
        table = ReportTable("streams", "memory KiB each", "opened in s", "all reached in ms")
        for row in figures.streams:
            cells = (f"{row.rss_kib:,.0f}", f"{row.open_seconds:.2f}", f"{row.reach_ms:,.1f}")
            table.add(f"{row.streams:,}", *cells)
        tables.append(table)
    if figures.ranks:
        headings = ("ranks", "all registered in s", "topology, p50 µs", "its routes", "its bytes")
        table = ReportTable("ranks", *headings)
        for row in figures.ranks:
            size = f"{row.topology_bytes:,}" if row.topology_bytes else ""
            cells = (f"{row.register_seconds:.2f}", f"{row.topology_p50_us:,.0f}")
            table.add(row.name, f"{row.ranks:,}", *cells, f"{row.routes:,}", size)
        tables.append(table)
    return tables


def plot(figures: Figures) -> str:
    """Draw the figures; return the Markdown that shows them."""
    panels: list[Panel] = []
    if figures.rooms:
        memory = _series((row.name, row.held, row.rss_mib) for row in figures.rooms)
        panels.append(Panel("Memory by rooms held", "rooms", "MiB", memory, 250))
    if figures.streams:
        reach = {OURS: [(row.streams, row.reach_ms) for row in figures.streams]}
        panels.append(Panel("One publication to all holders", "streams", "ms", reach, 300))
    if figures.ranks:
        seconds = _series((row.name, row.ranks, row.register_seconds) for row in figures.ranks)
        panels.append(Panel("Registering every rank", "ranks", "s", seconds))
    return draw("scale", panels)


def _series(
    rows: Iterable[tuple[str, float, float]],
) -> dict[str, list[tuple[float, float]]]:
    series: dict[str, list[tuple[float, float]]] = {}
    for name, x, y in rows:
        series.setdefault(name, []).append((x, y))
    return series


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--rooms-power", type=int, default=6, help="most rooms held, as a power of ten (6)")
    add("--queries", type=int, default=300, help="queries at each number of rooms (300)")
    add("--streams", type=int, default=1_000, help="most streams (1000)")
    add("--publications", type=int, default=5, help="rooms published to all streams (5)")
    add("--ranks", type=int, default=4_096, help="most ranks (4096)")
    add("--reads", type=int, default=50, help="reads of each topology (50)")
    add("--pairs", type=int, default=100_000, help="rooms added and dropped (100000)")
    add("--cancelled", type=int, default=10_000, help="streams cancelled (10000)")
    add("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to run (all)")
    add("--quick", action="store_true", help="in half a minute, a tenth of it all")
    add("--json", action="store_true", help="print JSON instead of the tables")
    add("--write", action="store_true", help="rewrite the section of README.md and its plot")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.rooms_power, arguments.queries = 5, 100
        arguments.streams, arguments.publications = 100, 2
        arguments.ranks, arguments.reads = 256, 20
        arguments.pairs, arguments.cancelled = 10_000, 1_000
    return arguments


def main() -> int:
    arguments = parse_arguments(sys.argv[1:])
    share_cores(2)
    try:
        figures = measure(arguments)
    except ReleaseUnavailableError as error:
        print(f"scale: cannot run here: {error}", file=sys.stderr)
        return 2
    targets = targets_of(figures)
    tables = [*tables_of(figures), targets_table(targets)]
    if arguments.json:
        judged = [{**asdict(target), "met": target.met} for target in targets]
        print(json.dumps({**asdict(figures), "targets": judged}, indent=2))
    else:
        for table in tables:
            table.show("")
    if arguments.write:
        sections = [table.markdown() for table in tables]
        if have_matplotlib():
            sections.insert(0, plot(figures))
        write_section("scale", sections, command=" ".join(["python", *sys.argv]))
    return 0 if all(target.met for target in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
