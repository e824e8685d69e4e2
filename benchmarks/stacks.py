"""Round trips on one resolve stream: grpcio's sync stack beside its asyncio stack.

Decides what carries the client's streams (docs/decisions/0006). A known room is asked for, its
answer awaited; with *pause* the client sleeps between two, as a scheduler does. The stacks take
turns in one process, against one server.

Exit status: 0 where asyncio costs no more CPU than the sync stack without a pause, 1 where it does:
the decision then wants another look.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from harness.paired import percentile, turns
from harness.report import ReportTable, write_section
from harness.worker import Worker, share_cores
from rich.console import Console
from rich.progress import track

from support.serve import serving

STACKS = ("sync", "aio")
PAUSES = (0.0, 0.002)
COUNT = 50_000
"""Rooms of a block; no two blocks share one."""


def measure(pairs: int, count: int) -> dict[tuple[str, float], list[dict[str, Any]]]:
    """Return the blocks of each stack and pause."""
    blocks: dict[tuple[str, float], list[dict[str, Any]]] = {}
    bases = itertools.count(COUNT, COUNT)
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder), "--log-level", "warning") as server,
        Worker("stack_client", server.grpc) as client,
    ):
        console = Console(stderr=True)
        for order in track(list(turns(pairs)), "pairs of blocks", console=console):
            for pause, which in itertools.product(PAUSES, order):
                size = {"base": next(bases), "count": count if not pause else count // 4}
                client.call("register", **size)
                block = client.call(STACKS[which], **size, pause=pause)
                blocks.setdefault((STACKS[which], pause), []).append(block)
    return blocks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=6, help="pairs of blocks (6)")
    parser.add_argument("--count", type=int, default=1_000, help="round trips of a block (1,000)")
    parser.add_argument("--quick", action="store_true", help="2 pairs of 500")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--write", action="store_true", help="rewrite the section of README.md")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.pairs, arguments.count = 2, 500
    share_cores(2)
    blocks = measure(arguments.pairs, arguments.count)
    headings = ("pause ms", "round trips", "p50 µs", "p99 µs", "client CPU µs", "threads")
    table = ReportTable("stack", *headings)
    cpu: dict[tuple[str, float], float] = {}
    for pause, stack in itertools.product(PAUSES, STACKS):
        own = blocks[stack, pause]
        times = [each for block in own for each in block["latencies_us"]]
        cpu[stack, pause] = median(block["cpu_us"] for block in own)
        table.add(
            stack,
            f"{pause * 1000:.0f}",
            f"{len(times):,}",
            f"{percentile(times, 50):.0f}",
            f"{percentile(times, 99):.0f}",
            f"{cpu[stack, pause]:.0f}",
            str(max(block["threads"] for block in own)),
        )
    if arguments.json:
        print(json.dumps({f"{stack}, {pause}": value for (stack, pause), value in cpu.items()}))
    else:
        table.show("a round trip on a resolve stream")
    if arguments.write:
        write_section("stacks", [table.markdown()], command=f"python {' '.join(sys.argv)}")
    return 0 if cpu["aio", 0.0] <= cpu["sync", 0.0] else 1


if __name__ == "__main__":
    sys.exit(main())
