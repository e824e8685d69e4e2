"""Throughput of the HTTP port under ``wrk``, beside SGLang's own server of the same release.

Both servers run at once and are loaded in turns, in short runs; one wrk thread. Needs ``wrk``
(Debian package ``wrk``).

Exit status: 0 where the median throughput of the per-rank route is at least SGLang's, 1 where
not, 2 where wrk or SGLang cannot be had here.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from harness.load import ROOMS
from harness.paired import ratio_of_medians, turns
from harness.report import ReportTable, write_section
from harness.servers import run_command, run_sglang
from rich.console import Console
from rich.progress import track

from support.sglang_release import NEWEST, ReleaseUnavailableError

ROUTE = "/route?prefill_dp_rank=1&prefill_cp_rank=0&target_tp_rank=1&target_pp_rank=0"
TARGET = 1.0  # for the per-rank route (issue 2); the others are shown
_QUERY = f"""\
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{json.dumps({"bootstrap_rooms": list(ROOMS)})}'
"""


@dataclass(frozen=True)
class Load:
    """A request that is repeated."""

    name: str
    path: str
    script: str = ""
    """Lua for wrk; none means a plain GET."""


LOADS = (
    Load("GET /route, one rank", ROUTE),
    Load(f"POST /query_dp_ranks, {len(ROOMS)} rooms", "/query_dp_ranks", _QUERY),
    Load("GET /health", "/health"),
)


class WrkError(Exception):
    """wrk failed, or the server answered anything but 2xx."""


def wrk(url: str, load: Load, *, seconds: int, connections: int) -> float:
    """Return the requests per second of one run.

    :raises WrkError: an answer was not 2xx, a connection failed, or wrk itself did.
    """
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "load.lua"
        script.write_text(load.script, encoding="utf-8")
        done = subprocess.run(
            [
                *("wrk", "--threads", "1", "--connections", str(connections)),
                *("--duration", f"{seconds}s", "--script", str(script), url + load.path),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    rate = re.search(r"^Requests/sec: +([\d.]+)", done.stdout, re.MULTILINE)
    if rate is None or "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        raise WrkError(f"{url}{load.path}: {done.stdout}{done.stderr}")
    return float(rate[1])


def measure(rounds: int, seconds: int, connections: int) -> dict[str, tuple[list[float], ...]]:
    """Return the rates of SGLang's server and of this project's, for each load."""
    rates: dict[str, tuple[list[float], ...]] = {load.name: ([], []) for load in LOADS}
    with ExitStack() as stack:
        theirs = stack.enter_context(run_sglang(NEWEST, host="127.0.0.1"))
        ours = stack.enter_context(run_command(NEWEST))
        urls = [f"http://127.0.0.1:{ports.http}" for ports in (theirs, ours)]
        for url in urls:
            for load in LOADS:  # warms up
                wrk(url, load, seconds=1, connections=connections)
        runs = [(load, order) for order in turns(rounds) for load in LOADS]
        for load, order in track(runs, "pairs of runs", console=Console(stderr=True)):
            for which in order:
                rate = wrk(urls[which], load, seconds=seconds, connections=connections)
                rates[load.name][which].append(rate)
    return rates


def table_of(rates: dict[str, tuple[list[float], ...]]) -> ReportTable:
    """Return the medians and their ratio, one load a row."""
    table = ReportTable("requests/s, median", f"SGLang {NEWEST}", "bootstrap-grpc", "ratio")
    for name, (theirs, ours) in rates.items():
        figures = (f"{median(theirs):,.0f}", f"{median(ours):,.0f}")
        table.add(name, *figures, f"{ratio_of_medians(ours, theirs):.2f}")
    return table


def arguments_of(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=10, help="pairs of runs for each load (10)")
    parser.add_argument("--seconds", type=int, default=1, help="whole seconds of a run (1)")
    parser.add_argument("--connections", type=int, default=16, help="kept-alive connections (16)")
    parser.add_argument("--quick", action="store_true", help="3 pairs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--write", action="store_true", help="rewrite the section of README.md")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.rounds = 3
    return arguments


def main() -> int:
    arguments = arguments_of(sys.argv[1:])
    if shutil.which("wrk") is None:
        print("http_throughput: cannot run here: no wrk (Debian package wrk)", file=sys.stderr)
        return 2
    try:
        rates = measure(arguments.rounds, arguments.seconds, arguments.connections)
    except ReleaseUnavailableError as error:
        print(f"http_throughput: cannot run here: {error}", file=sys.stderr)
        return 2
    table = table_of(rates)
    if arguments.json:
        print(json.dumps({n: {"sglang": t, "ours": o} for n, (t, o) in rates.items()}, indent=2))
    else:
        table.show(f"wrk, {arguments.connections} connections")
    if arguments.write:
        write_section("http_throughput", [table.markdown()], command=f"python {' '.join(sys.argv)}")
    theirs, ours = rates[LOADS[0].name]
    return 0 if ratio_of_medians(ours, theirs) >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
