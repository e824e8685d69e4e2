"""The rooms that a publisher keeps, to say again what a service forgot."""

from __future__ import annotations

import gc

from bootstrap_grpc.client.recent import RecentRooms


def test_the_order_is_that_of_publication() -> None:
    rooms = RecentRooms(capacity=10, lifetime=60.0)
    for now, room in enumerate([1, 2, 3, 1]):
        rooms.put(room, 0, float(now))
    assert list(rooms) == [2, 3, 1]
    assert len(rooms) == 3


def test_a_room_with_another_rank_is_changed_and_stays_so() -> None:
    rooms = RecentRooms(capacity=10, lifetime=60.0)
    rooms.put(1, 4, 0.0)
    assert rooms.get(1) == (4, 0.0, False)
    rooms.put(1, 4, 1.0)
    assert rooms.get(1) == (4, 1.0, False)
    rooms.put(1, 5, 2.0)
    rooms.put(1, 5, 2.0)
    assert rooms.get(1) == (5, 2.0, True)
    assert rooms.dp_ranks([1]) == [5]


def test_old_rooms_go_and_those_published_again_stay() -> None:
    rooms = RecentRooms(capacity=10, lifetime=60.0)
    rooms.put(1, 0, 0.0)
    rooms.put(2, 0, 1.0)
    rooms.put(1, 0, 30.0)
    assert rooms.forget_old(60.5) == []
    assert rooms.forget_old(61.0) == [2]
    assert list(rooms) == [1]
    assert rooms.forget_old(90.0) == [1]
    assert len(rooms) == 0


def test_of_too_many_rooms_the_oldest_go() -> None:
    rooms = RecentRooms(capacity=2, lifetime=60.0)
    for now, room in enumerate([1, 2, 1, 3]):
        rooms.put(room, 0, float(now))
    assert rooms.forget_old(4.0) == [2]
    assert list(rooms) == [1, 3]


def test_rooms_published_over_and_over_take_no_memory() -> None:
    rooms = RecentRooms(capacity=10, lifetime=60.0)
    for now in range(10_000):
        rooms.put(now % 3, 0, float(now))
    assert len(rooms._order) <= 2 * len(rooms) + 1_000


def test_the_garbage_collector_has_no_object_for_each_room() -> None:
    """A full collection walked 200,000 of them, for 90 ms of the host's time."""
    rooms = RecentRooms(capacity=10_000, lifetime=60.0)
    gc.collect()
    before = len(gc.get_objects())
    for room in range(10_000):
        rooms.put(room, 0, 0.5)
    gc.collect()
    assert len(gc.get_objects()) - before < 100
