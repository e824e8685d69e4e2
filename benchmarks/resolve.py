"""What pushed answers cost, and how fast they are: one process publishes rooms, another resolves.

SGLang's polled query and Redis pub/sub are measured beside them in the same run. Everything shares
two cores. ``--only`` picks parts of it.

Exit status: 0 where every target is met, 1 where not, 2 where SGLang cannot be had here. Without
Redis its rows are left out, and the run says so.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from harness.plots import Panel, draw, have_matplotlib
from harness.redis_yardstick import RedisUnavailableError, check_redis
from harness.report import ReportTable, write_section
from harness.resolve_runs import (
    BURST_RATE,
    LOOP_RATE,
    PENDING,
    RATES,
    Burst,
    Loop,
    RateRun,
    Silence,
    run_burst,
    run_loop,
    run_rates,
    run_silence,
)
from harness.targets import Target, targets_table
from harness.worker import share_cores
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from support.sglang_release import NEWEST, ReleaseUnavailableError

OURS = "bootstrap-grpc"
PARTS = ("loop", "rates", "burst", "silence")


@dataclass(frozen=True)
class Figures:
    """What was measured; ``None`` where a part was left out."""

    loop: Loop | None = None
    rates: tuple[RateRun, ...] = ()
    burst: Burst | None = None
    silence: Silence | None = None

    def rate(self, rate: int, *, ours: bool = True) -> RateRun | None:
        found = (run for run in self.rates if run.rate == rate and (run.name == OURS) == ours)
        return next(found, None)


def measure(arguments: argparse.Namespace, *, redis: bool) -> Figures:
    """Run the parts that are asked for."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    figures = Figures()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("starts")

        def report(what: str) -> None:
            progress.update(task, description=what)

        if "loop" in arguments.only:
            loop = run_loop(arguments.pairs, arguments.block, arguments.queries, report)
            figures = replace(figures, loop=loop)
        if "rates" in arguments.only:
            sizes = (RATES, arguments.seconds, arguments.repeats)
            figures = replace(figures, rates=tuple(run_rates(*sizes, report, redis=redis)))
        if "burst" in arguments.only:
            figures = replace(figures, burst=run_burst(BURST_RATE, arguments.burst, report))
        if "silence" in arguments.only:
            silence = run_silence(8, PENDING, arguments.silence, report)
            figures = replace(figures, silence=silence)
    return figures


def targets_of(figures: Figures) -> list[Target]:
    """Every promise that the run could judge."""
    targets: list[Target] = []
    if (loop := figures.loop) is not None:
        targets += [
            Target("poll(), p50", loop.poll_p50, 10, "µs"),
            Target("poll(), p99", loop.poll_p99, 100, "µs"),
            Target(
                f"SGLang {NEWEST}'s query / poll(), p50",
                loop.sglang_query_p50 / loop.poll_p50,
                100,
                "times",
                at_least=True,
            ),
            Target("publish(), p50", loop.publish_p50, 20, "µs"),
            Target("publish(), p99", loop.publish_p99, 200, "µs"),
            Target("5 ms step, resolver live / idle", loop.resolver_slow_down, 1.1, "times"),
            Target("5 ms step, publisher live / idle", loop.publisher_slow_down, 1.1, "times"),
        ]
    for rate, p50, p99 in ((500, 1.5, 10.0), (2_000, 1.5, 10.0), (20_000, 2.0, None)):
        if (run := figures.rate(rate)) is not None:
            at = f"published to resolved at {rate:,} rooms/s"
            targets.append(Target(f"{at}, p50", run.p50_us / 1000, p50, "ms"))
            if p99 is not None:
                targets.append(Target(f"{at}, p99", run.p99_us / 1000, p99, "ms"))
            targets.append(Target(f"{at}, lost, repeated or wrong", _faults(run), 0))
    slow, fast = figures.rate(RATES[0]), figures.rate(RATES[-1])
    if slow is not None and fast is not None:
        share = fast.server_cpu_us / slow.server_cpu_us
        targets.append(Target("server CPU a room, 20,000/s / 500/s", share, 0.1, "times"))
    ours, theirs = figures.rate(LOOP_RATE), figures.rate(LOOP_RATE, ours=False)
    if ours is not None and theirs is not None:
        ratio = ours.p50_us / theirs.p50_us
        targets.append(Target(f"p50 at {LOOP_RATE:,} rooms/s / Redis's", ratio, 2, "times"))
    if (burst := figures.burst) is not None:
        what = f"{burst.rooms:,} rooms at {burst.rate:,}/s"
        # A publisher that falls behind has offered less than the rate.
        allowed = round(burst.rooms / burst.rate * 1.1, 2)
        targets += [
            Target(f"{what}, published in", burst.offered_seconds, allowed, "s"),
            Target(f"{what}, lost, repeated or wrong", _faults(burst) + burst.dropped, 0),
        ]
    if (silence := figures.silence) is not None:
        what = f"{silence.rooms} rooms that nobody registers, {silence.clients} clients"
        targets += [
            Target(f"{what}, calls", silence.streams + silence.other_calls, silence.clients),
            Target(f"{what}, server CPU", silence.server_cpu_percent, 1, "% of a core"),
            Target(f"{what}, log lines without server", silence.log_lines_without_server, 3),
        ]
    return targets


