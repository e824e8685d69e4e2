"""Time one DP-rank query of 64 rooms: this project's sync client beside SGLang's pooled one.

Each client is a process of its own with one connection to a server of its own: SGLang's bootstrap
server of the same release, and ``bootstrap-grpc serve``. The two take turns, block by block.

Exit status: 0 where both targets are met, 1 where not, 2 where SGLang cannot be had here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from statistics import median

from harness.load import ROOMS, LoadProcess, Outcome
from harness.paired import percentile, ratio_of_medians, turns
from harness.report import ReportTable, write_section
from harness.servers import run_command, run_sglang
from rich.console import Console
from rich.progress import track

from support.sglang_release import NEWEST, ReleaseUnavailableError, install_release

TARGET_P50 = 1.4
TARGET_CPU = 2.5
NAMES = (f"SGLang {NEWEST}, pooled", "bootstrap-grpc, BootstrapClient")


@dataclass(frozen=True)
class Result:
    """Figures of one client, in microseconds."""

    name: str
    queries: int
    failures: int
    p50: float
    p99: float
    cpu: float
    """Client CPU per query: median over the blocks."""


def measure(pairs: int, block: int) -> tuple[list[Outcome], list[Outcome]]:
    """Return the blocks of SGLang's client and of this project's."""
    with ExitStack() as stack:
        theirs = stack.enter_context(run_sglang(NEWEST, host="127.0.0.1"))
        ours = stack.enter_context(run_command(NEWEST))
        clients = (
            LoadProcess(f"127.0.0.1:{theirs.http}", install_release(NEWEST)),
            LoadProcess(f"127.0.0.1:{ours.grpc}", None),
        )
        for client in clients:
            stack.enter_context(client)
            client.begin("query", block)  # connects and warms up
            client.finish()
        blocks: tuple[list[Outcome], list[Outcome]] = ([], [])
        console = Console(stderr=True)
        for order in track(list(turns(pairs)), "pairs of blocks", console=console):
            for which in order:
                clients[which].begin("query", block, latencies=True)
                blocks[which].append(clients[which].finish())
    return blocks


def result(name: str, blocks: Sequence[Outcome]) -> Result:
    """Sum up the blocks of one client."""
    latencies = [time for block in blocks for time in block.latencies_us]
    return Result(
        name,
        sum(block.queries for block in blocks),
        sum(block.failures for block in blocks),
        round(percentile(latencies, 50), 1),
        round(percentile(latencies, 99), 1),
        round(median(cpu_of(blocks)), 1),
    )


def cpu_of(blocks: Sequence[Outcome]) -> list[float]:
    """Return the client CPU per query of each block, in microseconds."""
    return [block.cpu_seconds / block.queries * 1e6 for block in blocks]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=40, help="pairs of blocks (40)")
    parser.add_argument("--block", type=int, default=250, help="queries per block (250)")
    parser.add_argument("--quick", action="store_true", help="8 pairs of 100 queries")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--write", action="store_true", help="rewrite the section of README.md")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.pairs, arguments.block = 8, 100
    try:
        blocks = measure(arguments.pairs, arguments.block)
    except ReleaseUnavailableError as error:
        print(f"unary_query: cannot run here: {error}", file=sys.stderr)
        return 2

    theirs, ours = (result(name, own) for name, own in zip(NAMES, blocks, strict=True))
    p50 = theirs.p50 / ours.p50
    p99 = theirs.p99 / ours.p99
    cpu = ratio_of_medians(cpu_of(blocks[0]), cpu_of(blocks[1]))
    met = p50 >= TARGET_P50 and cpu >= TARGET_CPU and not ours.failures

    table = ReportTable("client", "queries", "failures", "p50 µs", "p99 µs", "CPU µs/query")
    for row in (theirs, ours):
        counts = (f"{row.queries:,}", str(row.failures))
        table.add(row.name, *counts, f"{row.p50:.0f}", f"{row.p99:.0f}", f"{row.cpu:.0f}")
    table.add("ratio of medians (p99: of p99s)", "", "", f"{p50:.2f}", f"{p99:.2f}", f"{cpu:.2f}")
    table.add("target", "", "", f"≥ {TARGET_P50}", "", f"≥ {TARGET_CPU}")
    if arguments.json:
        figures = {"p50_ratio": p50, "p99_ratio": p99, "cpu_ratio": cpu}
        print(json.dumps({"rows": [asdict(theirs), asdict(ours)], **figures}, indent=2))
    else:
        table.show(f"one query of {len(ROOMS)} rooms, one client")
    if arguments.write:
        write_section("unary_query", [table.markdown()], command=f"python {' '.join(sys.argv)}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
