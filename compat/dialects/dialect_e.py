"""Dialect E: SGLang 0.5.10 to 0.5.23.

Its clients build a dataclass from the topology, so that one key they do not know makes the whole
reply useless to them. The reply therefore has the seven keys that every release reads, and of
the optional ones only those whose value is not the client's own default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from bootstrap_grpc.compat.dialects.dialect import Dialect, RankQuery, TopologyOptions
from bootstrap_grpc.compat.dialects.reading import (
    ALL_RANKS,
    address,
    extra_attributes,
    not_ready,
    query_ranks,
    render_route,
    size,
)
from bootstrap_grpc.compat.fields import (
    JsonObject,
    boolean,
    integer,
    json_text,
    optional,
    required,
    text,
)
from bootstrap_grpc.protos.errors import BootstrapError
from bootstrap_grpc.protos.model import (
    MAX_RANKS,
    Attributes,
    RankKey,
    Registration,
    Shape,
    Topology,
)

__all__ = ["DIALECT"]

_QUERY_NAMES = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")

_GROUPS = ("attn_dp", "system_dp", "attn_cp", "attn_tp", "pp")
"""Each group of ranks has the keys ``<group>_size`` and ``<group>_rank``."""
_REQUIRED_KEYS = frozenset(
    [f"{group}_{key}" for group in _GROUPS for key in ("size", "rank")]
    + ["rank_ip", "rank_port", "page_size", "kv_cache_dtype"]
)
_MAX_PAGE_SIZE = 2**31
_JSON_TEXTS = frozenset(["dsv41_spec_layout"])
"""Optional keys whose value is kept as a JSON text."""
_DEFAULT_POLICY = "early"
"""What a client assumes where ``decode_allocation_policy`` is absent."""


def _parse_query(query: Mapping[str, str]) -> RankQuery | None:
    ranks = query_ranks(query, _QUERY_NAMES)
    if all(rank == ALL_RANKS for rank in ranks):
        return None
    dp, cp, tp, pp = (query[name] for name in _QUERY_NAMES)
    return RankQuery(
        RankKey(*ranks),
        f"Bootstrap info not found for dp_rank={dp} cp_rank={cp} tp_rank={tp} pp_rank={pp}",
    )


def _parse_registration(data: JsonObject) -> Registration:
    sizes = {group: size(data, f"{group}_size") for group in _GROUPS}
    # With DP attention system_dp_size is 1 while system_dp_rank is not 0: of the two DP groups
    # only the one in use has a rank below its size.
    dp, unused = ("attn_dp", "system_dp") if sizes["system_dp"] == 1 else ("system_dp", "attn_dp")
    integer(f"{unused}_rank", required(data, f"{unused}_rank"), 0, MAX_RANKS)
    ranks = [
        integer(f"{group}_rank", required(data, f"{group}_rank"), 0, sizes[group] - 1)
        for group in (dp, "attn_cp", "attn_tp", "pp")
    ]
    rank_ip, rank_port = address(data)
    return Registration(
        key=RankKey(*ranks),
        rank_ip=rank_ip,
        rank_port=rank_port,
        shape=_parse_shape(data, sizes, sizes[dp]),
        attributes=_parse_attributes(data),
    )


def _parse_shape(data: JsonObject, sizes: Mapping[str, int], dp_size: int) -> Shape:
    required(data, "page_size")
    required(data, "kv_cache_dtype")
    return Shape(
        attn_tp_size=sizes["attn_tp"],
        attn_cp_size=sizes["attn_cp"],
        dp_size=dp_size,
        pp_size=sizes["pp"],
        page_size=_integer_or_none(data, "page_size", _MAX_PAGE_SIZE),
        kv_cache_dtype=_text_or_none(data, "kv_cache_dtype"),
        load_balance_method=_text_or_none(data, "load_balance_method"),
        decode_allocation_policy=_text_or_none(data, "decode_allocation_policy"),
        enable_dsa_cache_layer_split=_boolean_or_none(data, "enable_dsa_cache_layer_split"),
        enable_kv_cache_sharding=_boolean_or_none(data, "enable_kv_cache_sharding"),
        kv_layout=_text_or_none(data, "kv_layout"),
        dsv41_spec_layout_json=_layout_or_none(data, "dsv41_spec_layout"),
    )


def _parse_attributes(data: JsonObject) -> Attributes:
    return Attributes(
        prefill_http_port=_integer_or_none(data, "prefill_http_port", 65_535),
        extra_json=extra_attributes(data, _KNOWN_KEYS),
    )


def _integer_or_none(data: JsonObject, name: str, most: int) -> int | None:
    value = optional(data, name)
    return None if value is None else integer(name, value, 1, most)


def _text_or_none(data: JsonObject, name: str) -> str | None:
    value = optional(data, name)
    return None if value is None else text(name, value)


def _boolean_or_none(data: JsonObject, name: str) -> bool | None:
    value = optional(data, name)
    return None if value is None else boolean(name, value)


def _layout_or_none(data: JsonObject, name: str) -> str | None:
    value = optional(data, name)
    if value is None:
        return None
    if not isinstance(value, dict):
        raise BootstrapError.invalid(name, value, "an object or null")
    return json_text(name, value)  # pyright: ignore[reportUnknownArgumentType] - JSON is untyped


def _render_topology(topology: Topology, options: TopologyOptions) -> bytes:
    shape = topology.shape or Shape()
    reply = {
        key: json.dumps(value)
        for key, value in {
            "attn_tp_size": shape.attn_tp_size,
            "attn_cp_size": shape.attn_cp_size,
            "dp_size": shape.dp_size,
            "pp_size": shape.pp_size,
            "page_size": shape.page_size,
            "kv_cache_dtype": shape.kv_cache_dtype,
            "follow_bootstrap_room": shape.follow_bootstrap_room,
        }.items()
    }
    for key, (value, default) in _optional_values(topology, shape).items():
        if value is not None and value != default and key not in options.omit:
            # Layouts and attributes are JSON texts already. They go out as they came: reading
            # what a peer nested deeply could fail here, for every decode.
            reply[key] = str(value) if key in _JSON_TEXTS else json.dumps(value)
    for key in sorted(options.pass_keys):
        agreed = _agreed(topology, key)
        if agreed is not None:
            reply[key] = agreed
    members = ", ".join(f"{json.dumps(key)}: {text}" for key, text in reply.items())
    return f"{{{members}}}".encode()


def _optional_values(
    topology: Topology, shape: Shape
) -> dict[str, tuple[str | int | None, str | int | None]]:
    """Each optional key with its value and the value that a client assumes without it."""
    return {
        "enable_dsa_cache_layer_split": (shape.enable_dsa_cache_layer_split, False),
        "dsv41_spec_layout": (shape.dsv41_spec_layout_json, None),
        "kv_layout": (shape.kv_layout, None),
        "decode_allocation_policy": (shape.decode_allocation_policy, _DEFAULT_POLICY),
        "enable_kv_cache_sharding": (shape.enable_kv_cache_sharding, False),
        "prefill_http_port": (_http_port(topology), None),
    }


def _http_port(topology: Topology) -> int | None:
    """That of the first rank which gave one: its node serves the API of the whole server."""
    ports = (route.attributes.prefill_http_port for route in topology.routes)
    return next((port for port in ports if port is not None), None)


def _agreed(topology: Topology, key: str) -> str | None:
    """The JSON text of the attribute ``key``, where every rank has it with one value."""
    given = {route.attributes.extra_json.get(key) for route in topology.routes}
    texts = [one for one in given if one is not None]
    if len(texts) < len(given):
        return None
    try:  # over gRPC one value may have come in several spellings
        values = {json_text(key, json.loads(one)) for one in texts} if len(texts) > 1 else given
    except (BootstrapError, RecursionError):
        return None
    return texts[0] if len(values) == 1 else None


_OPTIONAL_KEYS = frozenset(
    [
        "enable_dsa_cache_layer_split",
        "dsv41_spec_layout",
        "kv_layout",
        "decode_allocation_policy",
        "enable_kv_cache_sharding",
        "prefill_http_port",
    ]
)
_KNOWN_KEYS = _REQUIRED_KEYS | _OPTIONAL_KEYS | {"load_balance_method"}

DIALECT = Dialect(
    name="E",
    query_names=frozenset(_QUERY_NAMES) - {"target_pp_rank"},  # which C has too
    registration_names=frozenset(["attn_cp_size", "attn_cp_rank", "kv_cache_dtype"]),
    known_keys=_KNOWN_KEYS,
    optional_keys=_OPTIONAL_KEYS,
    parse_query=_parse_query,
    parse_registration=_parse_registration,
    render_topology=_render_topology,
    render_route=render_route,
    not_ready=not_ready,
)
"""The row of the table."""
