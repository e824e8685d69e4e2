"""How many answers may be under way on a resolve stream."""

from __future__ import annotations

import asyncio

import pytest

from bootstrap_grpc.server.room_streams import _Pace
from bootstrap_grpc.server.waiting import Waiter


async def _sent(pace: _Pace, waiter: Waiter, rooms: range) -> int:
    """How many of ``rooms`` go out, an answer each, before one has to wait."""
    for number, room in enumerate(rooms):
        try:
            await asyncio.wait_for(pace.wait(), _Pace.PATIENCE / 4)
        except asyncio.TimeoutError:
            return number
        waiter.rooms[room] = 0
        pace.on_sent(room)
    return len(rooms)


def _drop(pace: _Pace, waiter: Waiter, *rooms: int) -> None:
    for room in rooms:
        del waiter.rooms[room]
    pace.on_dropped()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drops that come at once are in time on any machine."""
    monkeypatch.setattr(_Pace, "PATIENCE", 2.0)


@pytest.mark.usefixtures("patient")
async def test_a_client_that_keeps_up_has_four_answers_under_way() -> None:
    waiter = Waiter(lambda: None)
    pace = _Pace(waiter)
    assert await _sent(pace, waiter, range(10)) == 4
    _drop(pace, waiter, 0, 1)
    assert await _sent(pace, waiter, range(10, 20)) == 2


async def test_a_client_that_drops_late_has_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    waiter = Waiter(lambda: None)
    pace = _Pace(waiter)
    monkeypatch.setattr(_Pace, "PATIENCE", 2.0)
    assert await _sent(pace, waiter, range(4)) == 4
    monkeypatch.setattr(_Pace, "PATIENCE", 0.0)  # every drop is late now
    _drop(pace, waiter, 0, 1, 2, 3)
    monkeypatch.setattr(_Pace, "PATIENCE", 2.0)
    assert await _sent(pace, waiter, range(10, 20)) == 1


async def test_a_client_that_never_drops_is_answered_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_Pace, "PATIENCE", 0.001)
    waiter = Waiter(lambda: None)
    pace = _Pace(waiter)
    for room in range(20):
        await pace.wait()
        waiter.rooms[room] = 0
        pace.on_sent(room)
    assert len(waiter.rooms) == 20
