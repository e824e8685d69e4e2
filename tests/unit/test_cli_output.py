"""What commands print."""

from __future__ import annotations

import json

import pytest

from bootstrap_grpc.cli.output import facts, host_port, printable, topology_json, utc
from bootstrap_grpc.cli.status import missing_lines, summary
from bootstrap_grpc.protos.errors import ErrorCode
from bootstrap_grpc.protos.model import (
    Attributes,
    RefusedRank,
    Route,
    Shape,
    Topology,
    TopologyState,
)


def topology(state: TopologyState = TopologyState.PARTIAL, *, missing: int = 1) -> Topology:
    shape = Shape(attn_tp_size=128)
    keys = list(shape.keys())
    return Topology(
        state=state,
        registered=128 - missing,
        expected=128,
        missing=tuple(keys[:missing][:64]),
        missing_total=missing,
        shape=shape,
        routes=(Route(keys[127], "192.0.2.1", 17_001, 1, True, Attributes(extra_json={"k": "1"})),),
        refused=(RefusedRank(keys[0], "::", 1, ErrorCode.INVALID_FIELD, "a wildcard", 5),),
        server_id="s",
        instance_id="",
        generation=1,
        version=7,
    )


def test_control_characters_of_a_peer_do_not_reach_the_terminal() -> None:
    assert printable("a\x1b[2J\r\nb\u202e é ●") == "a\\x1b[2J\\r\\nb\\u202e é ●"
    assert facts([("id", "\x1b]0;x\x07"), ("longer", 1)]) == "id      \\x1b]0;x\\x07\nlonger  1"


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("192.0.2.1", "192.0.2.1:5"),
        ("2001:db8::1", "[2001:db8::1]:5"),
        ("[2001:db8::1]", "[2001:db8::1]:5"),
        ("", ":5"),
    ],
)
def test_host_port(host: str, text: str) -> None:
    assert host_port(host, 5) == text


def test_a_moment_is_iso_8601_whatever_the_peer_sent() -> None:
    assert utc(1_796_098_022_155) == "2026-12-01T04:07:02Z"
    assert utc(2**63 - 1) == "9223372036854775807 ms"


def test_the_json_of_a_topology_has_the_fields_of_the_contract() -> None:
    document = json.loads(json.dumps(topology_json(topology())))
    assert set(document) == set(Topology.__dataclass_fields__)
    assert document["state"] == "PARTIAL"
    assert document["missing"] == [{"dp_rank": 0, "cp_rank": 0, "tp_rank": 0, "pp_rank": 0}]
    assert document["routes"][0]["attributes"]["extra_json"] == {"k": "1"}
    assert document["refused"][0]["code"] == "INVALID_FIELD"


def test_missing_ranks_are_named_as_far_as_they_are_known() -> None:
    assert list(missing_lines(topology(missing=0))) == []
    assert list(missing_lines(topology())) == ["Missing (1):", "  dp0 cp0 tp0 pp0"]
    lines = list(missing_lines(topology(missing=100)))
    assert lines[0] == "Missing (100):"
    assert lines[-1] == "  and 36 more"
    assert sum(line.count("dp0") for line in lines) == 64


def test_the_summary_says_how_far_it_is() -> None:
    assert summary(topology()) == "PARTIAL: 127 of 128 ranks registered"
    assert summary(topology(TopologyState.EMPTY)) == "EMPTY: no rank is registered"
