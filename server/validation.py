"""What a registration must satisfy by itself: checked whole before any rule (rule 8)."""

from __future__ import annotations

import json
from dataclasses import fields

from bootstrap_grpc.protos.errors import BootstrapError
from bootstrap_grpc.protos.model import MAX_RANKS, Attributes, RankKey, Registration, Shape, is_utf8
from bootstrap_grpc.server.addresses import Peer, check_rank_ip

__all__ = ["check_key", "check_registration", "check_room_batch"]

MAX_TEXT = 1_024
"""Longest text field of a registration, in characters."""

MAX_ATTRIBUTES = 64
"""Most engine keys that one rank may carry in ``attributes.extra_json``."""

MAX_ATTRIBUTE_TEXT = 16_384
"""Longest JSON text of one engine key or of a layout, in characters."""

MAX_JSON_BRACKETS = 256
"""Most arrays and objects in such a text: a bound of its depth, for readers that recurse."""

_SIZE_OF = {
    "dp_rank": "dp_size",
    "cp_rank": "attn_cp_size",
    "tp_rank": "attn_tp_size",
    "pp_rank": "pp_size",
}


def check_registration(registration: Registration, peer: Peer) -> None:
    """Raise INVALID_FIELD naming the first field that no registration may carry."""
    check_shape(registration.shape)
    check_key(registration.key, registration.shape)
    for name in ("rank_ip", "owner", "instance_id"):
        _check_text(name, getattr(registration, name), MAX_TEXT)
    check_rank_ip(registration.rank_ip, peer)
    _check_port("rank_port", registration.rank_port)
    _check_attributes(registration.attributes)


def check_key(key: RankKey, shape: Shape) -> None:
    """Raise INVALID_FIELD where ``key`` lies outside the sizes that ``shape`` declares."""
    for rank_name, size_name in _SIZE_OF.items():
        rank, size = getattr(key, rank_name), getattr(shape, size_name)
        if not 0 <= rank < size:
            raise BootstrapError.invalid(
                f"key.{rank_name}", rank, f"from 0 to {size - 1}: shape.{size_name} is {size}"
            )


def check_shape(shape: Shape) -> None:
    """Raise INVALID_FIELD for sizes that cannot be, or texts that are too long."""
    for size_name in _SIZE_OF.values():
        size = getattr(shape, size_name)
        if not 1 <= size <= MAX_RANKS:
            raise BootstrapError.invalid(f"shape.{size_name}", size, f"from 1 to {MAX_RANKS}")
    if shape.expected > MAX_RANKS:
        raise BootstrapError.invalid(
            "shape", f"{shape.expected} ranks", f"at most {MAX_RANKS} ranks in all"
        )
    if shape.page_size is not None and not 1 <= shape.page_size <= 2**31:
        raise BootstrapError.invalid("shape.page_size", shape.page_size, f"from 1 to {2**31}")
    for field in fields(shape):
        value = getattr(shape, field.name)
        if isinstance(value, str):
            limit = MAX_ATTRIBUTE_TEXT if field.name.endswith("_json") else MAX_TEXT
            _check_text(f"shape.{field.name}", value, limit)
    if shape.dsv41_spec_layout_json is not None:
        _check_json("shape.dsv41_spec_layout_json", shape.dsv41_spec_layout_json)


def check_room_batch(rooms: int, dp_ranks: int) -> None:
    """Raise INVALID_FIELD where a batch of answers is not two arrays of one length."""
    if rooms != dp_ranks:
        raise BootstrapError.invalid(
            "dp_ranks", f"{dp_ranks} long", f"as long as rooms, which is {rooms} long"
        )


def _check_attributes(attributes: Attributes) -> None:
    if attributes.prefill_http_port is not None:
        _check_port("attributes.prefill_http_port", attributes.prefill_http_port)
    if attributes.agent_name is not None:
        _check_text("attributes.agent_name", attributes.agent_name, MAX_TEXT)
    if len(attributes.extra_json) > MAX_ATTRIBUTES:
        raise BootstrapError.limit(
            "attributes.extra_json keys", len(attributes.extra_json), MAX_ATTRIBUTES
        )
    for key, text in attributes.extra_json.items():
        _check_text("attributes.extra_json key", key, MAX_TEXT)
        _check_text(f"attributes.extra_json[{key}]", text, MAX_ATTRIBUTE_TEXT)
        _check_json(f"attributes.extra_json[{key}]", text)


def _check_port(field: str, port: int) -> None:
    if not 1 <= port <= 65_535:
        raise BootstrapError.invalid(field, port, "a port from 1 to 65535")


def _check_text(field: str, text: str, most: int) -> None:
    if len(text) > most:
        raise BootstrapError.invalid(field, text, f"at most {most} characters, it has {len(text)}")
    if not is_utf8(text):
        raise BootstrapError.invalid(field, text, "text that UTF-8 can carry")


def _check_json(field: str, text: str) -> None:
    depth = text.count("[") + text.count("{")  # no less than the real one, and costs nothing
    try:
        if depth <= MAX_JSON_BRACKETS:
            json.loads(text, parse_constant=_refuse_constant)
            return
    except (ValueError, RecursionError):
        pass
    raise BootstrapError.invalid(
        field, text, f"a JSON text (RFC 8259) of at most {MAX_JSON_BRACKETS} arrays and objects"
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
