"""What the releases before 0.5.10 put and ask, dialect by dialect."""

from __future__ import annotations

from typing import Any

__all__ = [
    "TOPOLOGY_B",
    "TOPOLOGY_C",
    "payload_a",
    "payload_b",
    "payload_c",
    "payload_d",
    "rank_a",
    "rank_b",
    "rank_c",
]

TOPOLOGY_B = "/route?engine_rank=-1&target_dp_group=-1"
TOPOLOGY_C = "/route?engine_rank=-1&target_dp_group=-1&target_pp_rank=-1"


def rank_a(engine_rank: object) -> str:
    return f"/route?engine_rank={engine_rank}"


def rank_b(engine_rank: object, dp_group: object = 0) -> str:
    return f"/route?engine_rank={engine_rank}&target_dp_group={dp_group}"


def rank_c(engine_rank: object, dp_group: object = 0, pp_rank: object = 0) -> str:
    return f"/route?engine_rank={engine_rank}&target_dp_group={dp_group}&target_pp_rank={pp_rank}"


def payload_a(rank: int = 0, /, **changes: Any) -> dict[str, Any]:
    """A rank of 0.4.5.post3; NIXL's has an ``agent_name``."""
    return _changed(
        {
            "role": "Prefill",
            "rank_ip": "10.0.0.1",
            "rank_port": 17000 + rank,
            "engine_rank": rank,
        },
        changes,
    )


def payload_b(rank: int = 0, /, **changes: Any) -> dict[str, Any]:
    """A rank of 0.4.6 to 0.4.10."""
    return _changed(payload_a(rank) | {"tp_size": 1, "dp_size": 1}, changes)


def payload_c(rank: int = 0, /, **changes: Any) -> dict[str, Any]:
    """A rank of 0.5.1 to 0.5.7."""
    return _changed(
        {
            "role": "Prefill",
            "attn_tp_size": 1,
            "attn_tp_rank": rank,
            "attn_dp_size": 1,
            "attn_dp_rank": 0,
            "pp_size": 1,
            "pp_rank": 0,
            "system_dp_size": 1,
            "system_dp_rank": 0,
            "rank_ip": "10.0.0.1",
            "rank_port": 17000 + rank,
        },
        changes,
    )


def payload_d(rank: int = 0, /, **changes: Any) -> dict[str, Any]:
    """A rank of 0.5.8 and 0.5.9."""
    return _changed(payload_c(rank) | {"page_size": 64}, changes)


def _changed(body: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``body`` with ``changes``; a value of ``...`` removes."""
    return {key: value for key, value in (body | changes).items() if value is not ...}
