"""Registration rule 6, and the list of refused ranks."""

from __future__ import annotations

import pytest

from bootstrap_grpc.protos.errors import ErrorCode
from bootstrap_grpc.protos.model import Shape, TopologyState
from bootstrap_grpc.protos.status import error_detail
from support.registrations import TP2, TP4, World, key, rank, refused


@pytest.fixture
def world() -> World:
    return World()


# --- rule 6: the instance id ---------------------------------------------------------------


def test_rule_6_a_dead_engines_surviving_process_is_refused_by_its_successors_service() -> None:
    world = World(instance_id="engine-2")
    world.put(rank(0, 17101, instance="engine-2"))
    before = world.undated()
    for call in (world.put, world.hold):
        with refused(ErrorCode.INSTANCE_MISMATCH) as caught:
            call(rank(0, 17001, owner="survivor", instance="engine-1"))
        assert "engine-1" in str(caught.value)
        assert "engine-2" in str(caught.value)
    assert world.undated() == before


def test_rule_6_an_unnamed_process_or_service_agrees_with_any() -> None:
    named = World(instance_id="engine-2")
    answer = named.put(rank(0, 17001))
    assert answer.instance_id == named.topology.instance_id == "engine-2"
    unnamed = World()
    assert unnamed.put(rank(0, 17001, instance="engine-1")).instance_id == ""


def test_rule_6_comes_before_every_other_rule() -> None:
    """A survivor must neither take a shape down nor learn that its old key is held."""
    world = World(instance_id="engine-2")
    world.hold(rank(0, 17101, owner="B", instance="engine-2"))
    for survivor in (
        rank(0, 17001, owner="A", instance="engine-1"),
        rank(1, 17001, owner="A", instance="engine-1", shape=TP4),
    ):
        with refused(ErrorCode.INSTANCE_MISMATCH):
            world.put(survivor)


# --- the list ------------------------------------------------------------------------------


def test_a_refused_rank_is_listed_with_time_and_reason_until_its_key_registers(
    world: World,
) -> None:
    world.put(rank(0, 17001))
    with refused(ErrorCode.SHAPE_MISMATCH) as caught:
        world.put(rank(1, 17002, shape=TP4))
    (listed,) = world.topology.refused
    assert (listed.key, listed.rank_ip, listed.rank_port) == (key(1), "10.0.0.1", 17002)
    assert (listed.code, listed.reason) == (ErrorCode.SHAPE_MISMATCH, str(caught.value))
    assert listed.refused_at_unix_ms == round(world.wall.now * 1000)
    world.put(rank(0, 17001))
    assert len(world.topology.refused) == 1  # another key
    world.put(rank(1, 17002))
    assert world.topology.refused == ()


def test_a_rank_refused_again_is_listed_once_with_its_latest_time(world: World) -> None:
    world.put(rank(0, 17001))
    for _ in range(3):
        world.advance(1)
        with refused(ErrorCode.SHAPE_MISMATCH):
            world.put(rank(1, 17002, shape=TP4))
    (listed,) = world.topology.refused
    assert listed.refused_at_unix_ms == round(world.wall.now * 1000)


def test_a_refused_rank_wakes_watchers_when_its_reason_changes(world: World) -> None:
    world.hold(rank(0, 17001, owner="A"))
    woken: list[int] = []
    world.registry.subscribe(lambda: woken.append(1))
    for shape, count in ((TP4, 1), (TP4, 1), (Shape(attn_tp_size=8), 2)):
        with refused(ErrorCode.SHAPE_MISMATCH):
            world.put(rank(1, 17002, shape=shape))
        assert len(woken) == count


def test_an_invalid_registration_is_not_listed(world: World) -> None:
    """It is the caller's mistake and says nothing about the group."""
    with refused(ErrorCode.INVALID_FIELD):
        world.put(rank(0, 0))
    assert world.topology.refused == ()


def test_the_list_keeps_the_newest_64(world: World) -> None:
    wide = Shape(attn_tp_size=100)
    world.put(rank(0, 17001))
    for tp in range(100):
        with refused(ErrorCode.SHAPE_MISMATCH):
            world.put(rank(tp, 17001, shape=wide))
    assert [each.key.tp_rank for each in world.topology.refused] == list(range(36, 100))


def test_a_refused_rank_does_not_count(world: World) -> None:
    world.put(rank(0, 17001))
    with refused(ErrorCode.SHAPE_MISMATCH):
        world.put(rank(1, 17002, shape=TP4))
    assert world.topology.state is TopologyState.PARTIAL
    assert world.topology.missing == (key(1),)


# --- refusals must reach the one who is refused ---------------------------------------------


def longest(seed: str, instance: str = "") -> Shape:
    """The longest texts that a registration may carry."""
    text = seed * 1_024
    return Shape(
        attn_tp_size=2,
        kv_cache_dtype=text,
        load_balance_method=text,
        decode_allocation_policy=text,
        kv_layout=text,
        dsv41_spec_layout_json=f'"{seed * 16_382}"',
    )


def test_the_longest_refusals_fit_into_8_kib_of_trailing_metadata() -> None:
    """gRPC drops longer metadata, and with it the whole answer.

    The text travels as grpc-message too, percent-encoded, and binary metadata in base64.
    """
    world = World(instance_id="i" * 1_024)
    world.hold(rank(0, 17001, owner="o" * 1_024, shape=longest("a")))
    refusals = {
        ErrorCode.SHAPE_MISMATCH: rank(1, 17002, shape=longest("b")),
        ErrorCode.INSTANCE_MISMATCH: rank(1, 17002, shape=TP2, instance="j" * 1_024),
        ErrorCode.RANK_HELD: rank(0, 17009, shape=longest("a"), owner="p" * 1_024),
    }
    for code, registration in refusals.items():
        with refused(code) as caught:
            world.put(registration)
        detail = error_detail(caught.value).SerializeToString()
        text = str(caught.value).encode()
        assert len(detail) * 4 / 3 + len(text) < 7_500, code
    with refused(ErrorCode.NOT_OWNER) as caught:
        world.leave(rank(0, 17001, owner="q" * 1_024))
    assert len(error_detail(caught.value).SerializeToString()) < 4_000
