"""The figures as one picture. Needs matplotlib, which nothing else here does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulation.contestants import CONTESTANTS
from simulation.summary import Row

__all__ = ["draw"]

_COLOURS = {"unpooled": "#b2182b", "pooled": "#ef8a62", "grpc": "#2166ac"}
_BAR = 0.26


def draw(rows: Sequence[Row], loops: Sequence[str], path: Path) -> None:
    """Write a PNG: the TTFTs of the median run, the loops' share, the sockets and the CPU.

    :raises ImportError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes: list[Any] = [figure.add_subplot(2, 3, n + 1) for n in range(len(loops) + 3)]
    for place, loop in zip(axes, loops, strict=False):
        _distribution(place, [row for row in rows if row.loop == loop])
        place.set_title(f"TTFT, {loop} loop")
    share, sockets, cpu = axes[len(loops) :]
    names = [f"{role}\n{loop}" for loop in loops for role in ("prefill", "decode")]
    _bars(share, names, rows, lambda row, role: row.figure(f"{role}_share") * 100, loops)
    share.set_title("share of the loop in bootstrap calls")
    share.set_ylabel("%")
    sockets_of = {
        "prefill_connections": "connections,\nprefill",
        "decode_connections": "connections,\ndecode",
        "time_wait": "TIME-WAIT\nat the end",
    }
    _plain_bars(sockets, rows, loops[0], sockets_of)
    sockets.set_title(f"sockets, {loops[0]} loop")
    costs = {"server_cpu": "server", "scheduler_cpu": "all schedulers"}
    _plain_bars(cpu, rows, loops[0], costs)
    cpu.set_title(f"CPU, {loops[0]} loop")
    cpu.set_ylabel("s")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90, metadata={"Software": None})  # the same figures, the same file


def _distribution(place: Any, rows: Sequence[Row]) -> None:
    for row in rows:
        # One run, as the table's median is: a pause of the machine in another must not show here.
        by_p99 = sorted(row.runs, key=lambda run: run.ttft_p99_ms)
        values = sorted(by_p99[(len(by_p99) - 1) // 2].ttfts_ms)
        parts = [(number + 1) / len(values) * 100 for number in range(len(values))]
        colour = _COLOURS[row.contestant.name]
        place.plot(values, parts, color=colour, label=row.contestant.label)
    place.set_xlabel("ms")
    place.set_ylabel("% of requests")
    place.set_xlim(left=0)
    place.grid(alpha=0.3)


def _bars(place: Any, names: list[str], rows: Sequence[Row], value: Any, loops: Any) -> None:
    for number, contestant in enumerate(CONTESTANTS):
        own = {row.loop: row for row in rows if row.contestant is contestant}
        heights = [value(own[loop], role) for loop in loops for role in ("prefill", "decode")]
        _group(place, number, contestant.name, heights)
    place.set_xticks(range(len(names)), names)


def _plain_bars(place: Any, rows: Sequence[Row], loop: str, figures: dict[str, str]) -> None:
    for number, contestant in enumerate(CONTESTANTS):
        row = next(r for r in rows if r.contestant is contestant and r.loop == loop)
        heights = [row.figure(name) for name in figures]
        _group(place, number, contestant.name, heights)
    place.set_xticks(range(len(figures)), list(figures.values()))


def _group(place: Any, number: int, name: str, heights: list[float]) -> None:
    positions = [slot + (number - 1) * _BAR for slot in range(len(heights))]
    bars = place.bar(positions, heights, _BAR, color=_COLOURS[name])
    place.bar_label(bars, fmt=_short, fontsize=7)
    place.grid(axis="y", alpha=0.3)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
