"""Arrivals on a schedule that two processes share, and when each of them happened.

``time.monotonic_ns`` is one clock for all processes of a host.
"""

from __future__ import annotations

import mmap
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

__all__ = ["Arrivals", "Stamps"]

_LEAST_SLEEP = 0.0005
"""Seconds: at 2,000 arrivals a second each comes alone, at 20,000 ten come together."""


class Arrivals:
    """``count`` arrivals, ``rate`` a second, the first at ``start_ns``."""

    def __init__(self, rate: float, count: int, start_ns: int) -> None:
        self._interval_ns = 1e9 / rate
        self._count = count
        self._start_ns = start_ns
        self._taken = 0

    @property
    def left(self) -> int:
        return self._count - self._taken

    def due(self) -> range:
        """The numbers of the arrivals since the last call."""
        elapsed = time.monotonic_ns() - self._start_ns
        number = min(self._count, int(elapsed / self._interval_ns) + 1) if elapsed >= 0 else 0
        due = range(self._taken, max(number, self._taken))
        self._taken = due.stop
        return due

    def paced(self) -> Iterator[range]:
        """Wait for the arrivals, and give those that are due together."""
        while self.left:
            if due := self.due():
                yield due
            due_at = self._start_ns + self._taken * self._interval_ns
            time.sleep(max(_LEAST_SLEEP, (due_at - time.monotonic_ns()) / 1e9))


class Stamps:
    """One time for each arrival, in memory that processes share; 0 where it has none yet."""

    def __init__(self, path: Path, count: int) -> None:
        """Makes the file where it is missing; both sides must name the same ``count``."""
        with path.open("a+b") as file:
            file.truncate(8 * count)
            self._map = mmap.mmap(file.fileno(), 8 * count)
        self.times = memoryview(self._map).cast("q")

    @staticmethod
    def new_path(folder: Path) -> Path:
        """A file that no other run uses."""
        with tempfile.NamedTemporaryFile(dir=folder, prefix="stamps-", delete=False) as file:
            return Path(file.name)

    def __enter__(self) -> Stamps:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.times.release()
        self._map.close()
