"""``AsyncBootstrapClient.watch_topology``: the asyncio twin of ``TopologyWatch``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import grpc

from bootstrap_grpc.client.errors import BootstrapError, NoContact, from_rpc
from bootstrap_grpc.client.watch import WatchLogic
from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos.model import Topology

__all__ = ["watch"]


async def watch(
    logic: WatchLogic, open_stream: Callable[..., Any], target: str
) -> AsyncGenerator[Topology, None]:
    """Whole states of the topology, through restarts of the service.

    Leaving the loop or cancelling the task ends the stream.
    """
    while (left := logic.time_left()) > 0:
        call = open_stream(pb.WatchTopologyRequest(), timeout=left, wait_for_ready=True)
        try:
            async for response in call:
                yield logic.on_response(response)
            error: BootstrapError | NoContact = NoContact(target, "the stream ended")
        except grpc.RpcError as rpc_error:
            error = from_rpc(rpc_error, target)
        finally:
            call.cancel()
        await asyncio.sleep(logic.on_end(error))
