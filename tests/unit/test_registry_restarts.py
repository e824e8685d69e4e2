"""Registration rule 3: a rank at another address, and every way in which a group restarts."""

from __future__ import annotations

import pytest

from bootstrap_grpc.protos.errors import ErrorCode
from bootstrap_grpc.protos.model import Shape, TopologyState
from bootstrap_grpc.server.registry import Hold
from support.registrations import TP4, World, rank, refused


@pytest.fixture
def world() -> World:
    return World()


def ready_over_http(world: World) -> None:
    """TP2 at ports 17001 and 17002, neither held."""
    world.put_all([rank(0, 17001), rank(1, 17002)])
    assert world.topology.state is TopologyState.READY


# --- replaced in place, or a new generation ------------------------------------------------


def test_rule_3_before_it_was_ready_a_rank_is_replaced_in_place(world: World) -> None:
    world.put(rank(0, 17001))
    world.put(rank(0, 17101))
    assert world.topology.generation == 1
    assert world.ports() == {0: 17101}
    world.put(rank(1, 17102))
    assert world.ports() == {0: 17101, 1: 17102}


def test_rule_3_after_it_was_ready_a_new_address_begins_a_generation(world: World) -> None:
    ready_over_http(world)
    answer = world.put(rank(0, 17101))
    assert answer.generation == 2
    topology = world.topology
    assert (topology.state, topology.registered) == (TopologyState.PARTIAL, 1)
    assert topology.missing == (rank(1, 1).key,)
    assert world.ports() == {0: 17101}  # rank 1 is unconfirmed: neither counted nor served
    with refused(ErrorCode.RANK_NOT_FOUND):
        world.route(1)


def test_restart_over_http_serves_no_stale_address_at_any_time(world: World) -> None:
    ready_over_http(world)
    world.put(rank(1, 17102))
    assert world.ports() == {1: 17102}
    world.put(rank(0, 17101))
    assert world.ports() == {0: 17101, 1: 17102}
    assert world.topology.state is TopologyState.READY
    assert [route.generation for route in world.topology.routes] == [2, 2]
    world.advance(1_000)
    assert world.ports() == {0: 17101, 1: 17102}
    assert world.topology.generation == 2


def test_restart_at_the_same_ports_is_a_refresh(world: World) -> None:
    """Nothing tells such a restart from a repeated PUT, and the routes are right."""
    ready_over_http(world)
    before = world.topology
    world.advance(5)
    world.put_all([rank(0, 17001), rank(1, 17002)])
    assert world.topology is before


def test_a_generation_that_was_ready_stays_so_when_a_rank_leaves(world: World) -> None:
    world.put_all([rank(0, 17001, owner="A"), rank(1, 17002)])
    world.leave(rank(0, 17001, owner="A"))
    world.put(rank(1, 17002))
    world.put(rank(1, 17102))
    assert world.topology.generation == 2


def test_a_rank_that_restarts_twice_before_the_group_is_ready_again(world: World) -> None:
    ready_over_http(world)
    world.put(rank(0, 17101))
    world.put(rank(0, 17201))  # generation 2 was never READY: in place
    assert world.topology.generation == 2
    assert world.ports() == {0: 17201}


# --- late PUT of an old rank after a new one -----------------------------------------------


@pytest.mark.parametrize("ready", [False, True], ids=["never ready", "ready"])
def test_late_put_of_an_old_rank_same_key_is_refused(world: World, ready: bool) -> None:
    """Deliberate: rule 3 alone would put the dead process's address back."""
    world.put(rank(0, 17001))
    if ready:
        world.put(rank(1, 17002))
    world.put(rank(0, 17101))
    before = world.undated()
    for _ in range(3):  # SGLang retries
        with refused(ErrorCode.ADDRESS_SUPERSEDED) as caught:
            world.put(rank(0, 17001))
    assert "17001" in str(caught.value)
    assert "17101" in str(caught.value)
    assert world.undated() == before
    assert world.refused_codes() == {0: ErrorCode.ADDRESS_SUPERSEDED}


def test_late_put_is_late_for_settle_and_no_longer(world: World) -> None:
    world.put(rank(0, 17001))
    world.put(rank(0, 17101))
    world.advance(59.9)
    with refused(ErrorCode.ADDRESS_SUPERSEDED):
        world.put(rank(0, 17001))
    world.advance(0.1)
    world.put(rank(0, 17001))  # by now a real move
    assert world.ports() == {0: 17001}


