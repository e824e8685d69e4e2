"""The room table: who took which room, for how long, and what goes first when it is full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from bootstrap_grpc.protos.errors import ErrorCode
from bootstrap_grpc.protos.model import MAX_DP_RANK, MAX_MESSAGE_ROOMS, MAX_ROOM
from bootstrap_grpc.server.rooms import RoomTable
from support.clock import FakeClock
from support.registrations import refused

LIFETIME = 360.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def table(clock: FakeClock) -> RoomTable:
    return RoomTable(clock, lifetime=LIFETIME, capacity=1_000_000)


@pytest.mark.parametrize("room", [0, 1, 101, 2**31, 2**53 + 1, 2**63 - 1, 2**63, MAX_ROOM])
def test_a_room_is_known_from_0_to_the_largest_uint64(table: RoomTable, room: int) -> None:
    table.register([room], [3])
    assert table.query([room]) == {room: 3}


@pytest.mark.parametrize("dp_rank", [0, 1, MAX_DP_RANK])
def test_a_dp_rank_is_kept_from_0_to_the_largest(table: RoomTable, dp_rank: int) -> None:
    table.register([7], [dp_rank])
    assert table.query([7]) == {7: dp_rank}


def test_unknown_rooms_are_left_out(table: RoomTable) -> None:
    table.register([1, 2], [0, 1])
    assert table.query([1, 2, 2, 999]) == {1: 0, 2: 1}
    assert table.query([]) == {}
    table.register([], [])
    assert len(table) == 2


def test_the_last_writer_wins_and_a_change_of_rank_is_counted(table: RoomTable) -> None:
    table.register([5], [0])
    table.register([5], [0])
    assert table.stats.conflicts == 0
    table.register([5], [1])
    table.register([6, 6], [0, 1])  # in one batch too
    assert table.query([5, 6]) == {5: 1, 6: 1}
    assert table.stats.conflicts == 2
    assert table.stats.stored == 5
    assert len(table) == 2


# --- lifetime ------------------------------------------------------------------------------


def test_a_room_lives_for_its_lifetime(table: RoomTable, clock: FakeClock) -> None:
    table.register([1], [0])
    clock.advance(LIFETIME - 0.001)
    assert table.query([1]) == {1: 0}
    clock.advance(0.001)
    assert table.query([1]) == {}  # even before anything dropped it


def test_registering_again_begins_a_new_lifetime(table: RoomTable, clock: FakeClock) -> None:
    table.register([1, 2], [0, 0])
    clock.advance(300)
    table.register([1], [0])
    clock.advance(300)
    assert table.query([1, 2]) == {1: 0}


def test_a_room_that_ended_and_comes_back_is_no_conflict(
    table: RoomTable, clock: FakeClock
) -> None:
    table.register([1], [0])
    clock.advance(LIFETIME)
    table.register([1], [1])
    assert table.stats.conflicts == 0
    assert table.query([1]) == {1: 1}
    clock.advance(LIFETIME - 1)
    assert table.query([1]) == {1: 1}


def test_querying_does_not_lengthen_a_life(table: RoomTable, clock: FakeClock) -> None:
    table.register([1], [0])
    for _ in range(36):
        clock.advance(10)
        table.query([1])
    assert table.query([1]) == {}


def test_storing_drops_ended_rooms_faster_than_they_arrive(
    table: RoomTable, clock: FakeClock
) -> None:
    count = 4_000  # enough for every shard
    table.register(range(count), [0] * count)
    clock.advance(LIFETIME)
    for number in range(count):
        table.register([10_000 + number], [0])
    assert len(table) == count
    assert table.stats.expired == count


def test_shards_do_not_all_grow_at_once() -> None:
    """A dict that doubles stops the event loop for a moment; all of them at once, for long."""
    sizes = Counter(map(id, RoomTable(FakeClock())._slots)).values()
    assert len(sizes) == len(RoomTable(FakeClock())._shards)
    assert max(sizes) >= 1.8 * min(sizes)
    assert max(Counter(sizes).values()) <= 10


@pytest.mark.parametrize("portion", [1, 7, 100, 10_000])
def test_expire_works_in_portions_and_says_whether_more_is_left(
    table: RoomTable, clock: FakeClock, portion: int
) -> None:
    table.register(range(100), [0] * 100)
    clock.advance(100)
    table.register(range(100, 150), [0] * 50)
    clock.advance(LIFETIME - 100)
    calls = 1
    while table.expire(portion):
        calls += 1
        assert len(table) >= 50
        assert table.stats.expired == (calls - 1) * portion
    assert calls == -(-100 // portion)
    assert len(table) == 50
    assert table.query(range(150)) == dict.fromkeys(range(100, 150), 0)
    assert not table.expire(portion)
    assert table.stats.expired == 100
    assert table.stats.evicted == 0


def test_expire_of_nothing_does_nothing(table: RoomTable) -> None:
    assert not table.expire(10)
    table.register([1], [0])
    assert not table.expire(0)
    assert len(table) == 1


# --- the cap -------------------------------------------------------------------------------


def test_past_the_cap_the_oldest_go_first_and_are_counted(clock: FakeClock) -> None:
    table = RoomTable(clock, lifetime=LIFETIME, capacity=3)
    table.register([1, 2, 3], [0, 0, 0])
    table.register([1], [0])  # 1 is young again
    table.register([4], [0])
    assert table.query([1, 2, 3, 4]) == {1: 0, 3: 0, 4: 0}
    assert table.stats.evicted == 1
    table.register([5, 6], [0, 0])
    assert table.query([1, 3, 4, 5, 6]) == {4: 0, 5: 0, 6: 0}
    assert table.stats.evicted == 3
    assert len(table) == 3


def test_a_known_room_takes_no_place_from_another(clock: FakeClock) -> None:
    table = RoomTable(clock, capacity=2)
    table.register([1, 2], [0, 0])
    for _ in range(5):
        table.register([1, 2], [1, 1])
    assert table.query([1, 2]) == {1: 1, 2: 1}
    assert table.stats.evicted == 0


def test_what_ended_makes_place_and_is_not_counted_as_evicted(clock: FakeClock) -> None:
    table = RoomTable(clock, lifetime=LIFETIME, capacity=3)
    table.register([1, 2, 3], [0, 0, 0])
    clock.advance(LIFETIME)
    table.register([4, 5, 6], [0, 0, 0])
    assert table.stats.evicted == 0
    assert table.stats.expired == 3
    assert table.query([4, 5, 6]) == {4: 0, 5: 0, 6: 0}


def test_a_batch_larger_than_the_cap_keeps_its_end(clock: FakeClock) -> None:
    table = RoomTable(clock, capacity=10)
    table.register(range(100), [0] * 100)
    assert sorted(table.query(range(100))) == list(range(90, 100))
    assert len(table) == 10
    assert table.stats.evicted == 90


@pytest.mark.parametrize(
    ("lifetime", "capacity"),
    [(0.0, 10), (-1.0, 10), (float("nan"), 10), (float("inf"), 10), (360.0, 0)],
)
def test_a_table_that_could_hold_nothing_is_refused(lifetime: float, capacity: int) -> None:
    with pytest.raises(ValueError, match=r"lifetime|capacity"):
        RoomTable(FakeClock(), lifetime=lifetime, capacity=capacity)


# --- rule 8: a bad batch stores nothing ----------------------------------------------------

BAD = {
    "negative room": ([1, -1], [0, 0], ErrorCode.INVALID_FIELD, "rooms[1]"),
    "room 2^64": ([2**64, 1], [0, 0], ErrorCode.INVALID_FIELD, "rooms[0]"),
    "negative rank": ([1, 2], [0, -1], ErrorCode.INVALID_FIELD, "dp_ranks[1]"),
    "rank 65,536": ([1, 2], [0, 65_536], ErrorCode.INVALID_FIELD, "dp_ranks[1]"),
    "ranks missing": ([1, 2], [0], ErrorCode.INVALID_FIELD, "dp_ranks"),
    "rooms missing": ([], [0], ErrorCode.INVALID_FIELD, "dp_ranks"),
    "65,537 rooms": (range(65_537), [0] * 65_537, ErrorCode.LIMIT_EXCEEDED, "rooms"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_batch_stores_nothing(table: RoomTable, clock: FakeClock, case: str) -> None:
    rooms: Sequence[int]
    rooms, dp_ranks, code, field = BAD[case]
    table.register([1], [7])
    clock.advance(1)
    with refused(code) as caught:
        table.register(rooms, dp_ranks)
    assert caught.value.fields[0].field == field
    assert table.query([0, 1, 2]) == {1: 7}
    assert (len(table), table.stats.stored, table.stats.conflicts) == (1, 1, 0)
    clock.advance(LIFETIME - 1)
    assert table.query([1]) == {}  # nor was its life lengthened


@pytest.mark.parametrize("rooms", [[-1], [0, 2**64], range(65_537)], ids=["-1", "2^64", "65,537"])
def test_a_bad_query_is_refused(table: RoomTable, rooms: Sequence[int]) -> None:
    code = ErrorCode.LIMIT_EXCEEDED if len(rooms) > 2 else ErrorCode.INVALID_FIELD
    with refused(code):
        table.query(rooms)


def test_the_largest_batch_is_stored_and_answered_whole(table: RoomTable) -> None:
    rooms = range(2**63, 2**63 + MAX_MESSAGE_ROOMS)
    ranks = [room % 16 for room in rooms]
    table.register(rooms, ranks)
    assert table.query(rooms) == dict(zip(rooms, ranks, strict=True))
