"""What several runs of several contestants come to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from statistics import median

from harness.report import ReportTable

from simulation.contestants import CONTESTANTS, Contestant
from simulation.model import Settings
from simulation.run import RunResult

__all__ = ["Row", "changes_table", "main_table", "summed_up", "unkept"]

UPSTREAM = "sgl-project/sglang#31543: pooled against unpooled"
"""1 prefill and 1 decode server with 8 decode schedulers, DeepSeek-V4-Pro, 1,000 requests of 8k
tokens at concurrency 500; TTFT p99 96.1 s -> 87.8 s, 4,534 -> 4,715 tokens/s."""

_SOCKETS = ("prefill_connections", "decode_connections", "time_wait")

_TIMES_LESS = 10
_CONNECTIONS_A_PROCESS = 2  # its rank is held by blocking calls, its rooms go over streams


@dataclass(frozen=True, slots=True)
class Row:
    """The medians of one contestant's runs in one kind of loop."""

    contestant: Contestant
    loop: str
    runs: tuple[RunResult, ...]

    def figure(self, name: str) -> float:
        """Return the median of a figure of ``RunResult``."""
        return median(float(getattr(run, name)) for run in self.runs)

    def total(self, name: str) -> int:
        return sum(int(getattr(run, name)) for run in self.runs)

    def as_dict(self) -> dict[str, object]:
        """Return the medians, and the requests and errors of all runs."""
        names = [f.name for f in fields(RunResult) if f.type in {"int", "float"}]
        medians: dict[str, object] = {name: self.figure(name) for name in names}
        totals = {name: self.total(name) for name in ("requests", "completed")}
        errors = [error for run in self.runs for error in run.errors]
        return {
            "transport": self.contestant.name,
            "loop": self.loop,
            "runs": len(self.runs),
            **medians,
            **totals,
            "errors": errors,
        }


def summed_up(results: Sequence[RunResult], loops: Sequence[str]) -> list[Row]:
    """Return a row for each kind of loop and contestant, in the order of the table."""
    return [
        Row(
            contestant,
            loop,
            tuple(r for r in results if r.transport == contestant.name and r.loop == loop),
        )
        for loop in loops
        for contestant in CONTESTANTS
    ]


def unkept(rows: Sequence[Row], settings: Settings) -> Iterator[str]:
    """Give what this project promises and did not hold."""
    most = _CONNECTIONS_A_PROCESS * (settings.prefill + settings.decode)
    pooled = {row.loop: row for row in rows if row.contestant.name == "pooled"}
    for row in rows:
        missing = row.total("requests") - row.total("completed")
        if row.contestant.version:
            continue
        if missing:
            yield f"{row.loop}: {missing} requests not completed"
        for run in row.runs:
            if run.time_wait:
                yield f"{row.loop}: {run.time_wait} TIME-WAIT sockets"
            connections = run.prefill_connections + run.decode_connections
            if connections > most:
                yield f"{row.loop}: {connections} connections, at most {most} expected"
        # A decode that is told to wait does.
        shares = ("prefill_share",) if settings.wait else ("prefill_share", "decode_share")
        for share in shares:
            if row.figure(share) * _TIMES_LESS > pooled[row.loop].figure(share):
                yield f"{row.loop}: {share} is {row.figure(share):.1%}"


def main_table(rows: Sequence[Row]) -> ReportTable:
    """Return the table of figures."""
    table = ReportTable(
        "transport",
        "loop",
        "requests",
        "TTFT p50 ms",
        "TTFT p99 ms",
        "req/s",
        "prefill share",
        "decode share",
        "worst ms",
        "prefill conns",
        "decode conns",
        "TIME-WAIT",
        "server CPU s",
        "sched. CPU s",
    )
    for row in rows:
        table.add(
            row.contestant.label,
            row.loop,
            f"{row.total('completed'):,}/{row.total('requests'):,}",
            *(f"{row.figure(name):.0f}" for name in ("ttft_p50_ms", "ttft_p99_ms")),
            f"{row.figure('throughput'):.1f}",
            *(f"{row.figure(name):.1%}" for name in ("prefill_share", "decode_share")),
            f"{row.figure('longest_ms'):.1f}",
            *(f"{row.figure(name):,.0f}" for name in _SOCKETS),
            *(f"{row.figure(name):.2f}" for name in ("server_cpu", "scheduler_cpu")),
        )
    return table


def changes_table(rows: Sequence[Row], loops: Sequence[str]) -> ReportTable:
    """Return what each step changed, with what SGLang's project saw of the first."""
    table = ReportTable("change", "loop", "TTFT p50", "TTFT p99", "throughput", "TIME-WAIT")
    table.add(UPSTREAM, "not said", "", "-9 %", "+4 %", "10,100 → 0")
    found = {(row.contestant.name, row.loop): row for row in rows}
    for label, before, after in (
        ("pooled against unpooled", "unpooled", "pooled"),
        ("bootstrap-grpc against pooled", "pooled", "grpc"),
    ):
        for loop in loops:
            old, new = found[before, loop], found[after, loop]
            names = ("ttft_p50_ms", "ttft_p99_ms", "throughput")
            sockets = f"{old.figure('time_wait'):,.0f} → {new.figure('time_wait'):,.0f}"
            table.add(label, loop, *(_change(old.figure(n), new.figure(n)) for n in names), sockets)
    return table


def _change(old: float, new: float) -> str:
    if not old:
        return "—"
    percent = round((new / old - 1) * 100)
    return f"{percent:+d} %" if percent else "0 %"
