"""How a benchmark ends before its time."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["ended_by_sigterm"]


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that namespaces and processes do not outlive the run."""

    def leave(_signal: int, _frame: FrameType | None) -> None:
        sys.exit(143)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
