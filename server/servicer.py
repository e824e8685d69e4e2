"""The gRPC adapter: translates a request, calls the registry or the rooms, translates back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Generator
from typing import Any, cast

from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos import bootstrap_pb2_grpc as rpc
from bootstrap_grpc.protos import convert
from bootstrap_grpc.protos.errors import BootstrapError, ErrorCode
from bootstrap_grpc.server.feed import TopologyFeed
from bootstrap_grpc.server.peers import peer_from_grpc
from bootstrap_grpc.server.registry import RankRegistry
from bootstrap_grpc.server.room_streams import publish, resolve
from bootstrap_grpc.server.rooms import RoomTable
from bootstrap_grpc.server.waiting import WaitingRooms

__all__ = ["BootstrapServicer"]


class BootstrapServicer(rpc.BootstrapServiceServicer):
    """``bootstrap.v1.BootstrapService`` over a registry and a room table.

    Handlers raise ``BootstrapError``; ``GuardInterceptor`` makes it a status.
    """

    def __init__(
        self,
        registry: RankRegistry,
        rooms: RoomTable,
        waiting: WaitingRooms,
        feed: TopologyFeed,
    ) -> None:
        self._registry = registry
        self._rooms = rooms
        self._waiting = waiting
        self._feed = feed
        self._open: set[asyncio.Future[None]] = set()
        self._draining: BootstrapError | None = None

    def end_streams(self) -> None:
        """End every hold, watch and room stream, and refuse new ones, with DRAINING."""
        self._draining = BootstrapError(ErrorCode.DRAINING, "the service shuts down")
        self._feed.close(self._draining)
        for ended in self._open:
            _fail(ended, self._draining)

    # --- ranks ------------------------------------------------------------------------

    async def RegisterRank(
        self, request: pb.RegisterRankRequest, context: Any
    ) -> pb.RegisterRankResponse:
        registration = convert.registration_from_proto(request)
        registered = self._registry.register(registration, peer_from_grpc(context.peer()))
        return convert.registered_to_proto(registered, pb.RegisterRankResponse)

    async def HoldRank(
        self, request: pb.HoldRankRequest, context: Any
    ) -> AsyncIterator[pb.HoldRankResponse]:
        registration = convert.registration_from_proto(request)
        with self._stream() as ended:
            hold = self._registry.hold(
                registration, peer_from_grpc(context.peer()), lambda error: _fail(ended, error)
            )
            try:
                yield convert.registered_to_proto(hold.registered, pb.HoldRankResponse)
                await ended
            finally:
                self._registry.release(hold)

    async def DeregisterRank(
        self, request: pb.DeregisterRankRequest, context: Any
    ) -> pb.DeregisterRankResponse:
        del context
        answer = self._registry.deregister(convert.deregistration_from_proto(request))
        return pb.DeregisterRankResponse(generation=answer.generation, version=answer.version)

    # --- topology ---------------------------------------------------------------------

    async def GetTopology(
        self, request: pb.GetTopologyRequest, context: Any
    ) -> pb.GetTopologyResponse:
        del request, context
        # Serialised once for all who ask: GuardInterceptor passes bytes on.
        return cast("pb.GetTopologyResponse", self._feed.whole())

    async def GetRoute(self, request: pb.GetRouteRequest, context: Any) -> pb.GetRouteResponse:
        del context
        if not request.HasField("key"):
            raise BootstrapError.missing("key")
        route = self._registry.route(convert.key_from_proto(request.key))
        return pb.GetRouteResponse(route=convert.route_to_proto(route))

    def WatchTopology(
        self, request: pb.WatchTopologyRequest, context: Any
    ) -> AsyncIterator[pb.WatchTopologyResponse]:
        del request, context
        # Serialised once for all watchers, as above.
        return cast("AsyncIterator[pb.WatchTopologyResponse]", self._feed.watch())

    # --- rooms ------------------------------------------------------------------------

    async def RegisterDpRanks(
        self, request: pb.RegisterDpRanksRequest, context: Any
    ) -> pb.RegisterDpRanksResponse:
        del context
        self._rooms.register(request.rooms, request.dp_ranks)
        return pb.RegisterDpRanksResponse()

    async def QueryDpRanks(
        self, request: pb.QueryDpRanksRequest, context: Any
    ) -> pb.QueryDpRanksResponse:
        del context
        known = self._rooms.query(request.rooms)
        return pb.QueryDpRanksResponse(rooms=known.keys(), dp_ranks=known.values())

    async def PublishDpRanks(
        self, request_iterator: AsyncIterator[pb.PublishDpRanksRequest], context: Any
    ) -> AsyncIterator[pb.PublishDpRanksResponse]:
        del context
        with self._stream() as ended:
            async with contextlib.aclosing(
                publish(request_iterator, self._rooms, ended)
            ) as responses:
                async for response in responses:
                    yield response

    async def ResolveDpRanks(
        self, request_iterator: AsyncIterator[pb.ResolveDpRanksRequest], context: Any
    ) -> AsyncIterator[pb.ResolveDpRanksResponse]:
        del context
        with self._stream() as ended:
            async with contextlib.aclosing(
                resolve(request_iterator, self._waiting, ended)
            ) as responses:
                async for response in responses:
                    yield response

    @contextlib.contextmanager
    def _stream(self) -> Generator[asyncio.Future[None], None, None]:
        """What ends an open stream: nothing, or the drain with its error."""
        if self._draining is not None:
            raise self._draining
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open.add(ended)
        try:
            yield ended
        finally:
            self._open.discard(ended)
            if not ended.cancel():
                ended.exception()  # heard: the log need not mention it


def _fail(future: asyncio.Future[None], error: BootstrapError) -> None:
    if not future.done():
        future.set_exception(error)
