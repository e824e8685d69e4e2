"""How many bootstrap calls went which way, to be seen in the log of an engine."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import Counter

from bootstrap_grpc.compat.session_calls import Kind

__all__ = ["VARIABLE", "CallCounts", "interval"]

VARIABLE = "SGLANG_BOOTSTRAP_GRPC_REPORT"
"""Environment variable: seconds between two reports. Without it there are none."""

_log = logging.getLogger("bootstrap_grpc.session")


class CallCounts:
    """Calls so far. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, Kind]] = Counter()

    def over_grpc(self, kind: Kind) -> None:
        """A call was answered from memory, which the streams fill."""
        with self._lock:
            self._counts["grpc", kind] += 1

    def over_http(self, kind: Kind) -> None:
        """A call went out over HTTP, whatever became of it."""
        with self._lock:
            self._counts["http", kind] += 1

    def as_text(self) -> str:
        """JSON: transport to call to number."""
        with self._lock:
            counts = dict(self._counts)
        told: dict[str, dict[str, int]] = {"grpc": {}, "http": {}}
        for (transport, kind), number in counts.items():
            told[transport][kind.name.lower()] = number
        return json.dumps(told)

    def report_every(self, seconds: float) -> None:
        """Log the counts from a thread of its own, whenever they have changed."""
        threading.Thread(
            target=self._report, args=(seconds,), name="bootstrap-report", daemon=True
        ).start()

    def _report(self, seconds: float) -> None:
        told = CallCounts().as_text()  # nothing
        pause = threading.Event()
        while not pause.wait(seconds):
            text = self.as_text()
            if text != told:
                told = text
                _log.info("pid %d, bootstrap calls so far: %s", os.getpid(), text)


def interval(value: str) -> float | None:
    """Seconds from the environment variable's ``value``; ``None`` for no reports.

    Raises ValueError for what is no positive number.
    """
    if not value.strip():
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise ValueError(f"{VARIABLE} is {value!r}, must be seconds, more than 0 and at most 86400")
    return seconds
