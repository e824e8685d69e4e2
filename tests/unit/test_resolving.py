"""The bookkeeping of a resolve stream."""

from __future__ import annotations

import random

from bootstrap_grpc.client.resolving import ResolverLogic
from bootstrap_grpc.protos import bootstrap_pb2 as pb


def sent(logic: ResolverLogic) -> tuple[list[int], list[int]]:
    """(add, drop) of everything the logic has to say."""
    add: list[int] = []
    drop: list[int] = []
    while (message := logic.take_message()) is not None:
        drop += message.drop
        add += message.add
    return add, drop


def test_a_room_is_asked_for_once_and_dropped_once_it_is_answered() -> None:
    logic = ResolverLogic()
    logic.submit([1, 2], 100)
    logic.submit([2], 200)
    assert sent(logic) == ([1, 2], [])
    assert logic.on_answers([2], [7]) == {2: 7}
    assert sent(logic) == ([], [2])
    assert logic.on_answers([2], [8]) == {}, "it is no longer asked for"
    assert len(logic) == 1


def test_a_new_stream_is_told_what_is_unresolved_and_nothing_else() -> None:
    logic = ResolverLogic()
    logic.submit([1, 2, 3], 100)
    sent(logic)
    logic.on_answers([1], [0])
    logic.discard([2])
    logic.on_connect()
    assert sent(logic) == ([3], [])


def test_a_room_that_is_discarded_before_it_was_sent_never_is() -> None:
    logic = ResolverLogic()
    logic.submit([1, 2], 100)
    logic.discard([1, 9])
    assert sent(logic) == ([2], [])


def test_a_room_that_is_asked_for_again_is_dropped_first() -> None:
    logic = ResolverLogic()
    logic.submit([1], 100)
    sent(logic)
    logic.on_answers([1], [0])
    logic.submit([1], 100)
    message = logic.take_message()
    assert message == pb.ResolveDpRanksRequest(add=[1], drop=[1])


def test_more_rooms_than_a_message_holds_take_several() -> None:
    logic = ResolverLogic()
    logic.submit(range(150_000), 100)
    sizes = []
    while (message := logic.take_message()) is not None:
        sizes.append(len(message.add))
    assert sizes == [65_536, 65_536, 18_928]
    logic.discard(range(150_000))
    logic.submit([7], 100)
    drops = []
    while (message := logic.take_message()) is not None:
        assert not message.add or not logic.take_message(), "adds come after the last drop"
        drops.append(len(message.drop))
    assert sum(drops) == 150_000


def test_deadlines_pass_in_their_order_and_only_for_what_is_unresolved() -> None:
    logic = ResolverLogic()
    logic.submit([1, 2, 3, 4], 10)
    logic.submit([3], 20)
    logic.on_answers([1], [0])
    logic.discard([2])
    assert logic.next_deadline() == 10
    assert logic.expire(9) == []
    assert logic.expire(10) == [(4, 10)]
    assert logic.next_deadline() == 20
    assert logic.expire(21) == [(3, 20)]
    assert logic.next_deadline() is None
    assert len(logic) == 0


def test_answered_rooms_leave_no_heap_of_deadlines() -> None:
    logic = ResolverLogic()
    for start in range(0, 100_000, 100):
        rooms = range(start, start + 100)
        logic.submit(rooms, 360.0 + start)
        logic.on_answers(rooms, [0] * 100)
        logic.next_deadline()
    assert len(logic._deadlines) < 2_000


def test_any_order_of_calls_tells_a_server_exactly_what_is_pending() -> None:
    die = random.Random(7)
    logic = ResolverLogic()
    server: set[int] = set()
    for _ in range(5_000):
        room = die.randrange(20)
        match die.randrange(5):
            case 0:
                logic.submit([room], 1e9)
            case 1:
                logic.discard([room])
            case 2:
                logic.on_answers([room], [0])
            case 3:
                server.clear()
                logic.on_connect()
            case _:
                while (message := logic.take_message()) is not None:
                    server.difference_update(message.drop)
                    server.update(message.add)
                assert server == set(logic.pending())
