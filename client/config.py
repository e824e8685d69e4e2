"""How a client talks to a service, and the channel arguments that follow from it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Any

__all__ = ["STREAM_DEADLINE", "ClientConfig", "channel_options"]

STREAM_DEADLINE = 86_400.0
"""Seconds after which a stream is opened anew: no call is without a deadline. A dead or frozen
service is noticed long before, by keepalive, within 15 s."""

_RETRIED = ("RegisterRank", "GetTopology", "GetRoute", "RegisterDpRanks", "QueryDpRanks")
"""Calls that may be repeated without harm. A repeated ``DeregisterRank`` would report a rank
that its first delivery removed as missing."""


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Options of a client. Times are in seconds."""

    timeout: float = 5.0
    """Deadline of a unary call, retries included."""
    register_timeout: float = 30.0
    """Deadline of ``register_rank``: a service whose host is busy loading a model answers late
    (operator case 5)."""
    wait_for_ready: bool = False
    """Wait, up to the deadline, for a service that is not up yet, rather than fail at once."""
    max_message_bytes: int = 16 * 1024 * 1024
    """Largest message, in either direction."""

    def __post_init__(self) -> None:
        for name in ("timeout", "register_timeout", "max_message_bytes"):
            value = getattr(self, name)
            if not 0 < value < 1e9:
                raise ValueError(f"{name} is {value!r}, must be more than 0")


@lru_cache(maxsize=64)
def channel_options(config: ClientConfig) -> tuple[tuple[str, Any], ...]:
    """Every channel argument, with its reason (``docs/decisions/0003-grpc-arguments.md``)."""
    return (
        # http_proxy in a cluster's environment would send even loopback calls to the proxy.
        ("grpc.enable_http_proxy", 0),
        # The default closes a connection after 30 minutes without a call.
        ("grpc.client_idle_timeout_ms", 2**31 - 1),
        # Idle connections are dropped by NAT and firewalls without a word; a ping keeps them,
        # and a service that does not answer one is noticed within 14 s. gRPC pings no more
        # often than every 10 s.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 4_000),
        # Without it a frozen service whose kernel still answers is noticed after 60 s only.
        ("grpc.http2.ping_timeout_ms", 4_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # The default waits up to 2 minutes after a long outage.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.min_reconnect_backoff_ms", 2_000),  # the time-out of one attempt to connect
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.service_config", _service_config()),
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", config.max_message_bytes),
        ("grpc.primary_user_agent", f"bootstrap-grpc/{version('bootstrap-grpc')}"),
    )


def _service_config() -> str:
    service = "bootstrap.v1.BootstrapService"
    return json.dumps(
        {
            "methodConfig": [
                {
                    "name": [{"service": service, "method": method} for method in _RETRIED],
                    "retryPolicy": {
                        "maxAttempts": 3,
                        "initialBackoff": "0.1s",
                        "maxBackoff": "1s",
                        "backoffMultiplier": 2,
                        "retryableStatusCodes": ["UNAVAILABLE"],
                    },
                }
            ]
        }
    )
