"""Dialect B: Mooncake 0.4.6 to 0.4.10.post2, Ascend to 0.4.10.post2, NIXL 0.4.7 to 0.5.2.

A registration numbers the ranks of all DP groups through. A query names the DP group and either
the rank in it (B2, B3) or the rank of them all (B1): its remainder is right for both. One topology
reply has the keys of B1 and of B2 and B3, whose clients read theirs and ignore the others. Any
answer but 200 kills the scheduler of a decode of B1 or B2, and B3 asks as they do: all wait.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from bootstrap_grpc.compat.dialects.dialect import Dialect, RankQuery, TopologyOptions
from bootstrap_grpc.compat.dialects.reading import (
    ALL_RANKS,
    ROLE,
    address,
    extra_attributes,
    not_ready,
    query_ranks,
    render_route,
    size,
)
from bootstrap_grpc.compat.fields import JsonObject, integer, required
from bootstrap_grpc.protos.errors import BootstrapError
from bootstrap_grpc.protos.model import Attributes, RankKey, Registration, Shape, Topology

__all__ = ["DIALECT"]

_QUERY_NAMES = ("engine_rank", "target_dp_group")
_KNOWN_KEYS = frozenset(["role", "tp_size", "dp_size", "rank_ip", "rank_port", "engine_rank"])


def _parse_query(query: Mapping[str, str]) -> RankQuery | None:
    engine_rank, dp_group = query_ranks(query, _QUERY_NAMES)
    if engine_rank == dp_group == ALL_RANKS:
        return None
    return RankQuery(
        RankKey(dp_rank=dp_group, tp_rank=engine_rank),
        f"Bootstrap info not found for engine_rank={engine_rank} target_dp_group={dp_group}",
    )


def _parse_registration(data: JsonObject) -> Registration | None:
    role = required(data, "role")
    tp_size, dp_size = size(data, "tp_size"), size(data, "dp_size")
    if tp_size % dp_size:
        raise BootstrapError.invalid(
            "dp_size", dp_size, f"a divisor of tp_size, which is {tp_size}"
        )
    engine_rank = integer("engine_rank", required(data, "engine_rank"), 0, tp_size - 1)
    dp_rank, tp_rank = divmod(engine_rank, tp_size // dp_size)
    rank_ip, rank_port = address(data)
    registration = Registration(
        key=RankKey(dp_rank=dp_rank, tp_rank=tp_rank),
        rank_ip=rank_ip,
        rank_port=rank_port,
        shape=Shape(attn_tp_size=tp_size // dp_size, dp_size=dp_size),
        attributes=Attributes(extra_json=extra_attributes(data, _KNOWN_KEYS)),
    )
    return registration if role == ROLE else None


def _locate(asked: RankKey, shape: Shape) -> RankKey:
    # The remainder of a negative rank would be a rank.
    tp_rank = asked.tp_rank if asked.tp_rank < 0 else asked.tp_rank % shape.attn_tp_size
    return RankKey(dp_rank=asked.dp_rank, tp_rank=tp_rank)


def _render_topology(topology: Topology, _: TopologyOptions) -> bytes:
    shape = topology.shape or Shape()
    return json.dumps(
        {
            "prefill_tp_size": shape.attn_tp_size * shape.dp_size,
            "prefill_dp_size": shape.dp_size,
            "tp_size_per_dp_rank": shape.attn_tp_size,
        }
    ).encode()


DIALECT = Dialect(
    name="B",
    query_names=frozenset(["target_dp_group"]),
    registration_names=frozenset(["tp_size", "dp_size"]),
    known_keys=_KNOWN_KEYS,
    unsaid_sizes=frozenset(["attn_cp_size", "pp_size"]),
    waits=True,
    parse_query=_parse_query,
    parse_registration=_parse_registration,
    locate=_locate,
    render_topology=_render_topology,
    render_route=render_route,
    not_ready=not_ready,
)
"""The row of the table."""
