from __future__ import annotations

from typing import Any

import pytest

from bootstrap_grpc.compat.config import HttpConfig


def test_defaults_are_sglang_s() -> None:
    assert (HttpConfig().host, HttpConfig().port) == ("127.0.0.1", 8998)


@pytest.mark.parametrize(
    "changes",
    [
        {"host": ""},
        {"port": -1},
        {"port": 65_536},
        {"max_body_bytes": 0},
        {"max_peers": 0},
        {"body_timeout": 0},
        {"keepalive_timeout": float("nan")},
        {"linger": -1},
        {"hold": 0},
        {"max_holds": 0},
        {"expected_ranks": 0},
        {"expected_ranks": 65_537},
        {"quiet": -1.0},
        {"first_request_timeout": 0},
        {"omit": frozenset(["page_size"])},
        {"omit": frozenset(["prefill_htp_port"])},
        {"pass_keys": frozenset(["kv_layout"])},
        {"pass_keys": frozenset(["rank_ip"])},
        {"pass_keys": frozenset(["agent_name"])},
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(ValueError, match=f"^{name} "):
        HttpConfig(**changes)


@pytest.mark.parametrize(
    "key",
    [
        "prefill_http_port",
        "kv_layout",
        "dsv41_spec_layout",
        "decode_allocation_policy",
        "enable_kv_cache_sharding",
        "enable_dsa_cache_layer_split",
    ],
)
def test_every_optional_key_may_be_omitted(key: str) -> None:
    assert HttpConfig(omit=frozenset([key])).omit == {key}
