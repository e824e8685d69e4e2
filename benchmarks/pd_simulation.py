"""Simulate a prefill/decode deployment with three transports for its bootstrap service.

Prefill and decode schedulers with the event loops of SGLang's, each a process, serve the same
trace of requests three times over: SGLang's client code of a release before pooled sessions on
SGLang's server, the newest release's on its own, and this project. The contestants take turns.

Exit status: 0 where this project's runs completed every request, left no TIME-WAIT, opened at most
two connections a process and took at most a tenth of the time that the pooled client takes from
the schedulers' loops in the same run; 1 where not; 2 where SGLang cannot be had here.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from harness.ending import ended_by_sigterm
from harness.report import write_section
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from simulation.contestants import CONTESTANTS
from simulation.model import LOOPS, STEPS, Settings, trace
from simulation.plot import draw
from simulation.run import RunResult, Team
from simulation.summary import changes_table, main_table, summed_up, unkept

from support.sglang_release import ReleaseUnavailableError

PLOT = Path(__file__).resolve().parent / "plots" / "pd_simulation.png"
PICTURE = "![TTFT, share of the loop, sockets and CPU by transport](plots/pd_simulation.png)"


def measure(settings: Settings, loops: Sequence[str], runs: int) -> list[RunResult]:
    """Run every contestant ``runs`` times in each kind of loop."""
    results: list[RunResult] = []
    requests = len(trace(settings))
    progress = Progress(
        TextColumn("{task.description:<44}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("requests"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
    with ended_by_sigterm(), progress, ExitStack() as stack:
        total = runs * len(loops) * len(CONTESTANTS) * requests
        task = progress.add_task("starting the schedulers", total=total)
        teams = [stack.enter_context(Team(each, settings)) for each in CONTESTANTS]
        for number in range(runs):
            # In turns, so that a drift of the machine weighs on all alike.
            for team in teams if number % 2 == 0 else teams[::-1]:
                for loop in loops:
                    label = f"{team.contestant.label}, {loop} loop"
                    progress.update(task, description=label)
                    done = len(results) * requests

                    def tell(finished: int, done: int = done) -> None:
                        progress.update(task, completed=done + finished)

                    results.append(team.run(replace(settings, loop=loop), tell))
                    tell(requests)
        progress.update(task, description="done")
    return results


def arguments_of(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--prefill", type=int, default=2, help="prefill schedulers, at least 2 (2)")
    add("--decode", type=int, default=2, help="decode schedulers (2)")
    add("--rate", type=float, default=80, help="requests a second (80)")
    add("--duration", type=float, default=5, help="seconds of arrivals in a run (5)")
    add("--runs", type=int, default=3, help="runs of each contestant and loop (3)")
    add("--step-ms", type=float, default=20, help="a decode step (20)")
    add("--prefill-ms", type=float, default=60, help="a prefill step (60)")
    add("--tokens", type=int, default=16, help="tokens of a request (16)")
    add(
        "--step",
        choices=STEPS,
        default="sleep",
        help="what a step is: the thread waits, as for a GPU, or computes in Python (sleep)",
    )
    wait = "most that this project's decode waits for the ranks of new requests (0: never)"
    add("--wait-ms", type=float, default=0, help=wait)
    add("--loop", choices=(*LOOPS, "both"), default="both", help="SGLang's event loop (both)")
    add("--seed", type=int, default=1, help="of the trace (1)")
    add("--quick", action="store_true", help="1 run of 1 s")
    add("--json", action="store_true", help="print JSON instead of the tables")
    output = parser.add_mutually_exclusive_group()
    add = output.add_argument
    add("--plot", type=Path, metavar="FILE", help="write the figures as a PNG (needs matplotlib)")
    add("--write", action="store_true", help="rewrite the section of README.md and its picture")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.runs, arguments.duration = 1, 1.0
    if arguments.runs < 1:
        parser.error("--runs must be at least 1")
    if arguments.write:
        arguments.plot = PLOT
    try:
        arguments.settings = Settings(
            prefill=arguments.prefill,
            decode=arguments.decode,
            rate=arguments.rate,
            duration=arguments.duration,
            step=arguments.step_ms / 1e3,
            prefill_step=arguments.prefill_ms / 1e3,
            tokens=arguments.tokens,
            step_kind=arguments.step,
            wait=arguments.wait_ms / 1e3,
            seed=arguments.seed,
        )
    except ValueError as error:
        parser.error(str(error))
    return arguments


def main() -> int:
    arguments = arguments_of(sys.argv[1:])
    settings: Settings = arguments.settings
    loops = LOOPS if arguments.loop == "both" else (arguments.loop,)
    try:
        results = measure(settings, loops, arguments.runs)
    except ReleaseUnavailableError as error:
        print(f"pd_simulation: cannot run here: {error}", file=sys.stderr)
        return 2
    rows = summed_up(results, loops)
    tables = (main_table(rows), changes_table(rows, loops))
    if arguments.json:
        found = {"settings": asdict(settings), "rows": [row.as_dict() for row in rows]}
        print(json.dumps(found, indent=2))
    else:
        tables[0].show(f"{settings.prefill} prefill, {settings.decode} decode schedulers; medians")
        tables[1].show("changes")
    written = [table.markdown() for table in tables]
    if arguments.plot:
        try:
            draw(rows, loops, arguments.plot)
            written.append(PICTURE)
        except ImportError:
            print("pd_simulation: no plot: matplotlib is not installed", file=sys.stderr)
    if arguments.write:
        write_section("pd_simulation", written, command=shlex.join(["python", *sys.argv]))
    broken = list(unkept(rows, settings))
    for line in broken:
        print(f"not as promised: {line}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
