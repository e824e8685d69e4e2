"""Values of ``model`` to messages and back: one pair of functions for each message."""

from __future__ import annotations

from typing import Any, TypeVar

from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos.errors import BootstrapError
from bootstrap_grpc.protos.model import (
    Attributes,
    Deregistration,
    RankKey,
    RefusedRank,
    Registered,
    Registration,
    Route,
    Shape,
    Topology,
    TopologyState,
    is_utf8,
)
from bootstrap_grpc.protos.status import error_code_from_proto

_SIZES = ("attn_tp_size", "attn_cp_size", "dp_size", "pp_size")
_OPTIONAL = (
    "page_size",
    "kv_cache_dtype",
    "load_balance_method",
    "decode_allocation_policy",
    "enable_dsa_cache_layer_split",
    "enable_kv_cache_sharding",
    "kv_layout",
    "dsv41_spec_layout_json",
)
_UINT32 = 2**32 - 1

_RegistrationMessage = TypeVar("_RegistrationMessage", pb.RegisterRankRequest, pb.HoldRankRequest)
_RegisteredMessage = TypeVar("_RegisteredMessage", pb.RegisterRankResponse, pb.HoldRankResponse)


def _uint32(field: str, value: object) -> int:
    """``value``, or INVALID_FIELD where no uint32 field can carry it."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _UINT32:
        raise BootstrapError.invalid(field, value, f"an integer from 0 to {_UINT32}")
    return value


def _text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise BootstrapError.invalid(field, value, "a string")
    if not is_utf8(value):
        raise BootstrapError.invalid(field, value, "text that UTF-8 can carry")
    return value


# --- keys, shapes, attributes ---------------------------------------------------------


def key_to_proto(key: RankKey, path: str = "key") -> pb.RankKey:
    """Raises INVALID_FIELD for a rank that is no uint32."""
    return pb.RankKey(
        dp_rank=_uint32(f"{path}.dp_rank", key.dp_rank),
        cp_rank=_uint32(f"{path}.cp_rank", key.cp_rank),
        tp_rank=_uint32(f"{path}.tp_rank", key.tp_rank),
        pp_rank=_uint32(f"{path}.pp_rank", key.pp_rank),
    )


def key_from_proto(key: pb.RankKey) -> RankKey:
    return RankKey(key.dp_rank, key.cp_rank, key.tp_rank, key.pp_rank)


def shape_to_proto(shape: Shape) -> pb.Shape:
    """Raises INVALID_FIELD for a value of another type than the field's."""
    values: dict[str, Any] = {
        name: _uint32(f"shape.{name}", getattr(shape, name)) for name in _SIZES
    }
    for name in _OPTIONAL:
        value = getattr(shape, name)
        if value is None:
            continue
        if name == "page_size":
            _uint32(f"shape.{name}", value)
        elif name.startswith("enable_"):
            if not isinstance(value, bool):
                raise BootstrapError.invalid(f"shape.{name}", value, "a boolean")
        else:
            _text(f"shape.{name}", value)
        values[name] = value
    return pb.Shape(**values)


def shape_from_proto(shape: pb.Shape) -> Shape:
    values: dict[str, Any] = {name: getattr(shape, name) for name in _SIZES}
    values.update({name: getattr(shape, name) for name in _OPTIONAL if shape.HasField(name)})
    return Shape(**values)


def attributes_to_proto(attributes: Attributes) -> pb.Attributes:
    """Raises INVALID_FIELD for a value of another type than the field's."""
    message = pb.Attributes()
    if attributes.prefill_http_port is not None:
        message.prefill_http_port = _uint32(
            "attributes.prefill_http_port", attributes.prefill_http_port
        )
    if attributes.agent_name is not None:
        message.agent_name = _text("attributes.agent_name", attributes.agent_name)
    for key, value in attributes.extra_json.items():
        _text("attributes.extra_json key", key)
        message.extra_json[key] = _text(f"attributes.extra_json[{key}]", value)
    return message


def attributes_from_proto(attributes: pb.Attributes) -> Attributes:
    return Attributes(
        attributes.prefill_http_port if attributes.HasField("prefill_http_port") else None,
        attributes.agent_name if attributes.HasField("agent_name") else None,
        dict(attributes.extra_json),
    )


# --- registration ----------------------------------------------------------------------


