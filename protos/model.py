"""The words of the contract as values: what the registry, the clients and the shim exchange.

Plain frozen dataclasses with no transport in them. ``bootstrap_grpc.protos.convert`` turns them
into messages and back; the meaning of each field stands in ``bootstrap.proto``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from itertools import product

from bootstrap_grpc.protos.errors import ErrorCode

__all__ = [
    "MAX_DP_RANK",
    "MAX_MESSAGE_ROOMS",
    "MAX_RANKS",
    "MAX_ROOM",
    "Attributes",
    "Deregistration",
    "RankKey",
    "RefusedRank",
    "Registered",
    "Registration",
    "Route",
    "Shape",
    "Topology",
    "TopologyState",
    "is_utf8",
]

MAX_ROOM = 2**64 - 1
"""Largest room: rooms travel as fixed64."""

MAX_RANKS = 65_536
"""Most ranks that one prefill server may declare, and the bound of each of its sizes."""

MAX_DP_RANK = MAX_RANKS - 1
"""Largest DP rank that a room may be registered with."""

MAX_MESSAGE_ROOMS = 65_536
"""Most rooms in one message."""


@dataclass(frozen=True, slots=True, order=True)
class RankKey:
    """Names one rank of the prefill server. Sorts in the order of its fields."""

    dp_rank: int = 0
    cp_rank: int = 0
    tp_rank: int = 0
    pp_rank: int = 0

    def __str__(self) -> str:
        return f"dp{self.dp_rank} cp{self.cp_rank} tp{self.tp_rank} pp{self.pp_rank}"


@dataclass(frozen=True, slots=True)
class Shape:
    """What all ranks of one prefill server must agree on. ``None`` agrees with anything."""

    attn_tp_size: int = 1
    attn_cp_size: int = 1
    dp_size: int = 1
    pp_size: int = 1
    page_size: int | None = None
    kv_cache_dtype: str | None = None
    load_balance_method: str | None = None
    decode_allocation_policy: str | None = None
    enable_dsa_cache_layer_split: bool | None = None
    enable_kv_cache_sharding: bool | None = None
    kv_layout: str | None = None
    dsv41_spec_layout_json: str | None = None

    @property
    def expected(self) -> int:
        """How many ranks the sizes declare."""
        return self.dp_size * self.attn_cp_size * self.attn_tp_size * self.pp_size

    @property
    def follow_bootstrap_room(self) -> bool:
        """Whether the DP rank of a room is ``room % dp_size``; true where nobody said."""
        return self.load_balance_method in (None, "follow_bootstrap_room")

    def __contains__(self, key: RankKey) -> bool:
        return (
            0 <= key.dp_rank < self.dp_size
            and 0 <= key.cp_rank < self.attn_cp_size
            and 0 <= key.tp_rank < self.attn_tp_size
            and 0 <= key.pp_rank < self.pp_size
        )

    def keys(self) -> Iterator[RankKey]:
        """Every declared rank, in key order."""
        sizes = (self.dp_size, self.attn_cp_size, self.attn_tp_size, self.pp_size)
        return (RankKey(*ranks) for ranks in product(*map(range, sizes)))

    def conflicts(self, other: Shape) -> tuple[tuple[str, object, object], ...]:
        """Each field that differs, as (name, own value, other value); absent never differs.

        A ``_json`` field differs where the JSON does: key order and spaces are no difference.
        """
        if self == other:
            return ()
        return tuple(
            (name, mine, theirs)
            for name in _SHAPE_FIELDS
            if (mine := getattr(self, name)) is not None
            and (theirs := getattr(other, name)) is not None
            and mine != theirs
            and not (name.endswith("_json") and _same_json(mine, theirs))
        )

    def merged(self, other: Shape) -> Shape:
        """This shape, with its absent fields taken from ``other``."""
        if self == other:
            return self
        values = {
            name: theirs if (mine := getattr(self, name)) is None else mine
            for name in _SHAPE_FIELDS
            for theirs in (getattr(other, name),)
        }
        return Shape(**values)


_SHAPE_FIELDS = tuple(f.name for f in fields(Shape))


def _same_json(left: str, right: str) -> bool:
    try:
        # Through text again: in Python 1 == 1.0 == True, in JSON they are three values.
        left, right = (json.dumps(json.loads(text), sort_keys=True) for text in (left, right))
    except (ValueError, RecursionError):
        return False
    return left == right


def is_utf8(text: str) -> bool:
    """Whether a message can carry ``text``: JSON can name half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Attributes:
    """What may differ from rank to rank. ``extra_json`` maps an engine key to its JSON text."""

    prefill_http_port: int | None = None
    agent_name: str | None = None
    extra_json: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)


@dataclass(frozen=True, slots=True)
class Registration:
    """What one rank says of itself (``RegisterRank``, ``HoldRank``, ``PUT /route``)."""

    key: RankKey
    rank_ip: str
    rank_port: int
    shape: Shape
    attributes: Attributes = field(default_factory=Attributes)
    owner: str = ""
    instance_id: str = ""


@dataclass(frozen=True, slots=True)
class Deregistration:
    """Which registration ``DeregisterRank`` removes: key, address and owner must all match."""

    key: RankKey
    rank_ip: str
    rank_port: int
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a registration."""

    server_id: str
    instance_id: str
    generation: int
    version: int


@dataclass(frozen=True, slots=True)
class Route:
    """One rank with its address."""

    key: RankKey
    rank_ip: str
    rank_port: int
    generation: int = 0
    held: bool = False
    attributes: Attributes = field(default_factory=Attributes)


@dataclass(frozen=True, slots=True)
class RefusedRank:
    """A rank whose last registration was refused, until its key registers."""

    key: RankKey
    rank_ip: str
    rank_port: int
    code: ErrorCode
    reason: str
    refused_at_unix_ms: int


class TopologyState(IntEnum):
    """How complete the topology is. Numbers as in ``bootstrap.proto``."""

    EMPTY = 1
    """No rank is registered."""
    PARTIAL = 2
    """Some ranks are registered, or not yet registered again after a restart."""
    READY = 3
    """Every rank is registered."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The prefill server's shape with its routes and its readiness."""

    state: TopologyState
    registered: int
    expected: int
    missing: tuple[RankKey, ...]
    """The first 64 missing ranks, in key order."""
    missing_total: int
    shape: Shape | None
    """``None`` while EMPTY."""
    routes: tuple[Route, ...]
    """In key order; empty in a watched state that is not READY."""
    refused: tuple[RefusedRank, ...]
    server_id: str
    instance_id: str
    generation: int
    version: int
