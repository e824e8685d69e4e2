"""A clock that moves only where a test says so."""

from __future__ import annotations

__all__ = ["FakeClock"]


class FakeClock:
    """Call it for the time in seconds. Starts far from 0, as a monotonic clock does."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"a monotonic clock never goes back, not by {seconds} s")
        self.now += seconds