def test_late_put_of_an_old_rank_another_key_counts_until_its_successor_comes(
    world: World,
) -> None:
    """Nothing tells it from a surviving rank, but it must not outlive its successor."""
    ready_over_http(world)
    world.put(rank(0, 17101))  # the new rank 0
    world.put(rank(1, 17002))  # the late PUT of the old rank 1
    assert world.topology.generation == 2
    assert world.ports() == {0: 17101, 1: 17002}
    world.put(rank(1, 17102))  # the new rank 1
    assert world.ports()[1] == 17102
    with refused(ErrorCode.ADDRESS_SUPERSEDED):
        world.put(rank(1, 17002))
    world.advance(60)  # the new rank 0 speaks HTTP: it registers no second time
    assert world.ports() == {0: 17101, 1: 17102}
    assert world.topology.state is TopologyState.READY


def test_late_put_after_a_late_put_never_brings_the_old_rank_0_back(world: World) -> None:
    ready_over_http(world)
    world.put_all([rank(0, 17101), rank(1, 17002), rank(1, 17102)])
    with refused(ErrorCode.ADDRESS_SUPERSEDED):
        world.put(rank(0, 17001))
    world.advance(60)
    assert world.ports() == {0: 17101, 1: 17102}


def test_late_hold_of_an_old_rank_is_refused(world: World) -> None:
    old = world.hold(rank(0, 17001, owner="A"))
    world.registry.release(old)
    world.hold(rank(0, 17101, owner="B"))
    with refused(ErrorCode.RANK_HELD):  # says who holds it: more use than "late"
        world.hold(rank(0, 17001, owner="A"))
    assert world.ports() == {0: 17101}


def test_an_address_is_late_only_for_who_had_it(world: World) -> None:
    """A port that another process was given is that process's."""
    world.put(rank(0, 17001, owner="A"))
    world.put(rank(0, 17101, owner="B"))
    world.put(rank(0, 17001, owner="C"))
    assert world.ports() == {0: 17001}
    world.put(rank(1, 17101, owner="B"))  # another key
    assert world.ports() == {0: 17001, 1: 17101}


def test_generation_crossing_replacement_stays_late(world: World) -> None:
    ready_over_http(world)
    world.put_all([rank(0, 17101), rank(1, 17102)])
    world.put_all([rank(0, 17201), rank(1, 17202)])
    for port in (17001, 17101):
        with refused(ErrorCode.ADDRESS_SUPERSEDED):
            world.put(rank(0, port))
    assert world.ports() == {0: 17201, 1: 17202}
    assert world.topology.generation == 3


# --- one rank rejoining a living group on a new port ---------------------------------------


def test_one_http_rank_rejoins_a_living_group_after_settle(world: World) -> None:
    ready_over_http(world)
    world.put(rank(0, 17101))
    assert world.registry.next_deadline() == world.clock.now + 60
    world.advance(59.9)
    assert world.ports() == {0: 17101}
    version = world.topology.version
    world.advance(0.1)
    assert world.ports() == {0: 17101, 1: 17002}
    assert world.topology.state is TopologyState.READY
    assert world.topology.version > version
    assert [route.generation for route in world.topology.routes] == [2, 2]
    assert world.registry.next_deadline() is None


def test_settle_counts_from_the_last_registration_of_any_rank(world: World) -> None:
    world.put_all(rank(tp, 17000 + tp, shape=TP4) for tp in range(4))
    world.put(rank(0, 17100, shape=TP4))
    world.advance(50)
    world.put(rank(1, 17101, shape=TP4))
    world.advance(50)
    assert world.ports() == {0: 17100, 1: 17101}
    world.advance(10)
    assert world.ports() == {0: 17100, 1: 17101, 2: 17002, 3: 17003}


def test_a_refused_registration_does_not_put_settle_off(world: World) -> None:
    ready_over_http(world)
    world.put(rank(0, 17101))
    world.advance(50)
    with refused(ErrorCode.ADDRESS_SUPERSEDED):
        world.put(rank(0, 17001))
    world.advance(10)
    assert world.ports() == {0: 17101, 1: 17002}


def test_one_held_rank_rejoins_a_living_group_at_once(world: World) -> None:
    holds = [world.hold(rank(tp, 17000 + tp, owner=f"A{tp}", shape=TP4)) for tp in range(4)]
    world.registry.release(holds[2])  # rank 2 crashed
    world.advance(3)
    world.hold(rank(2, 17102, owner="B2", shape=TP4))
    assert world.ports() == {2: 17102}
    assert world.topology.generation == 2
    for tp in (0, 1, 3):  # a live holder is told, once, to register again
        assert world.ended.codes(f"A{tp}@{17000 + tp}") == [ErrorCode.GENERATION_ENDED]
        world.hold(rank(tp, 17000 + tp, owner=f"A{tp}", shape=TP4), "again")
    assert world.topology.state is TopologyState.READY
    assert world.topology.generation == 2
    assert all(route.held and route.generation == 2 for route in world.topology.routes)
    world.advance(1_000)  # no grace from before is left running
    assert world.topology.state is TopologyState.READY
    assert world.ended.codes("again") == []


