"""The bookkeeping of a publish stream, against a service that may vanish at any moment."""

from __future__ import annotations

import random

import pytest

from bootstrap_grpc.client.publishing import PublisherLogic
from bootstrap_grpc.protos import bootstrap_pb2 as pb
from support.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def logic(clock: FakeClock) -> PublisherLogic:
    return PublisherLogic(clock, lifetime=360, capacity=1_000)


class Server:
    """What the service does with a message (design section 4)."""

    def __init__(self, server_id: str) -> None:
        self.server_id = server_id
        self.rooms: dict[int, int] = {}

    def store(self, message: pb.PublishDpRanksRequest) -> None:
        for room, rank in zip(message.rooms, message.dp_ranks, strict=True):
            if message.resend:
                self.rooms.setdefault(room, rank)
            else:
                self.rooms[room] = rank


def deliver(logic: PublisherLogic, server: Server) -> None:
    while (message := logic.take_message()) is not None:
        server.store(message)
        logic.on_acknowledged(message.sequence)


def test_what_was_published_is_sent_once_and_settled_by_its_acknowledgement(
    logic: PublisherLogic,
) -> None:
    logic.on_connect("a")
    logic.publish(1, 3)
    logic.publish(2, 4)
    message = logic.take_message()
    assert message == pb.PublishDpRanksRequest(sequence=1, rooms=[1, 2], dp_ranks=[3, 4])
    assert logic.take_message() is None
    assert not logic.is_settled
    assert logic.unacknowledged == 2
    logic.on_acknowledged(1)
    assert logic.is_settled


def test_unacknowledged_rooms_are_sent_again_marked(logic: PublisherLogic) -> None:
    logic.on_connect("a")
    logic.publish(1, 3)
    logic.take_message()
    logic.publish(2, 4)  # not sent yet
    logic.on_connect("a")
    again, new = logic.take_message(), logic.take_message()
    assert again is not None
    assert (list(again.rooms), again.resend) == ([1], True)
    assert new is not None
    assert (list(new.rooms), new.resend) == ([2], False)


def test_a_service_that_started_anew_is_told_everything(logic: PublisherLogic) -> None:
    first, second = Server("a"), Server("b")
    logic.on_connect("a")
    for room in range(100):
        logic.publish(room, room % 4)
    deliver(logic, first)
    assert logic.is_settled
    logic.on_connect("b")
    deliver(logic, second)
    assert second.rooms == first.rooms


def test_the_same_service_is_told_nothing_twice(logic: PublisherLogic) -> None:
    server = Server("a")
    logic.on_connect("a")
    logic.publish(1, 1)
    deliver(logic, server)
    logic.on_connect("a")
    assert logic.take_message() is None


@pytest.mark.parametrize("acknowledged", [True, False])
@pytest.mark.parametrize("same_service", [True, False])
def test_a_room_published_again_during_an_outage_keeps_the_newer_rank(
    logic: PublisherLogic, acknowledged: bool, same_service: bool
) -> None:
    server = Server("a")
    logic.on_connect("a")
    logic.publish(5, 1)
    message = logic.take_message()
    assert message is not None
    server.store(message)
    if acknowledged:
        logic.on_acknowledged(message.sequence)
    logic.publish(5, 2)
    if not same_service:
        server = Server("b")
    logic.on_connect(server.server_id)
    deliver(logic, server)
    assert server.rooms == {5: 2}


def test_a_changed_room_that_was_lost_on_its_way_overwrites_its_older_rank(
    logic: PublisherLogic,
) -> None:
    server = Server("a")
    logic.on_connect("a")
    logic.publish(5, 1)
    deliver(logic, server)
    logic.publish(5, 2)
    logic.take_message()  # lost with the connection
    logic.on_connect("a")
    deliver(logic, server)
    assert server.rooms == {5: 2}


def test_what_is_sent_again_never_overwrites_another_publisher(logic: PublisherLogic) -> None:
    server = Server("a")
    logic.on_connect("a")
    logic.publish(5, 1)
    message = logic.take_message()
    assert message is not None
    server.store(message)
    server.rooms[5] = 3  # the request was retried on another DP rank
    logic.on_connect("a")
    deliver(logic, server)
    assert server.rooms == {5: 3}


def test_the_newest_rooms_are_kept_and_the_dropped_ones_counted(logic: PublisherLogic) -> None:
    for room in range(1_500):
        logic.publish(room, 0)
    assert logic.dropped == 500
    server = Server("a")
    logic.on_connect("a")
    deliver(logic, server)
    assert set(server.rooms) == set(range(500, 1_500))


def test_rooms_past_their_lifetime_are_not_sent_again(
    logic: PublisherLogic, clock: FakeClock
) -> None:
    logic.on_connect("a")
    logic.publish(1, 0)
    clock.advance(200)
    logic.publish(2, 0)
    deliver(logic, Server("a"))
    clock.advance(200)
    server = Server("b")
    logic.on_connect("b")
    deliver(logic, server)
    assert server.rooms == {2: 0}


def test_any_order_of_losses_ends_with_the_newest_ranks(clock: FakeClock) -> None:
    die = random.Random(11)
    for _ in range(200):
        logic = PublisherLogic(clock, capacity=1_000)
        server, newest = Server("0"), dict[int, int]()
        logic.on_connect("0")
        for step in range(60):
            match die.randrange(4):
                case 0 | 1:
                    room, rank = die.randrange(6), die.randrange(3)
                    newest[room] = rank
                    logic.publish(room, rank)
                case 2:
                    # A message may be lost, be stored, or be stored and acknowledged.
                    fate = die.randrange(3)
                    if (message := logic.take_message()) is not None:
                        if fate:
                            server.store(message)
                        if fate == 2:
                            logic.on_acknowledged(message.sequence)
                        else:
                            logic.on_connect(server.server_id)
                case _:
                    if die.randrange(4) == 0:
                        server = Server(str(step + 1))
                    logic.on_connect(server.server_id)
        deliver(logic, server)
        assert server.rooms == newest
        assert logic.is_settled
