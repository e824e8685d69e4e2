"""The streams of one client to one service: where they live and what they go over."""

from __future__ import annotations

from typing import Any

from bootstrap_grpc.client.background import Host, Run, Stream
from bootstrap_grpc.client.backoff import LogBudget
from bootstrap_grpc.client.channels import AsyncLease, lease_async
from bootstrap_grpc.client.config import ClientConfig
from bootstrap_grpc.client.target import Target
from bootstrap_grpc.protos import bootstrap_pb2_grpc as rpc

__all__ = ["Connection"]


class Connection:
    """A channel, made lazily in the host's loop, and the streams that are kept open over it.

    Everything but the attributes is called in that loop.
    """

    def __init__(self, host: Host, target: Target, config: ClientConfig, budget: LogBudget) -> None:
        self.host = host
        self.target = target
        self.budget = budget
        self._config = config
        self._dialled = target
        self._lease: AsyncLease | None = None
        self._streams: list[Stream] = []

    @property
    def dialled(self) -> Target:
        """The address that the channel goes to: another spelling of ``target``, perhaps."""
        return self._dialled

    def stub(self) -> Any:
        """The service's methods. To be asked for each time: the channel may be another one."""
        if self._lease is None or self._lease.is_closed:
            self._lease = lease_async(self._dialled.grpc_target, self._config)
        channel: Any = self._lease.channel
        return rpc.BootstrapServiceStub(channel)

    def keep(self, run: Run) -> Stream:
        """Keep a stream open: ``run`` opens it with ``stub``, again and again."""
        stream = self.host.keep(run)
        self._streams = [kept for kept in self._streams if not kept.is_over]
        self._streams.append(stream)
        return stream

    async def redial(self, target: Target) -> None:
        """Go over the channel to ``target``, which is known to reach the same service."""
        if target == self._dialled:
            return
        for stream in self._streams:
            await stream.stop()
        await self._give_back()
        self._dialled = target
        for stream in self._streams:
            stream.start()

    async def close(self) -> None:
        """End every stream, then give up the channel."""
        streams, self._streams = self._streams, []
        for stream in streams:
            stream.cancel()
            await stream.stop()
        await self._give_back()

    async def _give_back(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            await lease.close()
