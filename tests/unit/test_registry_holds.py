"""Holds: what they keep, how they end, and that their end is told exactly once."""

from __future__ import annotations

import pytest

from bootstrap_grpc.protos.errors import BootstrapError, ErrorCode
from bootstrap_grpc.protos.model import TopologyState
from support.registrations import REMOTE, World, rank, refused


@pytest.fixture
def world() -> World:
    return World()


def test_a_hold_registers_like_register(world: World) -> None:
    hold = world.hold(rank(0, 17001, owner="A"))
    assert hold.registered == world.put(rank(0, 17001, owner="A"))
    assert hold.registered.generation == 1
    assert world.route(0).held


def test_holding_a_registered_rank_is_a_change_that_is_shown(world: World) -> None:
    world.put(rank(0, 17001, owner="A"))
    before = world.topology
    assert not before.routes[0].held
    world.hold(rank(0, 17001, owner="A"))
    assert world.topology.routes[0].held
    assert world.topology.version == before.version + 1
    world.hold(rank(0, 17001, owner="A"))
    assert world.topology.version == before.version + 1  # held twice looks no different


def test_a_hold_keeps_its_rank_for_ever(world: World) -> None:
    world.hold(rank(0, 17001, owner="A"))
    world.advance(1_000_000)
    assert world.ports() == {0: 17001}


def test_after_a_hold_the_rank_stays_for_the_grace_and_goes(world: World) -> None:
    hold = world.hold(rank(0, 17001, owner="A"))
    world.registry.release(hold)
    assert not world.route(0).held
    world.advance(9.9)
    assert world.ports() == {0: 17001}
    world.advance(0.1)
    assert world.topology.state is TopologyState.EMPTY
    assert world.ended.told == []  # the owner closed the call: nobody is left to be told


def test_the_clock_alone_removes_and_tells_subscribers_through_advance(world: World) -> None:
    world.registry.release(world.hold(rank(0, 17001, owner="A")))
    states: list[TopologyState] = []
    world.registry.subscribe(lambda: states.append(world.registry.state))
    deadline = world.registry.next_deadline()
    assert deadline == world.clock.now + 10
    world.advance(10)
    world.registry.advance()
    world.registry.advance()
    assert states == [TopologyState.EMPTY]


@pytest.mark.parametrize("read", ["state", "registered", "version", "topology", "route"])
def test_no_answer_is_ever_late(world: World, read: str) -> None:
    """Each read applies the clock by itself, whether or not a timer came first."""
    hold = world.hold(rank(0, 17001, owner="A"))
    version = world.registry.version
    world.registry.release(hold)
    world.advance(10)
    if read == "route":
        with refused(ErrorCode.RANK_NOT_FOUND):
            world.route(0)
        return
    answer = getattr(world.registry, read)
    if read == "version":
        assert answer == version + 2
    elif read == "topology":
        assert answer().state is TopologyState.EMPTY
    else:
        assert answer == {"state": TopologyState.EMPTY, "registered": 0}[read]


def test_a_grace_of_0_removes_at_once() -> None:
    world = World(hold_grace=0)
    world.registry.release(world.hold(rank(0, 17001, owner="A")))
    assert world.topology.state is TopologyState.EMPTY


def test_two_holds_of_one_rank_keep_it_until_both_end(world: World) -> None:
    """A client that reconnects before the server noticed that its first call broke."""
    first = world.hold(rank(0, 17001, owner="A"), "first")
    second = world.hold(rank(0, 17001, owner="A"), "second")
    world.registry.release(first)
    world.advance(100)
    assert world.route(0).held
    world.registry.release(second)
    assert not world.route(0).held
    world.advance(10)
    assert world.topology.state is TopologyState.EMPTY
    assert world.ended.told == []