def test_a_dead_holder_stays_unconfirmed_and_goes(world: World) -> None:
    world.hold(rank(0, 17001, owner="A0"))
    silent = world.hold(rank(1, 17002, owner="A1"))
    crashed = world.topology.routes[0]
    assert crashed.held
    world.leave(rank(0, 17001, owner="A0"))
    world.hold(rank(0, 17101, owner="B0"))
    assert world.ended.codes("A1@17002") == [ErrorCode.GENERATION_ENDED]
    world.registry.release(silent)  # the server closes the call that it ended: no second end
    assert world.ports() == {0: 17101}
    world.advance(1_000)
    assert world.ports() == {0: 17101}  # gone with its grace, never counted again at settle


# --- a role switch in one process ----------------------------------------------------------


@pytest.mark.parametrize("ready", [False, True], ids=["never ready", "ready"])
def test_role_switch_in_one_process_moves_its_rank_in_place(world: World, ready: bool) -> None:
    world.hold(rank(0, 17001, owner="A"))
    if ready:
        world.hold(rank(1, 17002, owner="B"))
    world.hold(rank(0, 17101, owner="A"))
    assert world.topology.generation == 1
    assert world.ports()[0] == 17101
    assert world.ended.told == [("A@17001", ErrorCode.HOLD_ENDED)]
    assert (world.topology.state is TopologyState.READY) is ready


def test_role_switch_after_the_old_manager_left(world: World) -> None:
    world.hold(rank(0, 17001, owner="A"))
    world.hold(rank(1, 17002, owner="B"))
    world.leave(rank(0, 17001, owner="A"))
    world.advance(300)
    world.hold(rank(0, 17101, owner="A"))
    assert world.topology.generation == 1  # its last address is remembered with its owner
    assert world.topology.state is TopologyState.READY


def test_role_switch_without_an_owner_is_a_restart(world: World) -> None:
    """No owner is nobody: two HTTP processes are never the same process."""
    ready_over_http(world)
    world.put(rank(0, 17101))
    assert world.topology.generation == 2


def test_role_switch_there_and_back(world: World) -> None:
    world.hold(rank(0, 17001, owner="A"))
    world.hold(rank(0, 17101, owner="A"))
    world.hold(rank(0, 17001, owner="A"), "back")
    assert world.ports() == {0: 17001}
    assert world.ended.codes("back") == []


def test_role_switch_there_and_back_leaves_no_address_late(world: World) -> None:
    for port in (17001, 17101, 17001):
        world.put(rank(0, port, owner="A"))
    world.leave(rank(0, 17001, owner="A"))
    world.put(rank(0, 17001, owner="A"))
    assert world.ports() == {0: 17001}


# --- held by another -----------------------------------------------------------------------


def test_rule_3_a_rank_held_by_another_owner_is_refused_naming_the_holder(world: World) -> None:
    world.hold(rank(0, 17001, owner="A"))
    before = world.undated()
    for newcomer in (rank(0, 17101, owner="B"), rank(0, 17101)):
        for call in (world.put, world.hold):
            with refused(ErrorCode.RANK_HELD) as caught:
                call(newcomer)
            assert "10.0.0.1:17001" in str(caught.value)
            assert "owner A" in str(caught.value)
    assert world.undated() == before
    assert world.ended.told == []


# --- restart of held ranks -----------------------------------------------------------------


def hold_both(world: World, owner: str, base: int) -> list[Hold]:
    return [world.hold(rank(tp, base + tp, owner=f"{owner}{tp}")) for tp in (0, 1)]


def release_all(world: World, holds: list[Hold]) -> None:
    for hold in holds:
        world.registry.release(hold)


def test_restart_of_held_ranks_inside_the_grace(world: World) -> None:
    release_all(world, hold_both(world, "A", 17000))
    world.advance(4)
    assert world.topology.state is TopologyState.READY  # the grace: still served
    assert not any(route.held for route in world.topology.routes)
    world.hold(rank(0, 17100, owner="B0"))
    assert world.ports() == {0: 17100}
    world.hold(rank(1, 17101, owner="B1"))
    assert world.ports() == {0: 17100, 1: 17101}
    assert world.topology.generation == 2
    world.advance(1_000)
    assert world.ports() == {0: 17100, 1: 17101}
    assert world.topology.state is TopologyState.READY
    assert world.ended.told == []


def test_restart_of_held_ranks_after_the_grace(world: World) -> None:
    release_all(world, hold_both(world, "A", 17000))
    assert world.registry.next_deadline() == world.clock.now + 10
    world.advance(10)
    assert world.topology.state is TopologyState.EMPTY
    world.hold(rank(1, 17101, owner="B1"))
    assert world.topology.generation == 2  # remembered: the prefill server did restart
    world.hold(rank(0, 17100, owner="B0"))
    assert world.ports() == {0: 17100, 1: 17101}
    assert world.topology.generation == 2
    assert world.topology.state is TopologyState.READY


