"""What a session keeps of the rooms that it is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from bootstrap_grpc.client.resolver import DpRankResolver
from bootstrap_grpc.compat.session_rooms import KEEP, RoomAnswers


class Resolver:
    """Answers what the test puts into ``answers``, at the next poll."""

    def __init__(self) -> None:
        self.submitted: list[int] = []
        self.discarded: list[int] = []
        self.answers: dict[int, int] = {}
        self.overdue: list[int] = []

    def submit(self, rooms: Iterable[int]) -> None:
        self.submitted += rooms

    def discard(self, rooms: Iterable[int]) -> None:
        self.discarded += rooms

    def poll(self) -> dict[int, int]:
        answers, self.answers = self.answers, {}
        return answers

    def expired(self) -> list[int]:
        overdue, self.overdue = self.overdue, []
        return overdue


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def make() -> tuple[RoomAnswers, Resolver, Any, Clock]:
    clock, resolver = Clock(), Resolver()
    return RoomAnswers(clock), resolver, cast("DpRankResolver", resolver), clock


def test_a_room_is_submitted_once_and_answered_as_often_as_it_is_asked_for() -> None:
    rooms, resolver, typed, _ = make()
    assert rooms.ask([1, 2], typed) == {}
    assert rooms.ask([2, 1], typed) == {}
    assert resolver.submitted == [1, 2]
    resolver.answers = {1: 7}
    assert rooms.ask([1, 2], typed) == {1: 7}
    assert rooms.ask([1], typed) == {1: 7}
    assert resolver.submitted == [1, 2]


def test_rooms_are_forgotten_a_minute_after_they_were_asked_for() -> None:
    rooms, resolver, typed, clock = make()
    rooms.ask([1, 2, 3], typed)
    resolver.answers = {1: 0, 3: 0}
    clock.now += KEEP - 1
    assert rooms.ask([3], typed) == {3: 0}
    clock.now += 2
    assert rooms.ask([4], typed) == {}
    assert resolver.discarded == [2]  # 1 is answered: nobody is asked for it any more
    assert len(rooms) == 2
    assert rooms.ask([3], typed) == {3: 0}


def test_another_resolver_is_asked_for_what_is_open() -> None:
    rooms, resolver, typed, _ = make()
    rooms.ask([1, 2], typed)
    resolver.answers = {1: 5}
    rooms.ask([1], typed)
    other = Resolver()
    assert rooms.ask([1], cast("DpRankResolver", other)) == {1: 5}
    assert other.submitted == [2]


def test_an_overdue_room_is_asked_for_again_while_somebody_wants_it() -> None:
    rooms, resolver, typed, _ = make()
    rooms.ask([1, 2], typed)
    resolver.overdue = [1]
    rooms.ask([2], typed)
    assert resolver.submitted == [1, 2, 1]
