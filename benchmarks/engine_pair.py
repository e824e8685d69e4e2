"""A whole SGLang prefill and decode server on the CPU: unmodified beside the plugin, in turns.

Each run starts both servers anew, warms up, and sends requests from several clients; TTFT is from
the request to the first token of the decode server. The model is two layers of nothing, so that
what surrounds it is what is measured. ``make bench-engine`` installs what it needs.

Exit status: 0 where every request was answered, 1 where not, 2 where the engine is not installed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from harness.paired import percentile, turns
from harness.report import ReportTable, write_section
from rich.console import Console
from rich.progress import track

from support.engine_pair import OFF, PLUGIN, EnginePair, EngineUnavailableError, engine_python

CONTESTANTS = (("SGLang, unmodified", OFF), ("SGLang, bootstrap-grpc", PLUGIN))
WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Run:
    """What one start of a pair came to."""

    requests: int
    failures: int
    ttft_p50_ms: float
    ttft_p99_ms: float
    per_second: float
    time_wait: int
    """Sockets in TIME-WAIT that the decode side of bootstrap calls left."""
    http_connections: int
    """TCP connections to the bootstrap HTTP port that the decode server has open at the end."""


def measure(which: int, requests: int, at_once: int) -> Run:
    _, environment = CONTESTANTS[which]
    with (
        tempfile.TemporaryDirectory() as folder,
        EnginePair(Path(folder), prefill=environment, decode=environment) as pair,
        ThreadPoolExecutor(at_once) as threads,
    ):
        list(threads.map(pair.request_room, pair.rooms(WARM_UP)))
        started = time.monotonic()
        answers = list(threads.map(pair.request_room, pair.rooms(requests)))
        seconds = time.monotonic() - started
        waiting = sum(
            each.status == psutil.CONN_TIME_WAIT
            and bool(each.raddr)
            and each.raddr.port == pair.bootstrap_port
            for each in psutil.net_connections("tcp")
        )
        open_now = len(pair.decode.connections(pair.bootstrap_port))
    good = [answer for answer in answers if not answer.error]
    ttfts = [answer.ttft * 1000 for answer in good]
    return Run(
        len(answers),
        len(answers) - len(good),
        percentile(ttfts, 50) if ttfts else float("nan"),
        percentile(ttfts, 99) if ttfts else float("nan"),
        len(good) / seconds,
        waiting,
        open_now,
    )


def _spread(values: Sequence[float], digits: int = 1) -> str:
    """The median, and the lowest and the highest."""
    middle, low, high = (f"{v:.{digits}f}" for v in (median(values), min(values), max(values)))
    return f"{middle} ({low} to {high})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=4, help="starts of each pair (4)")
    parser.add_argument("--requests", type=int, default=200, help="requests of a run (200)")
    parser.add_argument("--at-once", type=int, default=4, help="clients (4)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--write", action="store_true", help="rewrite the section of README.md")
    arguments = parser.parse_args()
    try:
        engine_python()
    except EngineUnavailableError as error:
        print(f"engine_pair: cannot run here: {error}", file=sys.stderr)
        return 2
    runs: dict[int, list[Run]] = {0: [], 1: []}
    order = list(turns(arguments.runs))
    for pair in track(order, "pairs of starts", console=Console(stderr=True)):
        for which in pair:
            runs[which].append(measure(which, arguments.requests, arguments.at_once))
    headings = ("starts", "requests", "failures", "TTFT p50 ms", "TTFT p99 ms", "requests/s")
    table = ReportTable("engine", *headings, "TIME-WAIT", "HTTP conns")
    for which, (name, _) in enumerate(CONTESTANTS):
        own = runs[which]
        table.add(
            name,
            str(len(own)),
            str(sum(run.requests for run in own)),
            str(sum(run.failures for run in own)),
            _spread([run.ttft_p50_ms for run in own]),
            _spread([run.ttft_p99_ms for run in own]),
            _spread([run.per_second for run in own]),
            _spread([run.time_wait for run in own], 0),
            _spread([run.http_connections for run in own], 0),
        )
    if arguments.json:
        print(
            json.dumps({CONTESTANTS[w][0]: [repr(run) for run in own] for w, own in runs.items()})
        )
    else:
        table.show("whole servers in turns: median (lowest to highest)")
    if arguments.write:
        write_section("engine_pair", [table.markdown()], command=f"python {' '.join(sys.argv)}")
    return 1 if any(run.failures for own in runs.values() for run in own) else 0


if __name__ == "__main__":
    sys.exit(main())