def test_restart_of_held_ranks_whose_holds_end_one_by_one(world: World) -> None:
    first, second = hold_both(world, "A", 17000)
    world.registry.release(first)
    world.hold(rank(0, 17100, owner="B0"))  # before the server noticed that rank 1 died too
    world.registry.release(second)
    world.hold(rank(1, 17101, owner="B1"))
    assert world.ports() == {0: 17100, 1: 17101}
    world.advance(1_000)
    assert world.ports() == {0: 17100, 1: 17101}
    assert world.topology.generation == 2


def test_live_holders_that_come_back_inside_the_grace_are_the_same_ranks(world: World) -> None:
    release_all(world, hold_both(world, "A", 17000))
    world.advance(9.9)
    hold_both(world, "A", 17000)
    assert world.topology.generation == 1
    world.advance(1_000)
    assert world.topology.state is TopologyState.READY


def test_half_held_half_http_group_restarts_held_rank_first(world: World) -> None:
    old = world.hold(rank(0, 17001, owner="A"))
    world.put(rank(1, 17002))
    world.registry.release(old)
    world.hold(rank(0, 17101, owner="B"))
    assert world.ports() == {0: 17101}
    world.put(rank(1, 17102))
    assert world.ports() == {0: 17101, 1: 17102}
    assert world.topology.generation == 2
    world.advance(1_000)
    assert world.ports() == {0: 17101, 1: 17102}


def test_half_held_half_http_group_restarts_http_rank_first(world: World) -> None:
    old = world.hold(rank(0, 17001, owner="A"))
    world.put(rank(1, 17002))
    world.put(rank(1, 17102))  # the dead process's call is still open
    assert world.ended.codes("A@17001") == [ErrorCode.GENERATION_ENDED]
    assert world.ports() == {1: 17102}
    world.registry.release(old)
    world.hold(rank(0, 17101, owner="B"))
    assert world.ports() == {0: 17101, 1: 17102}
    world.advance(1_000)
    assert world.ports() == {0: 17101, 1: 17102}
    assert world.topology.generation == 2


def test_half_held_half_http_group_whose_held_half_survives(world: World) -> None:
    world.hold(rank(0, 17001, owner="A"))
    world.put(rank(1, 17002))
    world.put(rank(1, 17102))
    world.hold(rank(0, 17001, owner="A"), "again")
    assert world.topology.state is TopologyState.READY
    assert world.ports() == {0: 17001, 1: 17102}


# --- many times ----------------------------------------------------------------------------


@pytest.mark.parametrize("held", [False, True], ids=["http", "held"])
def test_100_crashes_and_restarts_leave_one_row(held: bool) -> None:
    world = World()
    shape = Shape()  # one rank
    generation = 0
    for cycle in range(100):
        own = rank(0, 17000 + cycle, shape=shape, owner=f"A{cycle}" if held else "")
        if held:
            world.registry.release(world.hold(own))
        else:
            world.put(own)
        assert world.topology.generation == generation + 1
        generation = world.topology.generation
        world.advance(5)
        assert world.ports() == {0: 17000 + cycle}
    assert len(world.topology.routes) == 1
    registry = world.registry
    assert len(registry._ranks) == 1
    assert registry._removed == {}
    assert len(registry._superseded) <= 60 / 5 + 1  # each is forgotten after settle
    assert len(registry._graces) <= 10 / 5 + 1
    world.advance(1_000)
    assert len(world.topology.routes) == (0 if held else 1)


def test_a_holder_that_reconnects_1000_times_leaves_no_trace(world: World) -> None:
    own = rank(0, 17001, owner="A")
    for _ in range(1_000):
        world.registry.release(world.hold(own))
        world.advance(1)
    assert len(world.registry._graces) <= 11
    world.advance(10)
    assert world.topology.state is TopologyState.EMPTY
    assert world.registry._graces == []
    assert world.registry.next_deadline() is None


@pytest.mark.parametrize("timer", [True, False], ids=["timer", "stalled"])
def test_what_the_clock_brought_happens_in_its_order(world: World, timer: bool) -> None:
    """An event loop that stalled must not forget that the group was READY meanwhile."""
    ready_over_http(world)
    hold = world.hold(rank(0, 17101, owner="B"))  # generation 2, rank 1 unconfirmed
    world.advance(55)
    world.registry.release(hold)
    if timer:
        world.advance(5)
        assert world.topology.state is TopologyState.READY  # settled at 60 s
    world.advance(10)  # the grace ended at 65 s
    assert world.ports() == {1: 17002}
    world.put(rank(0, 17201))
    assert world.topology.generation == 3