def _faults(run: RateRun | Burst) -> int:
    return run.lost + run.repeated + run.wrong


def tables_of(figures: Figures) -> list[ReportTable]:
    """The figures as tables."""
    tables: list[ReportTable] = []
    if (loop := figures.loop) is not None:
        table = ReportTable("call in a scheduler's loop", "calls", "p50 µs", "p99 µs")
        table.add("resolver.poll()", f"{loop.polls:,}", *_us(loop.poll_p50, loop.poll_p99))
        table.add("resolver.submit()", f"{loop.polls:,}", *_us(loop.submit_p50, loop.submit_p99))
        publish = _us(loop.publish_p50, loop.publish_p99)
        table.add("publisher.publish()", f"{loop.publishes:,}", *publish)
        query = _us(loop.sglang_query_p50, loop.sglang_query_p99)
        table.add(f"SGLang {NEWEST}, query_prefill_dp_ranks", f"{loop.queries:,}", *query)
        tables.append(table)
        table = ReportTable("5 ms step of Python, live / idle", "medians", "means")
        table.add("resolver", *_ratios(loop.resolver_slow_down, loop.resolver_slow_down_mean))
        table.add("publisher", *_ratios(loop.publisher_slow_down, loop.publisher_slow_down_mean))
        tables.append(table)
    if figures.rates or figures.burst:
        headings = ("rooms/s", "rooms", "p50 ms", "p99 ms", "lost", "server CPU µs/room")
        table = ReportTable("published to resolved", *headings)
        for run in (*figures.rates, *([figures.burst] if figures.burst else [])):
            table.add(
                run.name,
                f"{run.rate:,}",
                f"{run.rooms:,}",
                f"{run.p50_us / 1000:.2f}",
                f"{run.p99_us / 1000:.2f}",
                str(run.lost),
                f"{run.server_cpu_us:.1f}",
            )
        tables.append(table)
    return tables


def plot(figures: Figures) -> str:
    """Draw the rates; return the Markdown that shows them."""
    latency: dict[str, list[tuple[float, float]]] = {}
    cpu: dict[str, list[tuple[float, float]]] = {}
    for run in figures.rates:
        latency.setdefault(f"{run.name}, p50", []).append((run.rate, run.p50_us / 1000))
        latency.setdefault(f"{run.name}, p99", []).append((run.rate, run.p99_us / 1000))
        cpu.setdefault(run.name, []).append((run.rate, run.server_cpu_us))
    return draw(
        "resolve",
        [
            Panel("Published to resolved", "rooms/s", "ms", latency),
            Panel("Server CPU for a room", "rooms/s", "µs", cpu),
        ],
    )


def _us(*values: float) -> tuple[str, ...]:
    return tuple(f"{value:.1f}" if value < 100 else f"{value:,.0f}" for value in values)


def _ratios(*values: float) -> tuple[str, ...]:
    return tuple(f"{value:.3f}" for value in values)


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--pairs", type=int, default=30, help="pairs of blocks of the scheduler's loop (30)")
    add("--block", type=float, default=0.3, help="seconds of such a block (0.3)")
    add("--queries", type=int, default=50, help="SGLang's queries for each pair (50)")
    add("--seconds", type=float, default=4.0, help="length of a run at one rate (4)")
    add("--repeats", type=int, default=3, help="runs at each rate (3)")
    add("--burst", type=float, default=3.0, help=f"seconds of {BURST_RATE:,} rooms/s (3)")
    add("--silence", type=float, default=10.0, help="seconds of rooms without an answer (10)")
    add("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to run (all)")
    add("--quick", action="store_true", help="in half a minute, rough")
    add("--json", action="store_true", help="print JSON instead of the tables")
    add("--write", action="store_true", help="rewrite the section of README.md and its plot")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.pairs, arguments.block, arguments.queries = 8, 0.3, 20
        arguments.seconds, arguments.repeats, arguments.burst = 1.0, 1, 1.0
        arguments.silence = 3.0
    return arguments


def main() -> int:
    arguments = parse_arguments(sys.argv[1:])
    share_cores(2)
    redis = True
    try:
        check_redis()
    except RedisUnavailableError as error:
        print(f"resolve: without the Redis yardstick: {error}", file=sys.stderr)
        redis = False
    try:
        figures = measure(arguments, redis=redis)
    except ReleaseUnavailableError as error:
        print(f"resolve: cannot run here: {error}", file=sys.stderr)
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
        if figures.rates and have_matplotlib():
            sections.insert(0, plot(figures))
        if not redis:
            sections.append("Without the Redis yardstick: there was none on that machine.")
        write_section("resolve", sections, command=" ".join(["python", *sys.argv]))
    return 0 if all(target.met for target in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
