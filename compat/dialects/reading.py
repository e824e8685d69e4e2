"""What several dialects read and answer alike."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from bootstrap_grpc.compat.dialects.dialect import MissingParameters
from bootstrap_grpc.compat.fields import JsonObject, integer, json_text, required, text
from bootstrap_grpc.protos.errors import BootstrapError
from bootstrap_grpc.protos.model import MAX_RANKS, Route

__all__ = [
    "ALL_RANKS",
    "ROLE",
    "address",
    "extra_attributes",
    "not_ready",
    "query_ranks",
    "render_route",
    "size",
]

ALL_RANKS = -1
"""The value of all parameters that asks for the topology."""

ROLE = "Prefill"
"""The role whose registrations are kept. SGLang answers any other with 200 and keeps nothing."""

_MOST_DIGITS = 64


def query_ranks(query: Mapping[str, str], names: Collection[str]) -> list[int]:
    """The parameters ``names`` as integers. Raises ``MissingParameters``, also for empty ones."""
    if not all(query.get(name) for name in names):
        raise MissingParameters("Missing inputs for bootstrap server.")
    return [_rank(name, query[name]) for name in names]


def _rank(name: str, value: str) -> int:
    # No range: a rank that no shape has is not found, as in SGLang.
    try:
        if len(value) <= _MOST_DIGITS:
            return int(value)
    except ValueError:
        pass
    raise BootstrapError.invalid(name, value, "an integer")


def size(data: JsonObject, name: str) -> int:
    """A required size."""
    return integer(name, required(data, name), 1, MAX_RANKS)


def address(data: JsonObject) -> tuple[str, int]:
    """Where the rank says it is."""
    return (
        text("rank_ip", required(data, "rank_ip")),
        integer("rank_port", required(data, "rank_port"), 1, 65_535),
    )


def extra_attributes(data: JsonObject, known: Collection[str]) -> dict[str, str]:
    """The keys that the dialect does not know, with their JSON texts."""
    return {
        text("a key of the body", key): json_text(key, value)
        for key, value in data.items()
        if key not in known
    }


def render_route(route: Route) -> bytes:
    """The reply of every dialect for one rank."""
    return json.dumps({"rank_ip": route.rank_ip, "rank_port": route.rank_port}).encode()


def not_ready(registered: int) -> str:
    """The text of SGLang's newest releases; the older ones have none."""
    return f"Prefill server not fully registered yet ({registered} workers registered)."