def test_a_process_at_the_address_of_a_dead_holder_takes_it_over(world: World) -> None:
    """The server has not noticed the death, and the port was given to the successor."""
    dead = world.hold(rank(0, 17001, owner="A"))
    world.hold(rank(0, 17001, owner="B"))
    world.registry.release(dead)
    world.advance(100)
    assert world.route(0).held
    world.leave(rank(0, 17001, owner="B"))
    assert world.topology.state is TopologyState.EMPTY


def test_release_is_idempotent(world: World) -> None:
    hold = world.hold(rank(0, 17001, owner="A"))
    world.registry.release(hold)
    version = world.topology.version
    deadline = world.registry.next_deadline()
    world.advance(5)
    world.registry.release(hold)
    assert world.topology.version == version
    assert world.registry.next_deadline() == deadline
    assert world.ended.told == []


def test_deregister_ends_the_hold_for_good_and_leaves_no_grace(world: World) -> None:
    hold = world.hold(rank(0, 17001, owner="A"))
    world.leave(rank(0, 17001, owner="A"))
    assert world.ended.told == [("A@17001", ErrorCode.HOLD_ENDED)]
    assert world.topology.state is TopologyState.EMPTY
    assert world.registry.next_deadline() is None
    version = world.topology.version
    world.registry.release(hold)  # the call that carried it closes afterwards
    assert world.ended.told == [("A@17001", ErrorCode.HOLD_ENDED)]
    assert world.topology.version == version


def test_deregister_ends_every_hold_of_the_rank(world: World) -> None:
    world.hold(rank(0, 17001, owner="A"), "first")
    world.hold(rank(0, 17001, owner="A"), "second")
    world.leave(rank(0, 17001, owner="A"))
    assert sorted(world.ended.told) == [
        ("first", ErrorCode.HOLD_ENDED),
        ("second", ErrorCode.HOLD_ENDED),
    ]


def test_registering_a_held_rank_again_does_not_touch_its_hold(world: World) -> None:
    world.hold(rank(0, 17001, owner="A"))
    world.put(rank(0, 17001, owner="A"))
    assert world.route(0).held
    assert world.ended.told == []


def test_registering_in_the_grace_keeps_the_rank_without_a_hold(world: World) -> None:
    world.registry.release(world.hold(rank(0, 17001, owner="A")))
    world.advance(5)
    world.put(rank(0, 17001, owner="A"))
    world.advance(1_000)
    assert world.ports() == {0: 17001}
    assert not world.route(0).held


def test_holding_again_in_the_grace_begins_a_whole_new_grace(world: World) -> None:
    world.registry.release(world.hold(rank(0, 17001, owner="A")))
    world.advance(6)
    world.registry.release(world.hold(rank(0, 17001, owner="A")))
    world.advance(6)  # the end of the first grace passes
    assert world.ports() == {0: 17001}
    world.advance(4)
    assert world.ports() == {}


def test_a_refused_hold_is_no_hold(world: World) -> None:
    world.hold(rank(0, 17001, owner="A"))
    with refused(ErrorCode.RANK_HELD):
        world.hold(rank(0, 17101, owner="B"), "refused")
    world.leave(rank(0, 17001, owner="A"))
    assert world.ended.codes("refused") == []


def test_an_ended_hold_is_told_after_the_change_and_before_subscribers(world: World) -> None:
    events: list[str] = []

    def on_end(error: BootstrapError) -> None:
        events.append(f"{error.code.name} {world.registry._version}")

    world.registry.hold(rank(0, 17001, owner="A"), REMOTE, on_end)
    world.registry.subscribe(lambda: events.append("change"))
    version = world.registry.version
    world.leave(rank(0, 17001, owner="A"))
    assert events == [f"HOLD_ENDED {version + 1}", "change"]


def test_release_of_a_hold_whose_rank_was_replaced_leaves_the_successor_alone(
    world: World,
) -> None:
    old = world.hold(rank(0, 17001, owner="A"))
    world.registry.release(old)
    world.hold(rank(0, 17101, owner="B"))
    world.registry.release(old)
    world.advance(1_000)
    assert world.route(0).held
    assert world.ports() == {0: 17101}
