"""Values to messages and back: nothing is lost, and what no message can carry is named."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos import convert
from bootstrap_grpc.protos.errors import ErrorCode
from bootstrap_grpc.protos.model import (
    Attributes,
    Deregistration,
    RankKey,
    RefusedRank,
    Registered,
    Registration,
    Route,
    Shape,
    Topology,
    TopologyState,
)
from support.registrations import rank, refused

UINT32 = st.integers(0, 2**32 - 1)
UINT64 = st.integers(0, 2**64 - 1)
TEXT = st.text(max_size=12)
FLAG = st.none() | st.booleans()
KEYS = st.builds(RankKey, UINT32, UINT32, UINT32, UINT32)
SHAPES = st.builds(
    Shape,
    *[UINT32] * 4,
    *[st.none() | UINT32],
    *[st.none() | TEXT] * 3,
    *[FLAG] * 2,
    *[st.none() | TEXT] * 2,
)
ATTRIBUTES = st.builds(
    Attributes, st.none() | UINT32, st.none() | TEXT, st.dictionaries(TEXT, TEXT, max_size=3)
)
REGISTRATIONS = st.builds(Registration, KEYS, TEXT, UINT32, SHAPES, ATTRIBUTES, TEXT, TEXT)
ROUTES = st.builds(Route, KEYS, TEXT, UINT32, UINT64, st.booleans(), ATTRIBUTES)
REFUSED = st.builds(
    RefusedRank, KEYS, TEXT, UINT32, st.sampled_from(ErrorCode), TEXT, st.integers(0, 2**63 - 1)
)
TOPOLOGIES = st.builds(
    Topology,
    st.sampled_from(TopologyState),
    UINT32,
    UINT32,
    st.lists(KEYS, max_size=3).map(tuple),
    UINT32,
    st.none() | SHAPES,
    st.lists(ROUTES, max_size=3).map(tuple),
    st.lists(REFUSED, max_size=2).map(tuple),
    TEXT,
    TEXT,
    UINT64,
    UINT64,
)
FEW = settings(deadline=None, max_examples=40)


def over_the_wire(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())


@FEW
@given(REGISTRATIONS, st.sampled_from([pb.RegisterRankRequest, pb.HoldRankRequest]))
def test_registrations(registration: Registration, message: Any) -> None:
    wire = over_the_wire(convert.registration_to_proto(registration, message))
    assert convert.registration_from_proto(wire) == registration


@FEW
@given(st.builds(Deregistration, KEYS, TEXT, UINT32, TEXT))
def test_deregistrations(deregistration: Deregistration) -> None:
    wire = over_the_wire(convert.deregistration_to_proto(deregistration))
    assert convert.deregistration_from_proto(wire) == deregistration


@FEW
@given(
    st.builds(Registered, TEXT, TEXT, UINT64, UINT64),
    st.sampled_from([pb.RegisterRankResponse, pb.HoldRankResponse]),
)
def test_answers_to_registrations(registered: Registered, message: Any) -> None:
    wire = over_the_wire(convert.registered_to_proto(registered, message))
    assert convert.registered_from_proto(wire) == registered


@FEW
@given(ROUTES)
def test_routes(route: Route) -> None:
    assert convert.route_from_proto(over_the_wire(convert.route_to_proto(route))) == route


@FEW
@given(TOPOLOGIES)
def test_topologies(topology: Topology) -> None:
    wire = over_the_wire(convert.topology_to_proto(topology))
    assert convert.topology_from_proto(wire) == topology


@pytest.mark.parametrize("name", [field.name for field in fields(Shape)])
def test_every_shape_field_is_carried(name: str) -> None:
    """Absent stays absent, and the false values of each type are not absent."""
    false_value: dict[str, object] = {"page_size": 0}
    value = false_value.get(name, False if name.startswith("enable_") else "")
    if name.endswith("_size"):
        value = 0
    shape = replace(Shape(), **{name: value})
    assert convert.shape_from_proto(over_the_wire(convert.shape_to_proto(shape))) == shape
    assert convert.shape_from_proto(convert.shape_to_proto(Shape())) == Shape()


def test_every_message_field_has_a_model_field() -> None:
    """A field that is added to the proto and forgotten here would be lost without a word."""
    for message, value in (
        (pb.Shape, Shape),
        (pb.Attributes, Attributes),
        (pb.RegisterRankRequest, Registration),
        (pb.HoldRankRequest, Registration),
        (pb.DeregisterRankRequest, Deregistration),
        (pb.RegisterRankResponse, Registered),
        (pb.HoldRankResponse, Registered),
        (pb.Route, Route),
        (pb.RefusedRank, RefusedRank),
        (pb.Topology, Topology),
        (pb.RankKey, RankKey),
    ):
        assert set(message.DESCRIPTOR.fields_by_name) == {field.name for field in fields(value)}


def test_states_equal_the_proto_enum() -> None:
    assert {f"TOPOLOGY_STATE_{state.name}": state.value for state in TopologyState} == {
        name: number for name, number in pb.TopologyState.items() if number
    }


def test_a_state_of_a_newer_version_is_an_error() -> None:
    with pytest.raises(ValueError, match="9"):
        convert.topology_from_proto(pb.Topology(state=9))


# --- what no message can carry --------------------------------------------------------------

GOOD = rank(0, 17001)
NOT_UINT32 = (-1, 2**32, 1.0, True, "1", None, b"1")
NOT_TEXT = (1, b"x", ["x"], "\ud800")


def refused_field(registration: Registration) -> str:
    with refused(ErrorCode.INVALID_FIELD) as caught:
        convert.registration_to_proto(registration, pb.RegisterRankRequest)
    (only,) = caught.value.fields
    assert str(caught.value).startswith(f"{only.field} is ")
    return only.field


@pytest.mark.parametrize("value", NOT_UINT32, ids=repr)
def test_a_number_that_is_no_uint32_is_named(value: Any) -> None:
    assert refused_field(replace(GOOD, rank_port=value)) == "rank_port"
    for name in ("dp_rank", "cp_rank", "tp_rank", "pp_rank"):
        assert refused_field(replace(GOOD, key=RankKey(**{name: value}))) == f"key.{name}"
    for name in ("attn_tp_size", "attn_cp_size", "dp_size", "pp_size", "page_size"):
        if name == "page_size" and value is None:
            continue
        assert refused_field(replace(GOOD, shape=Shape(**{name: value}))) == f"shape.{name}"
    if value is not None:
        attributes = Attributes(prefill_http_port=value)
        assert refused_field(replace(GOOD, attributes=attributes)) == (
            "attributes.prefill_http_port"
        )


@pytest.mark.parametrize("value", NOT_TEXT, ids=ascii)
def test_a_text_that_is_none_is_named(value: Any) -> None:
    for name in ("rank_ip", "owner", "instance_id"):
        assert refused_field(replace(GOOD, **{name: value})) == name
    for name in ("kv_cache_dtype", "load_balance_method", "kv_layout", "dsv41_spec_layout_json"):
        assert refused_field(replace(GOOD, shape=Shape(**{name: value}))) == f"shape.{name}"
    attributes = Attributes(agent_name=value)
    assert refused_field(replace(GOOD, attributes=attributes)) == "attributes.agent_name"
    attributes = Attributes(extra_json={"engine_key": value})
    assert refused_field(replace(GOOD, attributes=attributes)) == (
        "attributes.extra_json[engine_key]"
    )


@pytest.mark.parametrize("value", [0, 1, "true", "", []], ids=repr)
def test_a_flag_that_is_none_is_named(value: Any) -> None:
    for name in ("enable_dsa_cache_layer_split", "enable_kv_cache_sharding"):
        assert refused_field(replace(GOOD, shape=Shape(**{name: value}))) == f"shape.{name}"


@pytest.mark.parametrize("name", ["key", "shape"])
def test_a_message_without_its_required_parts_is_refused_naming_the_part(name: str) -> None:
    request = convert.registration_to_proto(GOOD, pb.RegisterRankRequest)
    request.ClearField(name)
    with refused(ErrorCode.INVALID_FIELD) as caught:
        convert.registration_from_proto(request)
    assert caught.value.fields[0].field == name


def test_a_deregistration_without_its_key_is_refused() -> None:
    with refused(ErrorCode.INVALID_FIELD) as caught:
        convert.deregistration_from_proto(pb.DeregisterRankRequest(rank_ip="10.0.0.1"))
    assert caught.value.fields[0].field == "key"
