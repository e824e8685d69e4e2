"""The event loops of the two kinds of schedulers, with the order of SGLang 0.5.23's.

Modelled on ``event_loop_overlap_disagg_prefill`` and ``event_loop_overlap_disagg_decode`` and
their ``normal`` forms. A pass: requests are taken in, queues are looked after (this is where the
bootstrap service is called), a step is launched, and the result of the step before it (``normal``:
of this one) is awaited and processed.

What is left out: tokenisation, memory for KV caches (no request is ever turned away for want of
it), the collective operations among the ranks of a server.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq

from simulation.model import Request, Settings
from simulation.sides import DecodeSide, PrefillSide

__all__ = ["Mail", "Report", "run_decode", "run_prefill"]

_IDLE = 0.0005
"""Seconds between two passes with nothing to run. SGLang's loop goes round at once, on a core of
its own; here all share few, so all contestants wait alike."""

_ROOM = struct.Struct("<Q")


@dataclass
class Report:
    """What a scheduler saw. Points in time are after the start of the run, by request number."""

    registered: dict[int, float] = field(default_factory=dict)
    resolved: dict[int, float] = field(default_factory=dict)
    first_token: dict[int, float] = field(default_factory=dict)
    finished: dict[int, float] = field(default_factory=dict)
    bootstrap_seconds: float = 0.0
    """Time of the scheduler's thread in bootstrap calls."""
    longest: float = 0.0
    """The most of it in one pass."""
    loop_seconds: float = 0.0
    """From the start of the run to the scheduler's last request."""
    steps: int = 0


class Mail:
    """What schedulers tell each other past the bootstrap service: rooms, over ZeroMQ as in SGLang.

    :param folder: where the sockets are.
    """

    def __init__(self, folder: str, own: str, others: Sequence[str]) -> None:
        self._context = zmq.Context(1)
        self._inbox: zmq.Socket[bytes] = self._context.socket(zmq.PULL)
        self._inbox.bind(f"ipc://{folder}/{own}")
        self._outboxes: dict[str, zmq.Socket[bytes]] = {}
        for other in others:
            outbox = self._context.socket(zmq.PUSH)
            outbox.connect(f"ipc://{folder}/{other}")
            self._outboxes[other] = outbox

    def send(self, other: str, room: int) -> None:
        self._outboxes[other].send(_ROOM.pack(room))

    def receive(self) -> list[int]:
        """Return the rooms that came; never waits."""
        rooms: list[int] = []
        with contextlib.suppress(zmq.Again):
            while True:
                rooms.append(_ROOM.unpack(self._inbox.recv(zmq.NOBLOCK))[0])
        return rooms

    def close(self) -> None:
        for each in (self._inbox, *self._outboxes.values()):
            each.close(linger=0)
        self._context.term()


class _Gpu:
    """Runs steps one after the other and says when each is done."""

    def __init__(self, kind: str) -> None:
        self._computes = kind == "cpu"
        self._free = 0.0

    def launch(self, seconds: float) -> float:
        """Start a step behind those under way; return when it will be done."""
        if self._computes:
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                sum(range(500))
            return time.monotonic()
        self._free = max(self._free, time.monotonic()) + seconds
        return self._free

    @staticmethod
    def wait(done: float) -> None:
        """Wait as SGLang does for a result: the thread sleeps and holds no interpreter lock."""
        rest = done - time.monotonic()
        if rest > 0:
            time.sleep(rest)


