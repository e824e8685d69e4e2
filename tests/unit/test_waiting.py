"""Which streams wait for which rooms."""

from __future__ import annotations

import pytest

from bootstrap_grpc.protos.errors import BootstrapError, ErrorCode
from bootstrap_grpc.server.rooms import RoomTable
from bootstrap_grpc.server.waiting import Waiter, WaitingRooms
from support.clock import FakeClock


class Stream(Waiter):
    """A waiter that counts how often it was woken."""

    def __init__(self) -> None:
        super().__init__(self._woken)
        self.wakes = 0

    def _woken(self) -> None:
        self.wakes += 1

    def taken(self) -> dict[int, int]:
        return self.take(1_000)


@pytest.fixture
def rooms() -> RoomTable:
    return RoomTable(FakeClock())


@pytest.fixture
def waiting(rooms: RoomTable) -> WaitingRooms:
    return WaitingRooms(rooms, limit=10)


def test_a_known_room_is_answered_at_once_and_an_unknown_one_when_it_is_stored(
    rooms: RoomTable, waiting: WaitingRooms
) -> None:
    rooms.register([1], [3])
    stream = Stream()
    waiting.add(stream, [1, 2])
    assert stream.taken() == {1: 3}
    assert stream.unanswered == 1
    rooms.register([2, 9], [4, 4])
    assert stream.taken() == {2: 4}
    assert stream.unanswered == 0


def test_a_stored_room_wakes_just_the_streams_that_hold_it(
    rooms: RoomTable, waiting: WaitingRooms
) -> None:
    streams = [Stream() for _ in range(3)]
    waiting.add(streams[0], [1])
    waiting.add(streams[1], [1, 2])
    waiting.add(streams[2], [3])
    rooms.register([1], [7])
    assert [stream.wakes for stream in streams] == [1, 1, 0]


def test_each_room_is_answered_once_and_again_only_with_another_rank(
    rooms: RoomTable, waiting: WaitingRooms
) -> None:
    stream = Stream()
    waiting.add(stream, [1])
    for rank in (3, 3, 3):
        rooms.register([1], [rank])
    assert stream.taken() == {1: 3}
    assert stream.wakes == 1
    rooms.register([1], [5])
    assert stream.taken() == {1: 5}
    waiting.drop(stream, [1])
    rooms.register([1], [6])
    assert stream.taken() == {}


def test_a_resent_room_that_is_known_wakes_nobody(rooms: RoomTable, waiting: WaitingRooms) -> None:
    rooms.register([1], [3])
    stream = Stream()
    waiting.add(stream, [1, 2])
    stream.taken()
    rooms.register_unknown([1, 2], [4, 4])
    assert stream.taken() == {2: 4}
    assert rooms.query([1, 2]) == {1: 3, 2: 4}


def test_streams_that_end_leave_nothing_behind(rooms: RoomTable, waiting: WaitingRooms) -> None:
    streams = [Stream() for _ in range(3)]
    for stream in streams:
        waiting.add(stream, range(10))
    assert len(waiting) == 10
    assert waiting.close(streams[0], 4), "the rest is left for the next portion"
    assert not waiting.close(streams[0], 6)
    for stream in streams[1:]:
        waiting.close(stream, 100)
    assert len(waiting) == 0
    rooms.register(range(10), [0] * 10)
    assert [stream.wakes for stream in streams] == [0, 0, 0]


def test_a_stream_may_not_wait_for_more_than_its_limit(
    rooms: RoomTable, waiting: WaitingRooms
) -> None:
    stream = Stream()
    waiting.add(stream, range(10))
    waiting.add(stream, range(10))
    with pytest.raises(BootstrapError, match="11 waiting rooms, the limit is 10") as refused:
        waiting.add(stream, [3, 99])
    assert refused.value.code is ErrorCode.LIMIT_EXCEEDED
    assert 99 not in stream.rooms
    waiting.drop(stream, [0])
    waiting.add(stream, [99])


def test_a_slow_readers_backlog_is_one_entry_for_each_room(
    rooms: RoomTable, waiting: WaitingRooms
) -> None:
    stream = Stream()
    waiting.add(stream, range(10))
    for rank in range(1_000):
        rooms.register(range(10), [rank % 5] * 10)
    assert len(stream.answers) == 10
    assert stream.take(4) == dict.fromkeys(range(4), 4)
    assert stream.take(100) == dict.fromkeys(range(4, 10), 4)
