"""Registration rules 1, 2, 5 and 8, and what the version promises."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bootstrap_grpc.protos.errors import ErrorCode
from bootstrap_grpc.protos.model import Attributes, RankKey, Registration, Shape, TopologyState
from bootstrap_grpc.server.registry import RegistryConfig
from support.registrations import LOCAL, REMOTE, TP2, TP4, World, key, rank, refused


@pytest.fixture
def world() -> World:
    return World()


# --- before anything -----------------------------------------------------------------------


def test_nobody_registered_is_empty_with_generation_and_version_0(world: World) -> None:
    topology = world.topology
    assert topology.state is TopologyState.EMPTY
    assert (topology.registered, topology.expected, topology.missing_total) == (0, 0, 0)
    assert (topology.shape, topology.routes, topology.missing) == (None, (), ())
    assert (topology.generation, topology.version) == (0, 0)
    assert topology.server_id == "server-1"
    assert world.registry.next_deadline() is None
    with refused(ErrorCode.RANK_NOT_FOUND):
        world.route(0)


@pytest.mark.parametrize("name", ["hold_grace", "settle"])
@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_times_that_cannot_be_are_no_configuration(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        RegistryConfig("server-1", **{name: value})


# --- rule 1 --------------------------------------------------------------------------------


def test_rule_1_a_new_key_is_added(world: World) -> None:
    answer = world.put(rank(0, 17001))
    topology = world.topology
    assert (answer.server_id, answer.generation) == ("server-1", 1)
    assert answer.version == topology.version > 0
    assert topology.state is TopologyState.PARTIAL
    assert (topology.registered, topology.expected) == (1, 2)
    assert topology.missing == (key(1),)
    assert topology.shape == TP2
    route = world.route(0)
    assert (route.rank_ip, route.rank_port, route.generation, route.held) == (
        "10.0.0.1",
        17001,
        1,
        False,
    )


def test_rule_1_all_keys_make_it_ready(world: World) -> None:
    world.put(rank(1, 17002))
    world.put(rank(0, 17001))
    assert world.topology.state is world.registry.state is TopologyState.READY
    assert world.topology.missing == ()
    assert [route.key for route in world.topology.routes] == [key(0), key(1)]  # in key order


@pytest.mark.parametrize("name", ["dp_rank", "cp_rank", "tp_rank", "pp_rank"])
@pytest.mark.parametrize("value", [2, 65_536, -1])
def test_rule_1_a_key_outside_the_declared_sizes_is_invalid(
    world: World, name: str, value: int
) -> None:
    shape = Shape(attn_tp_size=2, attn_cp_size=2, dp_size=2, pp_size=2)
    outside = RankKey(**{name: value})
    with refused(ErrorCode.INVALID_FIELD) as caught:
        world.put(Registration(outside, "10.0.0.1", 17001, shape))
    assert caught.value.fields[0].field == f"key.{name}"
    assert str(value) in str(caught.value)


def test_rule_1_every_rank_of_every_axis_counts(world: World) -> None:
    shape = Shape(attn_tp_size=2, attn_cp_size=3, dp_size=2, pp_size=2)
    keys = list(shape.keys())
    assert len(set(keys)) == shape.expected == 24
    for port, each in enumerate(keys, start=17000):
        assert world.registry.state is not TopologyState.READY
        world.put(Registration(each, "10.0.0.1", port, shape))
    assert world.registry.state is TopologyState.READY
    assert [route.key for route in world.topology.routes] == sorted(keys)


def test_missing_names_the_first_64_and_counts_all(world: World) -> None:
    shape = Shape(dp_size=200)
    world.put(Registration(RankKey(dp_rank=3), "10.0.0.1", 17001, shape))
    topology = world.topology
    assert topology.missing_total == 199
    assert topology.missing == tuple(RankKey(dp_rank=dp) for dp in range(65) if dp != 3)


# --- rule 2 --------------------------------------------------------------------------------


def test_rule_2_the_same_again_counts_once_and_changes_nothing(world: World) -> None:
    world.put(rank(0, 17001))
    before = world.topology
    answer = world.put(rank(0, 17001))
    assert world.topology is before
    assert answer.version == before.version


def test_rule_2_another_spelling_of_the_address_is_the_same_address(world: World) -> None:
    world.put_all([rank(0, 17001), rank(1, 17002)])
    for spelling in ("::ffff:10.0.0.1", "[::ffff:10.0.0.1]", "::FFFF:0a00:0001"):
        world.put(rank(0, 17001, ip=spelling))
        assert world.topology.generation == 1
        assert world.topology.state is TopologyState.READY
        assert world.route(0).rank_ip == spelling  # served as its owner last spelt it


def test_rule_2_a_refresh_renews_the_attributes(world: World) -> None:
    world.put(rank(0, 17001, attributes=Attributes(prefill_http_port=30000)))
    version = world.topology.version
    world.put(rank(0, 17001, attributes=Attributes(prefill_http_port=30001)))
    assert world.route(0).attributes.prefill_http_port == 30001
    assert world.topology.version > version


def test_rule_2_an_http_refresh_takes_no_owner_away(world: World) -> None:
    world.hold(rank(0, 17001, owner="A"))
    world.put(rank(0, 17001))  # the same process over HTTP, without an owner
    assert world.route(0).held
    world.leave(rank(0, 17001, owner="A"))
    assert world.ports() == {}


def test_rule_2_a_rank_that_was_removed_and_comes_back_unchanged_is_the_same_rank(
    world: World,
) -> None:
    world.put_all([rank(0, 17001, owner="A"), rank(1, 17002, owner="B")])
    world.leave(rank(0, 17001, owner="A"))
    assert world.ports() == {1: 17002}
    world.put(rank(0, 17001, owner="A"))
    assert world.topology.generation == 1
    assert world.ports() == {0: 17001, 1: 17002}
    assert world.topology.state is TopologyState.READY


# --- rule 5 --------------------------------------------------------------------------------


def test_rule_5_ready_counts_distinct_keys_never_calls(world: World) -> None:
    for _ in range(5):
        world.put(rank(0, 17001))
    assert world.topology.state is TopologyState.PARTIAL
    assert world.registry.registered == world.topology.registered == 1
    world.put(rank(1, 17002))
    assert world.topology.state is TopologyState.READY


def test_rule_5_two_ranks_at_one_address_are_two_ranks(world: World) -> None:
    world.put_all([rank(0, 17001), rank(1, 17001)])
    assert world.topology.state is TopologyState.READY


def test_prefill_http_port_differing_per_node_is_no_conflict(world: World) -> None:
    world.put(rank(0, 17001, attributes=Attributes(prefill_http_port=30000)))
    world.put(rank(1, 17001, ip="10.0.0.2", attributes=Attributes(prefill_http_port=30100)))
    assert world.topology.state is TopologyState.READY
    assert [route.attributes.prefill_http_port for route in world.topology.routes] == [30000, 30100]


def test_attributes_are_kept_verbatim_per_rank(world: World) -> None:
    extra = {"engine_flag": '{"b": 1,  "a": [null]}'}
    world.put(rank(0, 17001, attributes=Attributes(agent_name="nixl-0", extra_json=extra)))
    world.put(rank(1, 17002))
    assert world.route(0).attributes == Attributes(None, "nixl-0", extra)
    assert world.route(1).attributes == Attributes()


# --- rule 8 and the promise that a refused call changes nothing ----------------------------

INVALID = {
    "rank_port": replace(rank(0, 17001), rank_port=0),
    "rank_port ": replace(rank(0, 17001), rank_port=65_536),
    "rank_ip": rank(0, 17001, ip="0.0.0.0"),
    "key.tp_rank": rank(2, 17001),
    "shape.attn_tp_size": rank(0, 17001, shape=replace(TP2, attn_tp_size=0)),
    "shape.page_size": rank(0, 17001, shape=replace(TP2, page_size=0)),
    "shape.dsv41_spec_layout_json": rank(0, 17001, shape=replace(TP2, dsv41_spec_layout_json="{")),
    "attributes.prefill_http_port": rank(0, 17001, attributes=Attributes(prefill_http_port=0)),
    "attributes.extra_json[a]": rank(0, 17001, attributes=Attributes(extra_json={"a": "b"})),
}


@pytest.mark.parametrize("field", INVALID)
@pytest.mark.parametrize("ready", [False, True], ids=["partial", "ready"])
def test_rule_8_an_invalid_call_changes_nothing(world: World, field: str, ready: bool) -> None:
    world.put(rank(0, 17009))
    if ready:
        world.hold(rank(1, 17002, owner="B"))
    before = world.topology
    for call in (world.put, world.hold):
        with refused(ErrorCode.INVALID_FIELD) as caught:
            call(INVALID[field])
        assert caught.value.fields[0].field == field.strip()
    assert world.topology is before
    world.put(rank(0, 17009))  # the next good call works
    assert world.topology is before


def test_rule_8_a_refused_registration_renews_nothing(world: World) -> None:
    """Neither attributes nor the wait for settle: the call might not have happened."""
    world.hold(rank(0, 17001, owner="A"))
    before = world.undated()
    world.advance(30)
    with refused(ErrorCode.RANK_HELD):
        world.put(rank(0, 17009, owner="B", attributes=Attributes(agent_name="late")))
    with refused(ErrorCode.SHAPE_MISMATCH):
        world.put(rank(1, 17002, shape=TP4))
    assert world.undated() == before


# --- version -------------------------------------------------------------------------------


def test_version_rises_with_every_visible_change_and_only_then(world: World) -> None:
    seen = [world.topology.version]

    def rises() -> bool:
        seen.append(world.topology.version)
        assert seen[-1] >= seen[-2]
        return seen[-1] > seen[-2]

    world.put(rank(0, 17001))
    assert rises()
    world.put(rank(0, 17001))
    assert not rises()
    hold = world.hold(rank(1, 17002, owner="B"))
    assert rises()
    with refused(ErrorCode.RANK_HELD):
        world.put(rank(1, 17009))
    assert rises()  # a refused rank is listed
    world.advance(1)
    with refused(ErrorCode.RANK_HELD):
        world.put(rank(1, 17009))
    assert not rises()  # only its time is new: no watcher is woken once a second for that
    world.registry.release(hold)
    assert rises()  # no longer held
    world.advance(10)
    assert rises()  # removed, by the clock alone
    world.put(rank(0, 17003))
    assert rises()  # a new generation


def test_version_of_the_answer_is_the_version_that_shows_it(world: World) -> None:
    answer = world.put(rank(0, 17001))
    assert answer.version == world.topology.version
    hold = world.hold(rank(1, 17002, owner="B"))
    assert hold.registered.version == world.topology.version
    assert world.leave(rank(1, 17002, owner="B")).version == world.topology.version


def test_one_call_is_one_version_and_one_notification(world: World) -> None:
    world.put(rank(0, 17001))
    versions: list[int] = []
    world.registry.subscribe(lambda: versions.append(world.registry.version))
    before = world.topology.version
    world.hold(rank(1, 17002, owner="B"))
    assert versions[-1] == world.topology.version == before + 1
    assert len(versions) == 1


def test_a_subscriber_sees_the_state_after_the_change(world: World) -> None:
    seen: list[dict[int, int]] = []
    unsubscribe = world.registry.subscribe(lambda: seen.append(world.ports()))
    world.put(rank(0, 17001))
    world.put(rank(0, 17001))
    assert seen == [{0: 17001}]
    unsubscribe()
    unsubscribe()  # twice is once
    world.put(rank(1, 17002))
    assert seen == [{0: 17001}]


def test_two_subscriptions_of_one_function_end_one_by_one(world: World) -> None:
    seen: list[int] = []

    def on_change() -> None:
        seen.append(world.registry.version)

    first = world.registry.subscribe(on_change)
    world.registry.subscribe(on_change)
    first()
    first()
    world.put(rank(0, 17001))
    assert len(seen) == 1


def test_a_hold_that_only_exists_after_the_change_is_shown_held(world: World) -> None:
    seen: list[bool] = []
    world.registry.subscribe(lambda: seen.append(world.topology.routes[0].held))
    world.hold(rank(0, 17001, owner="A"))
    assert seen == [True]


# --- deregistration ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        rank(0, 17002, owner="A"),
        rank(0, 17001, ip="10.0.0.2", owner="A"),
        rank(0, 17001, owner="B"),
        rank(0, 17001),
        rank(1, 17001, owner="A"),
    ],
    ids=["port", "ip", "owner", "no owner", "key"],
)
def test_deregister_compares_key_address_and_owner(world: World, other: Registration) -> None:
    world.put(rank(0, 17001, owner="A"))
    before = world.topology
    with refused(ErrorCode.NOT_OWNER):
        world.leave(other)
    assert world.topology is before


def test_deregister_removes_at_once_and_only_once(world: World) -> None:
    world.put(rank(0, 17001, owner="A"))
    world.leave(rank(0, 17001, ip="::ffff:10.0.0.1", owner="A"))
    assert world.topology.state is TopologyState.EMPTY
    with refused(ErrorCode.RANK_NOT_FOUND):
        world.route(0)
    with refused(ErrorCode.NOT_OWNER):
        world.leave(rank(0, 17001, owner="A"))


def test_route_of_an_unknown_rank_names_it_and_how_many_there_are(world: World) -> None:
    world.put(rank(0, 17001))
    with refused(ErrorCode.RANK_NOT_FOUND) as caught:
        world.route(1)
    assert "dp0 cp0 tp1 pp0" in str(caught.value)
    assert "1 of 2" in str(caught.value)


def test_rule_7_loopback_registers_only_from_this_host(world: World) -> None:
    world.put(rank(0, 17001, ip="127.0.0.1"), LOCAL)
    with refused(ErrorCode.INVALID_FIELD) as caught:
        world.put(rank(1, 17002, ip="127.0.0.1"), REMOTE)
    assert "127.0.0.1" in str(caught.value)
    assert REMOTE.address in str(caught.value)  # names both addresses
