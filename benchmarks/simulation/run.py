"""A contestant's schedulers, and what comes of a run of theirs."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
from harness.paired import percentile

from simulation.contestants import Contestant
from simulation.model import Settings, trace
from simulation.sockets import client_time_waits
from support.sglang_process import ChildError, ChildProcess

__all__ = ["RunResult", "Team"]

_SCHEDULER = Path(__file__).with_name("scheduler.py")
_START_TIMEOUT = 60.0
_LEAD = 0.3
"""Seconds from the order to start until the start, so that all have read it."""
_GRACE = 30.0
"""Seconds after the last arrival until a run is given up."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """Figures of one run. Times in milliseconds where the name says so, else in seconds."""

    transport: str
    loop: str
    requests: int
    completed: int
    ttft_p50_ms: float
    ttft_p99_ms: float
    resolve_p50_ms: float
    """From registered, or from the arrival at the decode where that is later, to resolved."""
    throughput: float
    """Completed requests a second, from the first arrival to the last token."""
    prefill_share: float
    """Part of the prefill schedulers' time that went into bootstrap calls."""
    decode_share: float
    longest_ms: float
    """The most time that one pass of a loop lost to bootstrap calls."""
    prefill_connections: int
    """Opened to the server, from the registration of the ranks on."""
    decode_connections: int
    time_wait: int
    """Client-side TIME-WAIT sockets when the last request was done."""
    server_cpu: float
    """Of the server, from the start of the trace to its end."""
    scheduler_cpu: float
    """Of all schedulers, background threads included."""
    errors: tuple[str, ...]
    """The first few of what the clients logged or raised."""
    ttfts_ms: tuple[float, ...] = field(repr=False, default=())


class Team:
    """The schedulers of one contestant. They live for all its runs, as schedulers do.

    Use as context manager; on exit their processes have ended.
    """

    def __init__(self, contestant: Contestant, settings: Settings) -> None:
        """``settings`` gives their numbers; those of a run may differ in the rest.

        :raises support.sglang_release.ReleaseUnavailableError: SGLang cannot be had here.
        """
        self.contestant = contestant
        self._settings = settings
        self._stack = ExitStack()
        self._release = contestant.release()
        self._prefills: list[ChildProcess] = []
        self._decodes: list[ChildProcess] = []

    def __enter__(self) -> Team:
        try:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory())
            for role, team in (("prefill", self._prefills), ("decode", self._decodes)):
                for rank in range(getattr(self._settings, role)):
                    team.append(self._scheduler(role, rank, folder))
            for child in (*self._prefills, *self._decodes):
                child.start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace_back: TracebackType | None,
    ) -> None:
        self._stack.close()

    def run(self, settings: Settings, on_finished: Callable[[int], None]) -> RunResult:
        """Run the trace on a server of its own, which has ended when this returns or raises.

        ``on_finished`` is told the number of requests done, from other threads.
        """
        schedulers = [*self._prefills, *self._decodes]
        with self.contestant.serve() as server:
            not_ours = client_time_waits(server.port)
            for group in (self._prefills, self._decodes):  # a decode wants the whole topology
                for child in group:
                    child.send({"join": server.address, "settings": asdict(settings)})
                for child in group:
                    _must_join(child)
            process = psutil.Process(server.pid)
            cpu_before = sum(process.cpu_times()[:2])
            start = time.monotonic() + _LEAD
            give_up = start + settings.duration + _GRACE
            for child in schedulers:
                child.send({"start": start, "give_up": give_up})
            reports = _collect(schedulers, give_up + 10.0, on_finished)
            server_cpu = sum(process.cpu_times()[:2]) - cpu_before
            time_wait = len(client_time_waits(server.port) - not_ours)
            for child in schedulers:  # before their server is gone
                child.send({"leave": True})
            for child in schedulers:
                child.receive()
        return _result(
            self.contestant,
            settings,
            reports[: len(self._prefills)],
            reports[len(self._prefills) :],
            time_wait=time_wait,
            server_cpu=server_cpu,
        )

    def _scheduler(self, role: str, rank: int, folder: str) -> ChildProcess:
        options = {
            "role": role,
            "rank": rank,
            "release": str(self._release) if self._release else None,
            "folder": folder,
            "settings": asdict(self._settings),
        }
        child = ChildProcess(_SCHEDULER, [json.dumps(options)], timeout=_START_TIMEOUT)
        self._stack.callback(child.close)
        return child


