"""What is promised, beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.report import ReportTable

__all__ = ["Target", "targets_table"]


@dataclass(frozen=True, slots=True)
class Target:
    """One promise. ``limit`` is the most allowed, or the least where ``at_least``."""

    what: str
    measured: float
    limit: float
    unit: str = ""
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


def targets_table(targets: Sequence[Target]) -> ReportTable:
    """Return one row for each promise."""
    table = ReportTable("promise", "measured", "target", "met")
    for target in targets:
        bound = f"{'≥' if target.at_least else '≤'} {_shown(target.limit, target.unit)}"
        met = "yes" if target.met else "**no**"
        table.add(target.what, _shown(target.measured, target.unit), bound, met)
    return table


def _shown(value: float, unit: str) -> str:
    digits = f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"
    return f"{digits} {unit}".strip()
