from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from bootstrap_grpc.compat.dialects.dialect import Dialect, MissingParameters, TopologyOptions
from bootstrap_grpc.compat.dialects.table import DIALECTS, dialect_of_query, dialect_of_registration
from bootstrap_grpc.protos.errors import BootstrapError
from bootstrap_grpc.protos.model import (
    Attributes,
    RankKey,
    Registration,
    Route,
    Shape,
    Topology,
    TopologyState,
)
from support.dialects import payload_a, payload_b, payload_c, payload_d
from support.http_shim import payload

BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
PAYLOADS: dict[str, Callable[..., dict[str, Any]]] = {
    "A": payload_a,
    "B": payload_b,
    "C": payload_c,
    "D": payload_d,
    "E": payload,
}


def parse(name: str, *rank: int, **changes: Any) -> Registration:
    registration = BY_NAME[name].parse_registration(PAYLOADS[name](*rank, **changes))
    assert registration is not None
    return registration


def topology(shape: Shape, *attributes: Attributes) -> Topology:
    routes = tuple(
        Route(key, "10.0.0.1", 17000 + i, attributes=given)
        for i, (key, given) in enumerate(zip(shape.keys(), attributes, strict=False))
    )
    return Topology(TopologyState.READY, 1, 1, (), 0, shape, routes, (), "s", "", 1, 1)


def render(dialect: Dialect, shape: Shape, *attributes: Attributes) -> Any:
    return json.loads(dialect.render_topology(topology(shape, *attributes), TopologyOptions()))


# --- the table -----------------------------------------------------------------------


def test_newest_first() -> None:
    assert [dialect.name for dialect in DIALECTS] == ["E", "D", "C", "B", "A"]


@pytest.mark.parametrize(
    ("names", "dialect"),
    [
        ([], "A"),
        (["engine_rank"], "A"),
        (["engine_rank", "unknown"], "A"),
        (["engine_rank", "target_dp_group"], "B"),
        (["target_dp_group"], "B"),
        (["engine_rank", "target_dp_group", "target_pp_rank"], "C"),
        (["target_pp_rank"], "C"),
        (["prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank"], "E"),
        (["target_tp_rank", "engine_rank"], "E"),
        (["unknown"], "E"),
    ],
)
def test_the_parameters_of_a_query_choose_the_dialect(names: list[str], dialect: str) -> None:
    asked = dialect_of_query(names)
    assert asked.name == dialect or (asked.name, dialect) == ("D", "C"), "C and D ask the same"
    assert asked.parse_query is BY_NAME[dialect].parse_query


@pytest.mark.parametrize("name", BY_NAME)
def test_the_keys_of_a_registration_choose_the_dialect(name: str) -> None:
    assert dialect_of_registration(PAYLOADS[name]()).name == name
    assert dialect_of_registration([*PAYLOADS[name](), "unknown"]).name == name


@pytest.mark.parametrize("name", "ABCD")
def test_the_known_keys_are_those_of_the_releases(name: str) -> None:
    assert set(PAYLOADS[name]()) == BY_NAME[name].known_keys - {"agent_name"}


# --- registrations -------------------------------------------------------------------


def test_a_declares_the_least_size_that_it_can_have() -> None:
    assert parse("A", 3, agent_name="u") == Registration(
        RankKey(tp_rank=3),
        "10.0.0.1",
        17003,
        Shape(attn_tp_size=4),
        Attributes(agent_name="u"),
    )


