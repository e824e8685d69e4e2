"""Dialect C: Mooncake and Ascend 0.5.1 and 0.5.2, every backend 0.5.3 to 0.5.7.

Its queries cannot be told from those of D, so one reply serves both: clients of C ignore the
page size that those of D read.
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
from bootstrap_grpc.protos.model import (
    MAX_RANKS,
    Attributes,
    RankKey,
    Registration,
    Shape,
    Topology,
)

__all__ = ["DIALECT", "KNOWN_KEYS", "UNSAID_SIZES", "parse_query", "parse_rank", "render_topology"]

_QUERY_NAMES = ("engine_rank", "target_dp_group", "target_pp_rank")
_GROUPS = ("attn_tp", "attn_dp", "pp", "system_dp")
"""Each group of ranks has the keys ``<group>_size`` and ``<group>_rank``."""

KNOWN_KEYS = frozenset(
    [f"{group}_{key}" for group in _GROUPS for key in ("size", "rank")]
    + ["role", "rank_ip", "rank_port"]
)
UNSAID_SIZES = frozenset(["attn_cp_size"])


def parse_query(query: Mapping[str, str]) -> RankQuery | None:
    """``engine_rank`` is the attention-TP rank."""
    ranks = query_ranks(query, _QUERY_NAMES)
    if all(rank == ALL_RANKS for rank in ranks):
        return None
    engine_rank, dp_group, pp_rank = ranks
    return RankQuery(
        RankKey(dp_rank=dp_group, tp_rank=engine_rank, pp_rank=pp_rank),
        f"Bootstrap info not found for engine_rank={engine_rank} target_dp_group={dp_group} "
        f"target_pp_rank={pp_rank}",
    )


def parse_rank(
    data: JsonObject, page_size: int | None = None, known: frozenset[str] = KNOWN_KEYS
) -> Registration | None:
    """The registration of C, to which D adds the page size."""
    role = required(data, "role")
    sizes = {group: size(data, f"{group}_size") for group in _GROUPS}
    # As in E: of the two DP groups only the one in use has a rank below its size.
    dp, unused = ("attn_dp", "system_dp") if sizes["system_dp"] == 1 else ("system_dp", "attn_dp")
    integer(f"{unused}_rank", required(data, f"{unused}_rank"), 0, MAX_RANKS)
    dp_rank, tp_rank, pp_rank = (
        integer(f"{group}_rank", required(data, f"{group}_rank"), 0, sizes[group] - 1)
        for group in (dp, "attn_tp", "pp")
    )
    rank_ip, rank_port = address(data)
    registration = Registration(
        key=RankKey(dp_rank=dp_rank, tp_rank=tp_rank, pp_rank=pp_rank),
        rank_ip=rank_ip,
        rank_port=rank_port,
        shape=Shape(
            attn_tp_size=sizes["attn_tp"],
            dp_size=sizes[dp],
            pp_size=sizes["pp"],
            page_size=page_size,
        ),
        attributes=Attributes(extra_json=extra_attributes(data, known)),
    )
    return registration if role == ROLE else None


def render_topology(topology: Topology, _: TopologyOptions) -> bytes:
    """The reply for C and D. A page size that nobody gave is null, which D cannot read."""
    shape = topology.shape or Shape()
    return json.dumps(
        {
            "prefill_attn_tp_size": shape.attn_tp_size,
            "prefill_dp_size": shape.dp_size,
            "prefill_pp_size": shape.pp_size,
            "prefill_page_size": shape.page_size,
        }
    ).encode()


DIALECT = Dialect(
    name="C",
    query_names=frozenset(["target_pp_rank"]),
    registration_names=frozenset(KNOWN_KEYS - {"role", "rank_ip", "rank_port"}),
    known_keys=KNOWN_KEYS,
    unsaid_sizes=UNSAID_SIZES,
    parse_query=parse_query,
    parse_registration=parse_rank,
    render_topology=render_topology,
    render_route=render_route,
    not_ready=not_ready,
)
"""The row of the table."""