def registration_to_proto(
    registration: Registration, message: type[_RegistrationMessage]
) -> _RegistrationMessage:
    """A ``RegisterRankRequest`` or ``HoldRankRequest``. Raises INVALID_FIELD."""
    return message(
        key=key_to_proto(registration.key),
        rank_ip=_text("rank_ip", registration.rank_ip),
        rank_port=_uint32("rank_port", registration.rank_port),
        shape=shape_to_proto(registration.shape),
        attributes=attributes_to_proto(registration.attributes),
        owner=_text("owner", registration.owner),
        instance_id=_text("instance_id", registration.instance_id),
    )


def registration_from_proto(request: pb.RegisterRankRequest | pb.HoldRankRequest) -> Registration:
    """Raises INVALID_FIELD where ``key`` or ``shape`` is absent."""
    for name in ("key", "shape"):
        if not request.HasField(name):
            raise BootstrapError.missing(name)
    return Registration(
        key_from_proto(request.key),
        request.rank_ip,
        request.rank_port,
        shape_from_proto(request.shape),
        attributes_from_proto(request.attributes),
        request.owner,
        request.instance_id,
    )


def deregistration_to_proto(deregistration: Deregistration) -> pb.DeregisterRankRequest:
    """Raises INVALID_FIELD for a value of another type than the field's."""
    return pb.DeregisterRankRequest(
        key=key_to_proto(deregistration.key),
        rank_ip=_text("rank_ip", deregistration.rank_ip),
        rank_port=_uint32("rank_port", deregistration.rank_port),
        owner=_text("owner", deregistration.owner),
    )


def deregistration_from_proto(request: pb.DeregisterRankRequest) -> Deregistration:
    """Raises INVALID_FIELD where ``key`` is absent."""
    if not request.HasField("key"):
        raise BootstrapError.missing("key")
    return Deregistration(
        key_from_proto(request.key), request.rank_ip, request.rank_port, request.owner
    )


def registered_to_proto(
    registered: Registered, message: type[_RegisteredMessage]
) -> _RegisteredMessage:
    return message(
        server_id=registered.server_id,
        instance_id=registered.instance_id,
        generation=registered.generation,
        version=registered.version,
    )


def registered_from_proto(response: pb.RegisterRankResponse | pb.HoldRankResponse) -> Registered:
    return Registered(
        response.server_id, response.instance_id, response.generation, response.version
    )


# --- routes and topology ------------------------------------------------------------------


def route_to_proto(route: Route) -> pb.Route:
    return pb.Route(
        key=key_to_proto(route.key),
        rank_ip=route.rank_ip,
        rank_port=route.rank_port,
        generation=route.generation,
        held=route.held,
        attributes=attributes_to_proto(route.attributes),
    )


def route_from_proto(route: pb.Route) -> Route:
    return Route(
        key_from_proto(route.key),
        route.rank_ip,
        route.rank_port,
        route.generation,
        route.held,
        attributes_from_proto(route.attributes),
    )


def _refused_to_proto(rank: RefusedRank) -> pb.RefusedRank:
    return pb.RefusedRank(
        key=key_to_proto(rank.key),
        rank_ip=rank.rank_ip,
        rank_port=rank.rank_port,
        code=pb.ErrorCode.Name(rank.code),
        reason=rank.reason,
        refused_at_unix_ms=rank.refused_at_unix_ms,
    )


def _refused_from_proto(rank: pb.RefusedRank) -> RefusedRank:
    return RefusedRank(
        key_from_proto(rank.key),
        rank.rank_ip,
        rank.rank_port,
        error_code_from_proto(rank.code),
        rank.reason,
        rank.refused_at_unix_ms,
    )


def topology_to_proto(topology: Topology) -> pb.Topology:
    return pb.Topology(
        state=pb.TopologyState.Name(topology.state),
        registered=topology.registered,
        expected=topology.expected,
        missing=[key_to_proto(key) for key in topology.missing],
        missing_total=topology.missing_total,
        shape=None if topology.shape is None else shape_to_proto(topology.shape),
        routes=[route_to_proto(route) for route in topology.routes],
        refused=[_refused_to_proto(rank) for rank in topology.refused],
        server_id=topology.server_id,
        instance_id=topology.instance_id,
        generation=topology.generation,
        version=topology.version,
    )


def topology_from_proto(topology: pb.Topology) -> Topology:
    """Raises ValueError for a state that this version does not know."""
    return Topology(
        TopologyState(topology.state),
        topology.registered,
        topology.expected,
        tuple(key_from_proto(key) for key in topology.missing),
        topology.missing_total,
        shape_from_proto(topology.shape) if topology.HasField("shape") else None,
        tuple(route_from_proto(route) for route in topology.routes),
        tuple(_refused_from_proto(rank) for rank in topology.refused),
        topology.server_id,
        topology.instance_id,
        topology.generation,
        topology.version,
    )
