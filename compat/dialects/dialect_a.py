"""Dialect A: SGLang 0.4.5.post1 to 0.4.5.post3, and NIXL up to 0.4.6.post5.

A rank has one number, ``engine_rank``, and no registration says how many there are
(``compat.gathering`` finds out). NIXL's have an ``agent_name``, and since 0.4.6.post3 its decodes
ask with no parameters for the whole table, whose length they take for the TP size. Any answer but
200 kills the scheduler of the decode that asked, so its requests wait.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bootstrap_grpc.compat.dialects.dialect import Dialect, Intake, RankQuery, TopologyOptions
from bootstrap_grpc.compat.dialects.reading import (
    ROLE,
    address,
    extra_attributes,
    not_ready,
    query_ranks,
)
from bootstrap_grpc.compat.fields import JsonObject, integer, optional, required, text
from bootstrap_grpc.protos.model import (
    MAX_RANKS,
    Attributes,
    RankKey,
    Registration,
    Route,
    Shape,
    Topology,
)

__all__ = ["DIALECT"]

_KNOWN_KEYS = frozenset(["role", "rank_ip", "rank_port", "engine_rank", "agent_name"])


def _parse_query(query: Mapping[str, str]) -> RankQuery | None:
    if not query.get("engine_rank"):
        return None
    (engine_rank,) = query_ranks(query, ["engine_rank"])
    return RankQuery(RankKey(tp_rank=engine_rank), "Not Found")


def _parse_registration(data: JsonObject) -> Registration | None:
    role = required(data, "role")
    engine_rank = integer("engine_rank", required(data, "engine_rank"), 0, MAX_RANKS - 1)
    rank_ip, rank_port = address(data)
    agent_name = optional(data, "agent_name")
    registration = Registration(
        key=RankKey(tp_rank=engine_rank),
        rank_ip=rank_ip,
        rank_port=rank_port,
        shape=Shape(attn_tp_size=engine_rank + 1),  # the least that it can be
        attributes=Attributes(
            agent_name=None if agent_name is None else text("agent_name", agent_name),
            extra_json=extra_attributes(data, _KNOWN_KEYS),
        ),
    )
    return registration if role == ROLE else None


def _locate(asked: RankKey, shape: Shape) -> RankKey:
    """The ranks of all DP groups are numbered through."""
    dp_rank, tp_rank = divmod(asked.tp_rank, shape.attn_tp_size)
    return RankKey(dp_rank=dp_rank, tp_rank=tp_rank)


def _entry(route: Route) -> dict[str, Any]:
    entry: dict[str, Any] = {"rank_ip": route.rank_ip, "rank_port": route.rank_port}
    if route.attributes.agent_name is not None:
        entry["agent_name"] = route.attributes.agent_name
    return entry


def _render_topology(topology: Topology, _: TopologyOptions) -> bytes:
    # Routes are in key order, which is that of the numbers.
    return json.dumps({str(i): _entry(route) for i, route in enumerate(topology.routes)}).encode()


def _render_route(route: Route) -> bytes:
    return json.dumps(_entry(route)).encode()


DIALECT = Dialect(
    name="A",
    query_names=frozenset(["engine_rank"]),
    registration_names=frozenset(["engine_rank"]),
    known_keys=_KNOWN_KEYS,
    unsaid_sizes=frozenset(["attn_cp_size", "pp_size"]),
    waits=True,
    intake=Intake.GATHERED,
    parse_query=_parse_query,
    parse_registration=_parse_registration,
    locate=_locate,
    render_topology=_render_topology,
    render_route=_render_route,
    not_ready=not_ready,
)
"""The row of the table."""
