"""Clients of a bootstrap service: ``BootstrapClient`` and ``AsyncBootstrapClient``.

Importing this package starts nothing and connects to nothing.
"""

from __future__ import annotations

from bootstrap_grpc.client.aio import AsyncBootstrapClient
from bootstrap_grpc.client.config import ClientConfig
from bootstrap_grpc.client.directory import PrefillDirectory
from bootstrap_grpc.client.errors import (
    BootstrapError,
    ErrorCode,
    ForkedError,
    InvalidRequest,
    LimitExceeded,
    NoContact,
    NotFound,
    Refused,
    ServiceFault,
)
from bootstrap_grpc.client.hold import RankHold
from bootstrap_grpc.client.hold_aio import AsyncRankHold
from bootstrap_grpc.client.publisher import DpRankPublisher
from bootstrap_grpc.client.resolver import DpRankResolver
from bootstrap_grpc.client.streams_aio import (
    AsyncDpRankPublisher,
    AsyncDpRankResolver,
    AsyncTopologyCache,
)
from bootstrap_grpc.client.sync import BootstrapClient
from bootstrap_grpc.client.topology_cache import TopologyCache
from bootstrap_grpc.client.watch import TopologyWatch
from bootstrap_grpc.protos.model import (
    Attributes,
    Deregistration,
    RankKey,
    Registered,
    Registration,
    Route,
    Shape,
    Topology,
    TopologyState,
)

__all__ = [
    "AsyncBootstrapClient",
    "AsyncDpRankPublisher",
    "AsyncDpRankResolver",
    "AsyncRankHold",
    "AsyncTopologyCache",
    "Attributes",
    "BootstrapClient",
    "BootstrapError",
    "ClientConfig",
    "Deregistration",
    "DpRankPublisher",
    "DpRankResolver",
    "ErrorCode",
    "ForkedError",
    "InvalidRequest",
    "LimitExceeded",
    "NoContact",
    "NotFound",
    "PrefillDirectory",
    "RankHold",
    "RankKey",
    "Refused",
    "Registered",
    "Registration",
    "Route",
    "ServiceFault",
    "Shape",
    "Topology",
    "TopologyCache",
    "TopologyState",
    "TopologyWatch",
]
