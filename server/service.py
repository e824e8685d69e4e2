"""The service of one prefill server: registry, rooms and the gRPC server, started and drained."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from bootstrap_grpc.protos import bootstrap_pb2_grpc as rpc
from bootstrap_grpc.server.feed import TopologyFeed
from bootstrap_grpc.server.health import Health, ServingStatus
from bootstrap_grpc.server.interceptor import GuardInterceptor
from bootstrap_grpc.server.options import server_options
from bootstrap_grpc.server.registry import RankRegistry, RegistryConfig
from bootstrap_grpc.server.rooms import RoomTable
from bootstrap_grpc.server.servicer import BootstrapServicer
from bootstrap_grpc.server.timekeeper import Timekeeper
from bootstrap_grpc.server.waiting import WaitingRooms

__all__ = ["DEFAULT_GRPC_PORT", "BindError", "BootstrapService", "ServiceConfig"]

_log = logging.getLogger(__name__)

DEFAULT_GRPC_PORT = 18_998
SERVICE_NAME = "bootstrap.v1.BootstrapService"


class BindError(Exception):
    """An address could not be bound; the text names it and says why."""

    def __init__(self, what: str, host: str, port: int, reason: str) -> None:
        shown = f"[{host}]" if ":" in host else host
        super().__init__(f"cannot bind {what} to {shown}:{port}: {reason}")


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Where the gRPC server listens, and the documented limits. Times are in seconds."""

    host: str = "127.0.0.1"
    """Address to bind: an IP address or a host name of this machine."""
    grpc_port: int = DEFAULT_GRPC_PORT
    """0 picks a free one."""
    instance_id: str = ""
    """Names one start of the prefill engine: stable over restarts of this service."""
    drain_timeout: float = 3.0
    """How long in-flight calls may take once draining began."""
    hold_grace: float = 10.0
    """How long a rank stays after its hold ended."""
    settle: float = 60.0
    """How long without a registration until unconfirmed ranks count again."""
    room_lifetime: float = 360.0
    """How long a room is known; longer than SGLang's 300 s bootstrap timeout."""
    max_rooms: int = 2_000_000
    """Rooms held at once; past it the oldest go first."""
    max_waiting_rooms: int = 1_000_000
    """Rooms that one ResolveDpRanks stream may wait for."""
    max_message_bytes: int = 16 * 1024 * 1024
    """Largest gRPC message, in either direction."""

    def __post_init__(self) -> None:
        if not self.host:
            raise ValueError("host is empty, must be an address to bind")
        if not 0 <= self.grpc_port <= 65_535:
            raise ValueError(f"grpc_port is {self.grpc_port}, must be from 0 to 65535")
        for name in ("drain_timeout", "hold_grace", "settle"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must be 0 or more seconds")
        for name in ("room_lifetime", "max_rooms", "max_waiting_rooms", "max_message_bytes"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must be more than 0")


class BootstrapService:
    """Registry, rooms and gRPC server in the running event loop.

    The registry and the rooms may be served over other transports in the same loop. Make it,
    ``start`` it and ``drain`` it within one running loop; not thread-safe.
    """

    def __init__(
        self,
        config: ServiceConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock`` is monotonic, in seconds; tests bring their own."""
        self._clock = clock
        self.config = config or ServiceConfig()
        self.server_id = uuid.uuid4().hex
        self.registry = RankRegistry(
            RegistryConfig(
                self.server_id,
                self.config.instance_id,
                self.config.hold_grace,
                self.config.settle,
            ),
            clock=clock,
            wall_clock=time.time,
        )
        self.rooms = RoomTable(
            clock, lifetime=self.config.room_lifetime, capacity=self.config.max_rooms
        )
        self.waiting = WaitingRooms(self.rooms, limit=self.config.max_waiting_rooms)
        self.port = 0
        """The gRPC port that was bound; 0 before ``start``."""
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """Gets the fault of a background task: the service then says NOT_SERVING and should end."""
        self._health = Health(SERVICE_NAME)
        self._feed = TopologyFeed(self.registry)
        self._servicer = BootstrapServicer(self.registry, self.rooms, self.waiting, self._feed)
        self._server: grpc.aio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._drained: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Bind and serve. Raises ``BindError``; a service that failed to start can be dropped."""
        server = grpc.aio.server(
            interceptors=[GuardInterceptor(self.server_id, self.config.instance_id)],
            options=server_options(self.config.max_message_bytes),
        )
        rpc.add_BootstrapServiceServicer_to_server(self._servicer, server)
        server.add_generic_rpc_handlers((self._health.handler(),))
        host, port = self.config.host, self.config.grpc_port
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self.port = server.add_insecure_port(address)
        except RuntimeError as error:
            await server.stop(None)
            raise BindError("gRPC", host, port, "in use, or not an address of this host") from error
        await server.start()
        self._server = server
        timekeeper = Timekeeper(self.registry, self.rooms, self._clock)
        for name, run in (("timekeeper", timekeeper.run()), ("topology feed", self._feed.run())):
            task = asyncio.get_running_loop().create_task(run, name=name)
            task.add_done_callback(self._task_done)
            self._tasks.append(task)
        self._health.set(ServingStatus.SERVING)

    async def drain(self, timeout: float | None = None) -> None:
        """Say NOT_SERVING, end watches and holds, let in-flight calls finish, then stop.

        ``timeout`` defaults to the configuration's ``drain_timeout``. Idempotent.
        """
        if self._drained is None:
            grace = self.config.drain_timeout if timeout is None else timeout
            self._drained = asyncio.get_running_loop().create_task(self._drain(grace))
        await asyncio.shield(self._drained)

    async def _drain(self, grace: float) -> None:
        self._health.set(ServingStatus.NOT_SERVING)
        stopping: asyncio.Task[Any] | None = None
        if self._server is not None:
            stopping = asyncio.get_running_loop().create_task(self._server.stop(grace))
            # stop() refuses new calls at its first step: a stream that ends now and is opened
            # again at once must not be accepted here.
            await asyncio.sleep(0)
        self._servicer.end_streams()
        self._health.close()
        if stopping is not None:
            await stopping
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.critical("%s failed; the service is not serving", task.get_name(), exc_info=error)
            self._health.set(ServingStatus.NOT_SERVING)
            if not self.failure.done():
                self.failure.set_result(error)