def _must_join(child: ChildProcess) -> None:
    answer = child.receive()
    if answer["errors"]:
        raise ChildError(f"a scheduler could not join: {'; '.join(answer['errors'])}")


def _collect(
    children: list[ChildProcess], deadline: float, on_finished: Callable[[int], None]
) -> list[dict[str, Any]]:
    """Return the report of each child; hand on what they tell meanwhile."""
    finished = [0] * len(children)
    reports: list[dict[str, Any] | BaseException] = [{}] * len(children)

    def listen(number: int) -> None:
        try:
            while True:
                message = children[number].receive(max(0.1, deadline - time.monotonic()))
                if "report" in message:
                    reports[number] = message["report"]
                    return
                finished[number] = message["finished"]
                on_finished(sum(finished))
        except BaseException as error:
            reports[number] = error

    threads = [
        threading.Thread(target=listen, args=(n,), daemon=True) for n in range(len(children))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found: list[dict[str, Any]] = []
    for report in reports:
        if isinstance(report, BaseException):
            raise report
        found.append(report)
    return found


def _result(
    contestant: Contestant,
    settings: Settings,
    prefills: list[dict[str, Any]],
    decodes: list[dict[str, Any]],
    *,
    time_wait: int,
    server_cpu: float,
) -> RunResult:
    requests = trace(settings)
    registered, resolved, first, finished = (
        _merged(reports, name)
        for reports, name in (
            (prefills, "registered"),
            (decodes, "resolved"),
            (decodes, "first_token"),
            (decodes, "finished"),
        )
    )
    ttfts = [(first[r.number] - r.arrival) * 1e3 for r in requests if r.number in first]
    waits = [
        max(0.0, resolved[r.number] - registered[r.number]) * 1e3
        for r in requests
        if r.number in resolved and r.number in registered
    ]
    everyone = [*prefills, *decodes]
    span = max(finished.values(), default=0.0) - requests[0].arrival
    return RunResult(
        transport=contestant.name,
        loop=settings.loop,
        requests=len(requests),
        completed=len(finished),
        ttft_p50_ms=percentile(ttfts, 50) if ttfts else 0.0,
        ttft_p99_ms=percentile(ttfts, 99) if ttfts else 0.0,
        resolve_p50_ms=percentile(waits, 50) if waits else 0.0,
        throughput=len(finished) / span if span > 0 else 0.0,
        prefill_share=_share(prefills),
        decode_share=_share(decodes),
        longest_ms=max(report["longest"] for report in everyone) * 1e3,
        prefill_connections=sum(report["connections"] for report in prefills),
        decode_connections=sum(report["connections"] for report in decodes),
        time_wait=time_wait,
        server_cpu=server_cpu,
        scheduler_cpu=sum(report["cpu_seconds"] for report in everyone),
        errors=tuple(dict.fromkeys(e for report in everyone for e in report["errors"]))[:5],
        ttfts_ms=tuple(round(value, 2) for value in ttfts),
    )


def _merged(reports: list[dict[str, Any]], name: str) -> dict[int, float]:
    return {int(number): when for report in reports for number, when in report[name].items()}


def _share(reports: list[dict[str, Any]]) -> float:
    seconds = sum(report["loop_seconds"] for report in reports)
    lost = sum(report["bootstrap_seconds"] for report in reports)
    return lost / seconds if seconds else 0.0