@pytest.mark.parametrize(
    ("engine_rank", "tp_size", "dp_size", "key"),
    [
        (0, 1, 1, RankKey()),
        (3, 4, 1, RankKey(tp_rank=3)),
        (3, 4, 2, RankKey(dp_rank=1, tp_rank=1)),
        (5, 8, 8, RankKey(dp_rank=5)),
    ],
)
def test_b_numbers_the_ranks_of_all_dp_groups(
    engine_rank: int, tp_size: int, dp_size: int, key: RankKey
) -> None:
    registration = parse("B", engine_rank, tp_size=tp_size, dp_size=dp_size)
    assert registration.key == key
    assert registration.shape == Shape(attn_tp_size=tp_size // dp_size, dp_size=dp_size)


def test_c_has_no_page_size_and_d_has() -> None:
    sizes = {"attn_tp_size": 2, "pp_size": 3, "pp_rank": 2}
    shape = Shape(attn_tp_size=2, pp_size=3)
    assert parse("C", 1, **sizes).key == RankKey(tp_rank=1, pp_rank=2)
    assert parse("C", 1, **sizes).shape == shape
    assert parse("D", 1, **sizes).shape == Shape(attn_tp_size=2, pp_size=3, page_size=64)


def test_which_dp_group_counts_in_c() -> None:
    attention = parse("C", attn_dp_size=4, attn_dp_rank=2, system_dp_rank=2)
    assert (attention.shape.dp_size, attention.key.dp_rank) == (4, 2)
    system = parse("C", system_dp_size=2, system_dp_rank=1)
    assert (system.shape.dp_size, system.key.dp_rank) == (2, 1)


@pytest.mark.parametrize("name", "ABCD")
def test_unknown_keys_become_attributes(name: str) -> None:
    assert parse(name, more={"a": 1}).attributes.extra_json == {"more": '{"a":1}'}


@pytest.mark.parametrize("name", "ABCD")
@pytest.mark.parametrize("role", ["Decode", "prefill", "", None, 7, ["Prefill"]])
def test_any_other_role_is_read_but_not_kept(name: str, role: object) -> None:
    assert BY_NAME[name].parse_registration(PAYLOADS[name](role=role)) is None
    with pytest.raises(BootstrapError, match="rank_port"):
        BY_NAME[name].parse_registration(PAYLOADS[name](role=role, rank_port="x"))


@pytest.mark.parametrize("name", "ABCD")
def test_every_key_is_required(name: str) -> None:
    for key in PAYLOADS[name]():
        with pytest.raises(BootstrapError, match=f"^{key} is missing$"):
            parse(name, **{key: ...})


@pytest.mark.parametrize("name", "ABCD")
@pytest.mark.parametrize("value", [-1, 1.5, True, None, [], "x", 2**70])
def test_a_bad_number_is_named(name: str, value: object) -> None:
    numbers = set(PAYLOADS[name]()) - {"role", "rank_ip"}
    for key in sorted(numbers):
        with pytest.raises(BootstrapError, match=f"^{key} is "):
            parse(name, **{key: value})


# --- queries -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("A", {}),
        ("A", {"engine_rank": ""}),
        ("B", {"engine_rank": "-1", "target_dp_group": " -1"}),
        ("C", {"engine_rank": "-1", "target_dp_group": "-1", "target_pp_rank": "-1"}),
    ],
)
def test_what_asks_for_the_topology(name: str, query: dict[str, str]) -> None:
    assert BY_NAME[name].parse_query(query) is None


@pytest.mark.parametrize("name", "BC")
def test_an_empty_or_missing_parameter(name: str) -> None:
    query = {"engine_rank": "0", "target_dp_group": "0", "target_pp_rank": "0"}
    for change in ({"engine_rank": ""}, {"target_dp_group": ""}):
        with pytest.raises(MissingParameters):
            BY_NAME[name].parse_query(query | change)
    with pytest.raises(MissingParameters):
        BY_NAME[name].parse_query({})


@pytest.mark.parametrize(
    ("name", "asked", "found"),
    [
        ("A", RankKey(tp_rank=3), RankKey(dp_rank=1, tp_rank=1)),
        ("A", RankKey(tp_rank=-1), RankKey(dp_rank=-1, tp_rank=1)),
        ("B", RankKey(dp_rank=1, tp_rank=3), RankKey(dp_rank=1, tp_rank=1)),
        ("B", RankKey(dp_rank=1, tp_rank=1), RankKey(dp_rank=1, tp_rank=1)),
        ("B", RankKey(dp_rank=1, tp_rank=-1), RankKey(dp_rank=1, tp_rank=-1)),
        ("C", RankKey(dp_rank=1, tp_rank=3), RankKey(dp_rank=1, tp_rank=3)),
    ],
)
def test_where_a_rank_is_in_a_group_of_two(name: str, asked: RankKey, found: RankKey) -> None:
    assert BY_NAME[name].locate(asked, Shape(attn_tp_size=2, dp_size=2)) == found


# --- replies -------------------------------------------------------------------------


def test_the_table_of_a_numbers_the_ranks_through() -> None:
    named, unnamed = Attributes(agent_name="u"), Attributes()
    table = render(BY_NAME["A"], Shape(attn_tp_size=2, dp_size=2), named, *[unnamed] * 3)
    assert list(table) == ["0", "1", "2", "3"]
    assert table["0"] == {"rank_ip": "10.0.0.1", "rank_port": 17000, "agent_name": "u"}
    assert table["3"] == {"rank_ip": "10.0.0.1", "rank_port": 17003}


def test_the_topology_of_b_and_c() -> None:
    shape = Shape(attn_tp_size=2, dp_size=4, pp_size=3, page_size=16)
    assert render(BY_NAME["B"], shape) == {
        "prefill_tp_size": 8,
        "prefill_dp_size": 4,
        "tp_size_per_dp_rank": 2,
    }
    assert render(BY_NAME["C"], shape) == {
        "prefill_attn_tp_size": 2,
        "prefill_dp_size": 4,
        "prefill_pp_size": 3,
        "prefill_page_size": 16,
    }


def test_who_waits() -> None:
    assert [dialect.name for dialect in DIALECTS if dialect.waits] == ["B", "A"]
