from __future__ import annotations

import json
from typing import Any

import pytest

from bootstrap_grpc.compat.dialects.dialect import MissingParameters, TopologyOptions
from bootstrap_grpc.compat.dialects.table import DIALECTS, dialect_of_query, dialect_of_registration
from bootstrap_grpc.protos.errors import BootstrapError, ErrorCode
from bootstrap_grpc.protos.model import (
    Attributes,
    RankKey,
    Registration,
    Route,
    Shape,
    Topology,
    TopologyState,
)
from support.http_shim import payload

E = DIALECTS[0]
SEVEN = {
    "attn_tp_size": 1,
    "attn_cp_size": 1,
    "dp_size": 1,
    "pp_size": 1,
    "page_size": None,
    "kv_cache_dtype": None,
    "follow_bootstrap_room": True,
}


def parse(**changes: Any) -> Registration:
    return E.parse_registration(payload(**changes))


def render(shape: Shape, *attributes: Attributes, **options: Any) -> dict[str, Any]:
    routes = tuple(
        Route(RankKey(tp_rank=tp), "10.0.0.1", 17000, attributes=given)
        for tp, given in enumerate(attributes)
    )
    topology = Topology(TopologyState.READY, 1, 1, (), 0, shape, routes, (), "s", "", 1, 1)
    options = {key: frozenset(value) for key, value in options.items()}
    reply: dict[str, Any] = json.loads(E.render_topology(topology, TopologyOptions(**options)))
    return reply


def query(*ranks: object) -> dict[str, str]:
    names = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
    return dict(zip(names, map(str, ranks), strict=True))


# --- queries -------------------------------------------------------------------------


def test_only_four_times_minus_one_asks_for_the_topology() -> None:
    assert E.parse_query(query(-1, -1, -1, -1)) is None
    assert E.parse_query(query(" -1", "-1", "-01", "-1")) is None
    partial = E.parse_query(query(0, "-1", "+0", "007"))
    assert partial is not None
    assert partial.key == RankKey(0, -1, 0, 7)
    assert partial.not_found == (
        "Bootstrap info not found for dp_rank=0 cp_rank=-1 tp_rank=+0 pp_rank=007"
    )


@pytest.mark.parametrize("broken", [{"target_pp_rank": ""}, {"prefill_dp_rank": ""}])
def test_an_empty_parameter_is_missing(broken: dict[str, str]) -> None:
    with pytest.raises(MissingParameters, match=r"^Missing inputs for bootstrap server\.$"):
        E.parse_query(query(0, 0, 0, 0) | broken)


def test_a_parameter_that_is_no_integer_is_named() -> None:
    for bad in ("x", "1.5", "0x1", "9" * 5000):
        with pytest.raises(BootstrapError, match="target_tp_rank is "):
            E.parse_query(query(0, 0, bad, 0))


def test_the_names_of_the_parameters_choose_the_dialect() -> None:
    assert dialect_of_query(query(0, 0, 0, 0)).name == "E"
    assert dialect_of_query([*query(0, 0, 0, 0), "more"]).name == "E"
    assert dialect_of_query(["unknown"]).name == "E"
    assert dialect_of_registration(payload()).name == "E"
    assert dialect_of_registration([]) is DIALECTS[0]


# --- registrations -------------------------------------------------------------------


def test_a_registration_of_the_newest_release() -> None:
    assert parse() == Registration(
        RankKey(0, 0, 0, 0),
        "10.0.0.1",
        17000,
        Shape(
            page_size=64,
            kv_cache_dtype="auto",
            load_balance_method="follow_bootstrap_room",
            decode_allocation_policy="early",
            enable_dsa_cache_layer_split=False,
            enable_kv_cache_sharding=False,
        ),
        Attributes(prefill_http_port=30000),
    )


def test_a_registration_of_the_oldest_release_lacks_all_optional_keys() -> None:
    optional = [*E.optional_keys, "load_balance_method"]
    registration = parse(**dict.fromkeys(optional, ...))
    assert registration.shape == Shape(page_size=64, kv_cache_dtype="auto")
    assert registration.attributes == Attributes()


def test_which_dp_group_counts() -> None:
    """With DP attention system_dp_size is 1, and system_dp_rank is not below it."""
    attention = parse(attn_dp_size=4, attn_dp_rank=2, system_dp_size=1, system_dp_rank=2)
    assert (attention.shape.dp_size, attention.key.dp_rank) == (4, 2)
    system = parse(attn_dp_size=1, attn_dp_rank=0, system_dp_size=2, system_dp_rank=1)
    assert (system.shape.dp_size, system.key.dp_rank) == (2, 1)


def test_numbers_may_be_texts_and_optional_values_null() -> None:
    registration = parse(rank_port="17001", page_size=" 32", prefill_http_port=None)
    assert (registration.rank_port, registration.shape.page_size) == (17001, 32)
    assert registration.attributes.prefill_http_port is None
    nulls = parse(kv_cache_dtype=None, page_size=None, decode_allocation_policy=None)
    assert nulls.shape == Shape(
        load_balance_method="follow_bootstrap_room",
        enable_dsa_cache_layer_split=False,
        enable_kv_cache_sharding=False,
    )


