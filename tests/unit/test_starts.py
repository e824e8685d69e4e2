"""Streams are started at a bounded rate, and those that are over by then not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from bootstrap_grpc.client.starts import PacedStarts


class FakeLoop:
    """A loop's clock and its timers, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timers: list[tuple[float, Callable[[], object], asyncio.TimerHandle]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], object]) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, call, (), cast("Any", self))
        self._timers.append((when, call, handle))
        return handle

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Told by a handle that is cancelled."""

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [timer for timer in self._timers if timer[0] <= end]:
            timer = min(due, key=lambda timer: timer[0])
            self._timers.remove(timer)
            if not timer[2].cancelled():
                self.now = max(self.now, timer[0])
                timer[1]()
        self.now = end


class FakeStream:
    def __init__(self, number: int, started: list[int]) -> None:
        self._number = number
        self._started = started
        self.is_over = False

    def start(self) -> None:
        self._started.append(self._number)


def paced(count: int) -> tuple[FakeLoop, PacedStarts, list[FakeStream], list[int]]:
    loop, started = FakeLoop(), list[int]()
    starts = PacedStarts(cast("asyncio.AbstractEventLoop", loop), burst=3, rate=10)
    streams = [FakeStream(number, started) for number in range(count)]
    for stream in streams:
        starts.start(stream)
    return loop, starts, streams, started


def test_a_burst_starts_at_once_and_the_rest_in_order_at_the_rate() -> None:
    loop, _, _, started = paced(6)
    assert started == [0, 1, 2]
    loop.advance(0.11)
    assert started == [0, 1, 2, 3]
    loop.advance(0.2)
    assert started == [0, 1, 2, 3, 4, 5]


def test_what_is_over_by_its_turn_costs_nothing() -> None:
    loop, _, streams, started = paced(1_000)
    for stream in streams[3:999]:
        stream.is_over = True
    loop.advance(0.11)
    assert started == [0, 1, 2, 999]


def test_idle_time_allows_no_more_than_the_burst() -> None:
    loop, starts, _, started = paced(3)
    loop.advance(1_000)
    for number in range(10, 15):
        starts.start(FakeStream(number, started))
    assert started == [0, 1, 2, 10, 11, 12]


def test_what_is_cleared_is_not_started_and_later_streams_are() -> None:
    loop, starts, _, started = paced(5)
    starts.clear()
    loop.advance(1)
    assert started == [0, 1, 2]
    starts.start(FakeStream(7, started))
    assert started == [0, 1, 2, 7]