class _Loop:
    """What the two loops share. ``alive`` ends a loop that would wait for ever."""

    def __init__(
        self,
        settings: Settings,
        requests: Iterable[Request],
        start: float,
        alive: Callable[[], bool],
    ) -> None:
        self.report = Report()
        self._arrivals = deque(requests)
        self._start = start
        self._alive = alive
        self._gpu = _Gpu(settings.step_kind)
        self._in_flight = 1 if settings.loop == "overlap" and settings.step_kind == "sleep" else 0
        self._launched: deque[tuple[float, Any]] = deque()
        self._pass_seconds = 0.0

    def now(self) -> float:
        return time.monotonic() - self._start

    def ingest(self) -> list[Request]:
        """Return the requests that have arrived."""
        came: list[Request] = []
        now = self.now()
        while self._arrivals and self._arrivals[0].arrival <= now:
            came.append(self._arrivals.popleft())
        return came

    def run_step(self, batch: Any, seconds: float) -> list[Any]:
        """Launch a step where there is a batch; return the batches whose results are due."""
        if batch:
            self._launched.append((self._gpu.launch(seconds), batch))
            self.report.steps += 1
        elif not self._launched:
            time.sleep(_IDLE)
        done: list[Any] = []
        # With nothing launched in this pass, what is under way is awaited all the same.
        while len(self._launched) > (self._in_flight if batch else 0):
            end, earlier = self._launched.popleft()
            self._gpu.wait(end)
            done.append(earlier)
        return done

    def timed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call the bootstrap service."""
        before = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            self._pass_seconds += time.perf_counter() - before

    def end_pass(self) -> None:
        self.report.bootstrap_seconds += self._pass_seconds
        self.report.longest = max(self.report.longest, self._pass_seconds)
        self._pass_seconds = 0.0

    def goes_on(self, *, unfinished: bool) -> bool:
        if unfinished and self._alive():
            return True
        self.report.loop_seconds = self.now()
        return False


def run_prefill(
    side: PrefillSide,
    settings: Settings,
    requests: Sequence[Request],
    mail: Mail,
    *,
    start: float,
    alive: Callable[[], bool],
) -> Report:
    """Take ``requests``, each to be computed once its decode has called, and hand them on."""
    loop = _Loop(settings, requests, start, alive)
    by_room = {request.room: request for request in requests}
    waiting: deque[Request] = deque()
    unfinished = len(requests)
    _sleep_until(start)
    while loop.goes_on(unfinished=unfinished > 0):
        for request in loop.ingest():
            loop.timed(side.take, request)
            loop.report.registered[request.number] = loop.now()
        waiting += (by_room[room] for room in mail.receive())
        batch = [waiting.popleft() for _ in range(min(len(waiting), settings.prefill_batch))]
        for computed in loop.run_step(batch, settings.prefill_step):
            for request in computed:
                mail.send(f"decode-{request.decode}", request.room)
            unfinished -= len(computed)
        loop.end_pass()
    return loop.report


def run_decode(
    side: DecodeSide,
    settings: Settings,
    requests: Sequence[Request],
    mail: Mail,
    *,
    start: float,
    alive: Callable[[], bool],
    on_finished: Callable[[int], None],
) -> Report:
    """Learn the DP rank of each of ``requests``, call its prefill, and produce its tokens."""
    loop = _Loop(settings, requests, start, alive)
    report = loop.report
    by_room = {request.room: request for request in requests}
    transferred: deque[Request] = deque()
    running: dict[int, int] = {}  # number -> tokens to be launched
    left = {request.number: settings.tokens for request in requests}
    _sleep_until(start)
    while loop.goes_on(unfinished=bool(left)):
        loop.timed(side.begin_pass)
        for request in loop.ingest():
            loop.timed(side.submit, request)
        for request, dp_rank in loop.timed(side.resolve):
            report.resolved[request.number] = loop.now()
            mail.send(f"prefill-{dp_rank}", request.room)
        transferred += (by_room[room] for room in mail.receive())
        while transferred and len(running) < settings.slots:
            running[transferred.popleft().number] = settings.tokens
        batch = list(running)
        for number in batch:
            running[number] -= 1
            if not running[number]:
                del running[number]
        for stepped in loop.run_step(batch, settings.step):
            now = loop.now()
            for number in stepped:
                report.first_token.setdefault(number, now)
                left[number] -= 1
                if not left[number]:
                    del left[number]
                    report.finished[number] = now
        on_finished(len(report.finished))
        loop.end_pass()
    return report


def _sleep_until(start: float) -> None:
    time.sleep(max(0.0, start - time.monotonic()))
