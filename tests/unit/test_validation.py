"""What a registration must satisfy by itself, before any rule looks at it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos.convert import registration_to_proto
from bootstrap_grpc.protos.errors import BootstrapError, ErrorCode
from bootstrap_grpc.protos.model import Attributes, RankKey, Registration, Shape
from bootstrap_grpc.server.validation import (
    MAX_ATTRIBUTE_TEXT,
    MAX_ATTRIBUTES,
    MAX_TEXT,
    check_key,
    check_registration,
    check_room_batch,
    check_shape,
)
from support.registrations import REMOTE, TP2, rank, refused

GOOD = rank(0, 17001, owner="A")
SIZES = ("attn_tp_size", "attn_cp_size", "dp_size", "pp_size")
TEXTS = ("kv_cache_dtype", "load_balance_method", "decode_allocation_policy", "kv_layout")
LONE_SURROGATE = "\ud800"  # what json.loads makes of "\\ud800"


def invalid_field(registration: Registration) -> str:
    with refused(ErrorCode.INVALID_FIELD) as caught:
        check_registration(registration, REMOTE)
    (only,) = caught.value.fields
    assert only.field in str(caught.value)
    assert len(str(caught.value)) < 1_000
    return only.field


def with_shape(**values: object) -> Registration:
    return replace(GOOD, shape=replace(TP2, **values))


def with_attributes(**values: object) -> Registration:
    return replace(GOOD, attributes=Attributes(**values))


def test_a_good_registration_passes() -> None:
    check_registration(GOOD, REMOTE)
    check_registration(
        with_attributes(prefill_http_port=30000, agent_name="", extra_json={"": "null"}), REMOTE
    )


@pytest.mark.parametrize("port", [-1, 0, 65_536, 2**32])
def test_ports_run_from_1_to_65535(port: int) -> None:
    assert invalid_field(replace(GOOD, rank_port=port)) == "rank_port"
    assert invalid_field(with_attributes(prefill_http_port=port)) == "attributes.prefill_http_port"
    for good in (1, 65_535):
        check_registration(replace(GOOD, rank_port=good), REMOTE)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("size", [-1, 0, 65_537, 2**32 - 1])
def test_sizes_run_from_1_to_65536(name: str, size: int) -> None:
    assert invalid_field(with_shape(**{name: size})) == f"shape.{name}"


def test_the_product_of_the_sizes_is_bounded() -> None:
    check_shape(Shape(attn_tp_size=256, dp_size=256))
    with refused(ErrorCode.INVALID_FIELD) as caught:
        check_shape(Shape(attn_tp_size=256, dp_size=256, pp_size=2))
    assert "131072" in str(caught.value)


@pytest.mark.parametrize("page_size", [-1, 0, 2**31 + 1])
def test_page_sizes_are_positive(page_size: int) -> None:
    assert invalid_field(with_shape(page_size=page_size)) == "shape.page_size"


@pytest.mark.parametrize("name", ["dp_rank", "cp_rank", "tp_rank", "pp_rank"])
def test_each_rank_is_below_its_size(name: str) -> None:
    shape = Shape(attn_tp_size=3, attn_cp_size=3, dp_size=3, pp_size=3)
    for value in (0, 2):
        check_key(RankKey(**{name: value}), shape)
    for value in (-1, 3):
        with refused(ErrorCode.INVALID_FIELD) as caught:
            check_key(RankKey(**{name: value}), shape)
        assert caught.value.fields[0].field == f"key.{name}"
        assert "from 0 to 2" in str(caught.value)


@pytest.mark.parametrize("name", ["owner", "instance_id"])
def test_texts_are_bounded(name: str) -> None:
    check_registration(replace(GOOD, **{name: "x" * MAX_TEXT}), REMOTE)
    assert invalid_field(replace(GOOD, **{name: "x" * (MAX_TEXT + 1)})) == name


@pytest.mark.parametrize("name", TEXTS)
def test_texts_of_a_shape_are_bounded(name: str) -> None:
    check_registration(with_shape(**{name: "x" * MAX_TEXT}), REMOTE)
    assert invalid_field(with_shape(**{name: "x" * (MAX_TEXT + 1)})) == f"shape.{name}"


def test_a_layout_is_bounded_json() -> None:
    layout = '"' + "x" * (MAX_ATTRIBUTE_TEXT - 2) + '"'
    check_registration(with_shape(dsv41_spec_layout_json=layout), REMOTE)
    for bad in (f"{layout} ", "", "{", "[" * MAX_ATTRIBUTE_TEXT, "{'a': 1}", "1" * 5_000):
        assert invalid_field(with_shape(dsv41_spec_layout_json=bad)) == (
            "shape.dsv41_spec_layout_json"
        )


def test_attributes_are_bounded() -> None:
    most = {f"key{number}": "0" for number in range(MAX_ATTRIBUTES)}
    check_registration(with_attributes(extra_json=most), REMOTE)
    with refused(ErrorCode.LIMIT_EXCEEDED):
        check_registration(with_attributes(extra_json={**most, "one more": "0"}), REMOTE)
    long = '"' + "x" * MAX_ATTRIBUTE_TEXT + '"'
    assert invalid_field(with_attributes(agent_name="x" * 1_025)) == "attributes.agent_name"
    assert invalid_field(with_attributes(extra_json={"a": long})) == "attributes.extra_json[a]"
    assert invalid_field(with_attributes(extra_json={"a": "a"})) == "attributes.extra_json[a]"
    assert invalid_field(with_attributes(extra_json={"x" * 1_025: "0"})) == (
        "attributes.extra_json key"
    )


@pytest.mark.parametrize(
    "registration",
    [
        replace(GOOD, owner=LONE_SURROGATE),
        replace(GOOD, instance_id=LONE_SURROGATE),
        replace(GOOD, rank_ip=LONE_SURROGATE),
        with_attributes(agent_name=LONE_SURROGATE),
        with_attributes(extra_json={"a": f'"{LONE_SURROGATE}"'}),
        with_attributes(extra_json={LONE_SURROGATE: "0"}),
        with_shape(dsv41_spec_layout_json=f'"{LONE_SURROGATE}"'),
        *(with_shape(**{name: LONE_SURROGATE}) for name in TEXTS),
    ],
)
def test_text_that_no_message_can_carry_is_refused(registration: Registration) -> None:
    """One such PUT over HTTP would make every later GetTopology fail."""
    invalid_field(registration)
    str(refusal(registration)).encode()  # and the refusal itself can be sent


def test_a_batch_of_answers_is_two_arrays_of_one_length() -> None:
    check_room_batch(3, 3)
    for rooms, dp_ranks in ((1, 0), (0, 1), (3, 2)):
        with refused(ErrorCode.INVALID_FIELD) as caught:
            check_room_batch(rooms, dp_ranks)
        assert caught.value.fields[0].field == "dp_ranks"


ANY_INT = st.integers(-2, 5) | st.integers()
ANY_TEXT = st.text(st.characters(), max_size=30)  # with surrogates
ANY_SHAPE = st.builds(
    Shape,
    ANY_INT,
    ANY_INT,
    ANY_INT,
    ANY_INT,
    page_size=st.none() | ANY_INT,
    kv_cache_dtype=st.none() | ANY_TEXT,
    load_balance_method=st.none() | ANY_TEXT,
    dsv41_spec_layout_json=st.none() | ANY_TEXT,
)
LIKELY_SHAPE = st.builds(Shape, *[st.integers(1, 4)] * 4, kv_layout=st.none() | ANY_TEXT)
ANY_REGISTRATION = st.builds(
    Registration,
    st.builds(RankKey, *[st.integers(0, 2) | ANY_INT] * 4),
    st.sampled_from(["10.0.0.1", "node", "::"]) | ANY_TEXT,
    st.integers(1, 65_535) | ANY_INT,
    LIKELY_SHAPE | ANY_SHAPE,
    st.builds(
        Attributes,
        st.none() | ANY_INT,
        st.none() | ANY_TEXT,
        st.dictionaries(ANY_TEXT, st.sampled_from(["0", "null", '""']) | ANY_TEXT, max_size=3),
    ),
    ANY_TEXT,
    ANY_TEXT,
)


def refusal(registration: Registration) -> BootstrapError | None:
    try:
        check_registration(registration, REMOTE)
    except BootstrapError as error:
        return error
    return None


@settings(deadline=None, max_examples=150)
@given(ANY_REGISTRATION)
def test_what_passes_can_be_sent_and_what_does_not_is_named(registration: Registration) -> None:
    error = refusal(registration)
    if error is None:
        registration_to_proto(registration, pb.RegisterRankRequest).SerializeToString()
    else:
        assert error.code is ErrorCode.INVALID_FIELD
        assert error.fields[0].field
        str(error).encode()