def test_unknown_keys_become_attributes() -> None:
    registration = parse(role="Prefill", draft={"b": [1, None], "a": 2**64})
    assert registration.attributes.extra_json == {
        "role": '"Prefill"',
        "draft": '{"a":18446744073709551616,"b":[1,null]}',
    }


@pytest.mark.parametrize(
    "name",
    [
        f"{g}_{k}"
        for g in ("attn_tp", "attn_cp", "attn_dp", "pp", "system_dp")
        for k in ("size", "rank")
    ]
    + ["rank_ip", "rank_port", "page_size", "kv_cache_dtype"],
)
def test_a_missing_required_key_is_named(name: str) -> None:
    with pytest.raises(BootstrapError, match=f"^{name} is missing$"):
        parse(**{name: ...})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attn_tp_size", 0),
        ("attn_tp_size", -1),
        ("attn_tp_size", True),
        ("attn_tp_size", 2**64),
        ("attn_tp_rank", 1),
        ("attn_tp_rank", -5),
        ("attn_cp_rank", None),
        ("attn_dp_rank", 1),
        ("pp_size", 1.0),
        ("rank_port", 0),
        ("rank_port", 65_536),
        ("rank_port", 1.9),
        ("rank_port", "x"),
        ("rank_ip", 7),
        ("rank_ip", None),
        ("rank_ip", "\ud800"),
        ("page_size", 0),
        ("page_size", 1e30),
        ("kv_cache_dtype", 5),
        ("load_balance_method", []),
        ("enable_kv_cache_sharding", "false"),
        ("enable_dsa_cache_layer_split", 1),
        ("prefill_http_port", "http"),
        ("prefill_http_port", 0),
        ("dsv41_spec_layout", []),
        ("kv_layout", {}),
        ("newer", float("inf")),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(BootstrapError, match=f"^{name} is ") as caught:
        parse(**{name: value})
    assert caught.value.code is ErrorCode.INVALID_FIELD


# --- replies -------------------------------------------------------------------------


def test_a_topology_of_defaults_has_the_seven_keys_of_every_release() -> None:
    defaults = Shape(
        decode_allocation_policy="early",
        enable_dsa_cache_layer_split=False,
        enable_kv_cache_sharding=False,
    )
    assert render(Shape()) == SEVEN
    assert render(defaults, Attributes()) == SEVEN


def test_optional_keys_are_there_where_they_say_something() -> None:
    shape = Shape(
        load_balance_method="round_robin",
        decode_allocation_policy="late",
        enable_dsa_cache_layer_split=True,
        enable_kv_cache_sharding=True,
        kv_layout="NHD",
        dsv41_spec_layout_json='{"blocks":[1,2]}',
    )
    optional = {
        "decode_allocation_policy": "late",
        "enable_dsa_cache_layer_split": True,
        "enable_kv_cache_sharding": True,
        "kv_layout": "NHD",
        "dsv41_spec_layout": {"blocks": [1, 2]},
        "prefill_http_port": 30000,
    }
    given = Attributes(prefill_http_port=30000)
    seven = SEVEN | {"follow_bootstrap_room": False}
    assert render(shape, given) == seven | optional
    assert render(shape, given, omit=optional) == seven
    without = {key: value for key, value in optional.items() if key != "kv_layout"}
    assert render(shape, given, omit=["kv_layout"]) == seven | without


def test_the_http_port_is_that_of_the_lowest_rank_which_gave_one() -> None:
    ranks = [Attributes(), Attributes(prefill_http_port=2), Attributes(prefill_http_port=1)]
    assert render(Shape(), *ranks)["prefill_http_port"] == 2


def test_an_unknown_key_is_passed_on_where_asked_for_and_agreed() -> None:
    one, same, other = (
        Attributes(extra_json={"draft": text}) for text in ('{"a":1,"b":2}', '{"b":2, "a":1}', "3")
    )
    assert "draft" not in render(Shape(), one, one)
    assert render(Shape(), one, same, pass_keys=["draft"])["draft"] == {"a": 1, "b": 2}
    assert "draft" not in render(Shape(), one, other, pass_keys=["draft"])
    assert "draft" not in render(Shape(), one, Attributes(), pass_keys=["draft"])
    assert "draft" not in render(Shape(), pass_keys=["draft"])


def test_a_layout_nested_to_the_limit_does_not_poison_the_topology() -> None:
    deep = "[" * 900 + "]" * 900
    E.render_topology(
        Topology(
            TopologyState.READY,
            *(1, 1, (), 0, Shape(dsv41_spec_layout_json=deep)),
            (Route(RankKey(), "10.0.0.1", 1, attributes=Attributes(extra_json={"k": deep})),),
            *((), "s", "", 1, 1),
        ),
        TopologyOptions(pass_keys=frozenset(["k"])),
    )
