"""Registration rule 4: a shape that disagrees, and what "absent agrees with anything" means."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bootstrap_grpc.protos.errors import ErrorCode
from bootstrap_grpc.protos.model import Shape, TopologyState
from support.registrations import TP2, TP4, World, rank, refused


@pytest.fixture
def world() -> World:
    return World()


OTHER = {
    "attn_tp_size": 4,
    "attn_cp_size": 2,
    "dp_size": 2,
    "pp_size": 2,
    "page_size": 32,
    "kv_cache_dtype": "fp8_e4m3",
    "load_balance_method": "round_robin",
    "decode_allocation_policy": "late",
    "enable_dsa_cache_layer_split": True,
    "enable_kv_cache_sharding": True,
    "kv_layout": "layer_last",
    "dsv41_spec_layout_json": '{"layers": 2}',
}
FULL = Shape(
    attn_tp_size=2,
    page_size=64,
    kv_cache_dtype="auto",
    load_balance_method="follow_bootstrap_room",
    decode_allocation_policy="early",
    enable_dsa_cache_layer_split=False,
    enable_kv_cache_sharding=False,
    kv_layout="page_first",
    dsv41_spec_layout_json='{"layers": 1}',
)


@pytest.mark.parametrize("field", OTHER)
def test_rule_4_a_disagreeing_shape_is_refused_naming_the_field_with_both_values(
    world: World, field: str
) -> None:
    world.put(rank(0, 17001, shape=FULL))
    before = world.undated()
    with refused(ErrorCode.SHAPE_MISMATCH) as caught:
        world.put(rank(1, 17002, shape=replace(FULL, **{field: OTHER[field]})))
    (only,) = caught.value.fields
    assert (only.field, only.value, only.expected) == (
        f"shape.{field}",
        str(OTHER[field]),
        str(getattr(FULL, field)),
    )
    for part in (field, str(OTHER[field]), str(getattr(FULL, field))):
        assert part in str(caught.value)
    assert world.undated() == before


def test_rule_4_every_disagreeing_field_is_named(world: World) -> None:
    world.put(rank(0, 17001, shape=FULL))
    with refused(ErrorCode.SHAPE_MISMATCH) as caught:
        world.put(rank(1, 17002, shape=Shape(**OTHER)))
    assert [each.field for each in caught.value.fields] == [f"shape.{name}" for name in OTHER]


@pytest.mark.parametrize("field", [name for name in OTHER if not name.endswith("_size")])
def test_absent_agrees_with_anything_in_either_order(world: World, field: str) -> None:
    world.put(rank(0, 17001, shape=replace(FULL, **{field: None})))
    assert getattr(world.topology.shape, field) is None
    world.put(rank(1, 17002, shape=FULL))
    assert world.topology.state is TopologyState.READY
    assert world.topology.shape == FULL  # learnt from the rank that said it
    world.put(rank(0, 17001, shape=replace(FULL, **{field: None})))
    assert world.topology.shape == FULL  # and not forgotten


def test_layouts_are_compared_as_json_not_as_text(world: World) -> None:
    """bootstrap.proto says so: the key order of another JSON writer is no disagreement."""
    first = replace(TP2, dsv41_spec_layout_json='{"a": 1, "b": [2]}')
    second = replace(TP2, dsv41_spec_layout_json='{"b":[2],"a":1}')
    world.put(rank(0, 17001, shape=first))
    world.put(rank(1, 17002, shape=second))
    assert world.topology.state is TopologyState.READY
    assert world.topology.generation == 1


@pytest.mark.parametrize("other", ["true", "1", "1.5", "null", "{}", "[]", '"1"'])
def test_layouts_of_different_json_disagree(world: World, other: str) -> None:
    base = {"true": "1", "1": "true"}.get(other, '{"a": 1}')
    world.put(rank(0, 17001, shape=replace(TP2, dsv41_spec_layout_json=base)))
    with refused(ErrorCode.SHAPE_MISMATCH):
        world.put(rank(1, 17002, shape=replace(TP2, dsv41_spec_layout_json=other)))


# --- a group that may be replaced ----------------------------------------------------------


def test_tp2_to_tp4_with_the_new_rank_first(world: World) -> None:
    world.put_all([rank(0, 17001), rank(1, 17002)])
    answer = world.put(rank(3, 17103, shape=TP4))
    assert answer.generation == 2
    assert world.ports() == {3: 17103}  # ranks of the old shape go
    assert world.topology.expected == 4
    for late in (rank(0, 17001), rank(1, 17002)):
        with refused(ErrorCode.ADDRESS_SUPERSEDED):
            world.put(late)
    world.put_all(rank(tp, 17100 + tp, shape=TP4) for tp in range(3))
    assert world.topology.state is TopologyState.READY
    world.advance(1_000)
    assert world.ports() == {0: 17100, 1: 17101, 2: 17102, 3: 17103}
    assert world.topology.generation == 2


def test_tp2_to_tp4_at_the_old_addresses(world: World) -> None:
    """The new ranks were given the old ports: only the shape tells them apart."""
    world.put_all([rank(0, 17001), rank(1, 17002)])
    world.put_all(rank(tp, 17001 + tp, shape=TP4) for tp in range(4))
    assert world.topology.state is TopologyState.READY
    with refused(ErrorCode.ADDRESS_SUPERSEDED):
        world.put(rank(0, 17001))
    assert world.topology.state is TopologyState.READY


def test_tp2_to_tp4_of_held_ranks_inside_the_grace(world: World) -> None:
    for hold in [world.hold(rank(tp, 17000 + tp, owner=f"A{tp}")) for tp in (0, 1)]:
        world.registry.release(hold)
    world.advance(2)
    for tp in (3, 2, 1, 0):
        world.hold(rank(tp, 17100 + tp, owner=f"B{tp}", shape=TP4))
    assert world.topology.state is TopologyState.READY
    assert world.topology.generation == 2
    world.advance(1_000)
    assert world.topology.state is TopologyState.READY
    assert world.ended.told == []


def test_tp2_to_tp4_of_held_ranks_after_the_grace(world: World) -> None:
    for hold in [world.hold(rank(tp, 17000 + tp, owner=f"A{tp}")) for tp in (0, 1)]:
        world.registry.release(hold)
    world.advance(10)
    assert world.topology.state is TopologyState.EMPTY
    for tp in (3, 2, 1, 0):
        world.hold(rank(tp, 17100 + tp, owner=f"B{tp}", shape=TP4))
    assert world.topology.state is TopologyState.READY
    assert world.topology.generation == 2


def test_rule_4_a_group_that_was_never_ready_stands_for_settle(world: World) -> None:
    world.put(rank(0, 17001))
    world.advance(59.9)
    with refused(ErrorCode.SHAPE_MISMATCH):
        world.put(rank(0, 17101, shape=TP4))
    world.advance(0.1)
    world.put(rank(0, 17101, shape=TP4))
    assert world.topology.generation == 2
    assert world.topology.shape == TP4
    assert world.ports() == {0: 17101}


def test_rule_4_a_refused_shape_does_not_put_its_own_turn_off(world: World) -> None:
    world.put(rank(0, 17001))
    for _ in range(59):
        world.advance(1)
        with refused(ErrorCode.SHAPE_MISMATCH):
            world.put(rank(0, 17101, shape=TP4))
    world.advance(1)
    world.put(rank(0, 17101, shape=TP4))
    assert world.topology.shape == TP4


# --- a group that is alive -----------------------------------------------------------------


@pytest.mark.parametrize("ready", [False, True], ids=["never ready", "ready"])
def test_a_group_that_another_owner_holds_never_goes(world: World, ready: bool) -> None:
    """Deliberate, also where it was READY: an open hold says that the group is alive."""
    world.hold(rank(0, 17001, owner="A"))
    if ready:
        world.put(rank(1, 17002))
    before = world.undated()
    world.advance(1_000)
    for newcomer in (rank(1, 17002, shape=TP4), rank(3, 17103, shape=TP4, owner="B")):
        with refused(ErrorCode.SHAPE_MISMATCH):
            world.put(newcomer)
    assert world.undated() == before
    assert world.ended.told == []


def test_a_held_group_goes_as_soon_as_its_last_hold_ends(world: World) -> None:
    first = world.hold(rank(0, 17001, owner="A"))
    second = world.hold(rank(1, 17002, owner="B"))
    for hold in (first, second):
        with refused(ErrorCode.SHAPE_MISMATCH):
            world.put(rank(2, 17102, shape=TP4))
        world.registry.release(hold)
    world.put(rank(2, 17102, shape=TP4))
    assert world.ports() == {2: 17102}


def test_a_held_key_says_so_before_its_shape_is_looked_at(world: World) -> None:
    """Deliberate: that another process holds the rank is the cause, the shape a consequence."""
    world.hold(rank(0, 17001, owner="A"))
    with refused(ErrorCode.RANK_HELD):
        world.put(rank(0, 17101, shape=TP4, owner="B"))
    with refused(ErrorCode.SHAPE_MISMATCH):
        world.put(rank(0, 17001, shape=TP4, owner="B"))  # at the same address


# --- one process changes its own shape -----------------------------------------------------


def test_role_switch_with_another_shape_ends_its_own_hold_for_good(world: World) -> None:
    """GENERATION_ENDED would make the old handle register the old shape again, and so on."""
    one = Shape(page_size=64)
    world.hold(rank(0, 17001, owner="A", shape=one))
    assert world.topology.state is TopologyState.READY
    world.hold(rank(0, 17101, owner="A", shape=replace(one, page_size=32)))
    assert world.ports() == {0: 17101}
    assert world.topology.generation == 2
    assert world.ended.told == [("A@17001", ErrorCode.HOLD_ENDED)]


def test_a_process_that_alone_holds_may_change_its_shape_at_its_address(world: World) -> None:
    world.hold(rank(0, 17001, owner="A"))
    world.put(rank(1, 17002))
    world.hold(rank(0, 17001, owner="A", shape=TP4))
    assert world.ports() == {0: 17001}
    assert world.topology.shape == TP4
    assert world.ended.told == [("A@17001", ErrorCode.HOLD_ENDED)]


# --- the shape is forgotten ----------------------------------------------------------------


def test_when_nobody_is_left_a_shape_that_was_never_ready_is_forgotten(world: World) -> None:
    """Deliberate: nobody is left to disagree with, and nobody was ever served that shape."""
    world.put(rank(0, 17001, owner="A"))
    world.leave(rank(0, 17001, owner="A"))
    world.put(rank(0, 17101, shape=TP4))
    assert world.topology.generation == 1
    assert world.topology.shape == TP4


def test_when_nobody_is_left_a_shape_that_was_ready_is_remembered_as_a_restart(
    world: World,
) -> None:
    world.put_all([rank(0, 17001, owner="A"), rank(1, 17002, owner="B")])
    world.leave(rank(0, 17001, owner="A"))
    world.leave(rank(1, 17002, owner="B"))
    assert world.topology.shape is None  # what is shown: nobody says so now
    world.put(rank(0, 17101, shape=TP4))
    assert world.topology.generation == 2
    assert world.topology.shape == TP4


def test_settle_removes_silent_ranks_that_disagree_with_the_new_generation(world: World) -> None:
    """Absent agrees, so a new generation may learn a page size that the silent ranks lack."""
    world.put_all(rank(tp, 17000 + tp, shape=TP4) for tp in range(4))
    vague = replace(TP4, page_size=None)
    world.put(rank(0, 17100, shape=vague))
    world.put(rank(1, 17101, shape=replace(TP4, page_size=32)))
    world.advance(60)
    assert world.ports() == {0: 17100, 1: 17101}
    assert world.topology.shape is not None
    assert world.topology.shape.page_size == 32
    assert world.registry.next_deadline() is None
