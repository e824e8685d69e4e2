"""Small plots for ``benchmarks/README.md``; needs matplotlib (the ``bench`` extra)."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Panel", "draw", "have_matplotlib"]

_PLOTS = Path(__file__).resolve().parents[1] / "plots"

_OURS, _THEIRS = ("#1b6ca8", "o"), ("#c2571a", "s")
"""Colour and marker: told apart without colour, too."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes. ``series`` maps a name to its points; a p99 is drawn dotted."""

    title: str
    x: str
    y: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    target: float | None = None
    """Drawn as a dotted line."""


def have_matplotlib() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def draw(name: str, panels: Sequence[Panel]) -> str:
    """Draw the panels side by side into ``plots/NAME.png``; return the Markdown that shows it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(panels), 3.2), dpi=80, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=True):
        for label, points in panel.series.items():
            colour, marker = _OURS if label.startswith("bootstrap-grpc") else _THEIRS
            line = ":" if label.endswith("p99") else "-"
            xs, ys = zip(*sorted(points), strict=True)
            axis.plot(xs, ys, color=colour, linestyle=line, marker=marker, label=label)
        if panel.target is not None:
            axis.axhline(panel.target, color="#777777", linestyle="--", label="target")
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_title(panel.title, fontsize=10)
        axis.set_xlabel(panel.x)
        axis.set_ylabel(panel.y)
        axis.grid(visible=True, alpha=0.3)
        axis.legend(fontsize=8)
    _PLOTS.mkdir(exist_ok=True)
    figure.savefig(_PLOTS / f"{name}.png", metadata={"Software": None})
    alt = "; ".join(panel.title for panel in panels)
    return f"![{alt}](plots/{name}.png)"
