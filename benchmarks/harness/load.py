"""What a load process is asked to do and answers: one JSON line each way per kind of query."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from support.sglang_process import ChildProcess

__all__ = ["DP_RANKS", "ROOMS", "SIZES", "Kind", "LoadProcess", "Outcome", "serve_load"]

SIZES = (2, 1, 2, 1)
"""(tp, cp, dp, pp) of the prefill server that is queried."""

ROOMS = range(1000, 1064)
"""Rooms with a registered DP rank: room modulo ``DP_RANKS``."""

DP_RANKS = 2

Kind = Callable[[int], list[str]]
"""One query; takes its number, returns the reasons why it failed, if it did."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a process made of its queries of one kind."""

    queries: int
    failures: int
    errno_99: int
    """Failures for want of a local port: ``[Errno 99] Cannot assign requested address``."""
    seconds: float
    cpu_seconds: float
    """User and system time of the whole process meanwhile."""
    latencies_us: tuple[float, ...] = ()
    """Of each query, where that was asked for."""


class LoadProcess(ChildProcess):
    """The other end: a child that sends queries when it is told to.

    :param address: ``HOST:PORT`` that it queries.
    :param release: the folder of an SGLang release, or ``None`` for this project's client.
    :param prefix: a command to run it under.
    """

    def __init__(self, address: str, release: Path | None, *, prefix: Sequence[str] = ()) -> None:
        folder = Path(__file__).resolve().parent
        if release is None:
            script, arguments = folder / "load_grpc.py", [address]
        else:
            script, arguments = folder / "load_sglang.py", [str(release), address]
        super().__init__(script, arguments, prefix=prefix, timeout=60.0)

    def begin(self, kind: str, count: int, *, latencies: bool = False) -> None:
        """Let it send ``count`` queries."""
        self.send({"kind": kind, "count": count, "latencies": latencies})

    def finish(self, timeout: float = 900.0) -> Outcome:
        """Return what they came to."""
        answer: dict[str, Any] = self.receive(timeout)
        return Outcome(**answer)


def serve_load(kinds: Mapping[str, Kind]) -> None:
    """Answer ``{"kind": NAME, "count": N, "latencies": BOOL}`` lines on stdin until its end.

    The connections that the queries opened stay as they are meanwhile, to be counted.
    """
    answers, sys.stdout = sys.stdout, sys.stderr

    def send(message: dict[str, object]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    send({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        send(asdict(_run(kinds[request["kind"]], request["count"], request["latencies"])))


def _run(query: Kind, count: int, latencies: bool) -> Outcome:  # noqa: FBT001 # from the request
    failures = errno_99 = 0
    times: list[float] = []
    start, cpu = time.perf_counter(), time.process_time()
    for number in range(count):
        before = time.perf_counter()
        reasons = query(number)
        if latencies:
            times.append(round((time.perf_counter() - before) * 1e6, 1))
        failures += bool(reasons)
        errno_99 += any("[Errno 99]" in reason for reason in reasons)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return Outcome(count, failures, errno_99, seconds, cpu, tuple(times))
