"""Figures of two contestants that took turns in one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

__all__ = ["percentile", "ratio_of_medians", "turns"]


def turns(pairs: int) -> Iterator[tuple[int, int]]:
    """Give the order of the contestants 0 and 1 in each pair, reversed in every other.

    A drift of the machine then weighs on both alike.
    """
    for number in range(pairs):
        yield (0, 1) if number % 2 == 0 else (1, 0)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least ``percent`` % of ``values`` do not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)  # rounded up
    return ordered[max(0, int(rank) - 1)]


def ratio_of_medians(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """Return median / median."""
    return median(numerator) / median(denominator)
