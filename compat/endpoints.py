"""What each path answers: requests to calls of the registry and the rooms, answers to replies."""

from __future__ import annotations

import json
from dataclasses import asdict

from aiohttp import web

from bootstrap_grpc.compat.bodies import BodyReader
from bootstrap_grpc.compat.config import HttpConfig
from bootstrap_grpc.compat.fields import integer, integers, required, text
from bootstrap_grpc.compat.metadata import MetadataStore
from bootstrap_grpc.compat.openapi import openapi_document
from bootstrap_grpc.compat.operations import Operation, Target, fixed, target
from bootstrap_grpc.compat.replies import (
    BYTES,
    JSON,
    OK,
    Closing,
    Reply,
    json_reply,
    text_reply,
)
from bootstrap_grpc.compat.routes import Routes
from bootstrap_grpc.protos.model import (
    MAX_DP_RANK,
    MAX_MESSAGE_ROOMS,
    MAX_ROOM,
    TopologyState,
)
from bootstrap_grpc.server.registry import RankRegistry
from bootstrap_grpc.server.rooms import RoomTable

__all__ = ["Endpoints"]

_MOST_TARGETS = 8_192
_LONGEST_TARGET = 256
"""Request targets whose parsing is remembered: decodes ask for the same few over and over."""

_NOT_FOUND = Target({}, Operation(fixed(text_reply(404, "404: Not Found")), Closing.LEARNED))


class Endpoints:
    """The paths of the shim. One event loop, like the registry and the rooms behind it."""

    def __init__(self, registry: RankRegistry, rooms: RoomTable, config: HttpConfig) -> None:
        self._registry = registry
        self._rooms = rooms
        self._bodies = BodyReader(config.max_body_bytes, config.body_timeout)
        self._routes = Routes(registry, self._bodies, config)
        self._targets: dict[str, Target] = {}
        health = Operation(fixed(OK), Closing.CLIENT)
        ready = Operation(self._ready, Closing.LEARNED)
        document = Operation(fixed(json_reply(openapi_document())), Closing.LEARNED)
        self._paths: dict[str, Target] = {
            "/health": target({"GET": health, "HEAD": health}),
            "/ready": target({"GET": ready, "HEAD": ready}),
            "/register_dp_rank": target(
                {"POST": Operation(self._register_dp_rank, Closing.SERVER)}
            ),
            "/query_dp_ranks": target({"POST": Operation(self._query_dp_ranks, Closing.LEARNED)}),
            "/openapi.json": target({"GET": document, "HEAD": document}),
        }
        self._metadata = MetadataStore()
        if config.metadata:
            operations = {
                "GET": Operation(self._get_metadata, Closing.LEARNED),
                "PUT": Operation(self._put_metadata, Closing.LEARNED),
                "DELETE": Operation(self._delete_metadata, Closing.LEARNED),
            }
            other = Operation(fixed(Reply(405, b"Method not allowed", JSON)), Closing.LEARNED)
            self._paths["/metadata"] = Target(operations, other)

    def operation(self, request: web.BaseRequest) -> Operation:
        """What answers ``request``: always something, be it a refusal."""
        raw = request.raw_path
        found = self._targets.get(raw)
        if found is None:
            found = self._resolve(request)
            if len(raw) <= _LONGEST_TARGET:
                if len(self._targets) >= _MOST_TARGETS:
                    self._targets.clear()
                self._targets[raw] = found
        return found.operations.get(request.method, found.otherwise)

    def stop(self) -> None:
        """Answer what is held: the service stops."""
        self._routes.stop()

    def _resolve(self, request: web.BaseRequest) -> Target:
        if request.path == "/route":
            return self._routes.target(request)
        return self._paths.get(request.path, _NOT_FOUND)

    async def _register_dp_rank(self, request: web.BaseRequest) -> Reply:
        data = await self._bodies.json_object(request)
        room = integer("bootstrap_room", required(data, "bootstrap_room"), 0, MAX_ROOM)
        dp_rank = integer("dp_rank", required(data, "dp_rank"), 0, MAX_DP_RANK)
        self._rooms.register((room,), (dp_rank,))
        return OK

    async def _query_dp_ranks(self, request: web.BaseRequest) -> Reply:
        data = await self._bodies.json_object(request)
        asked = required(data, "bootstrap_rooms")
        found = self._rooms.query(integers("bootstrap_rooms", asked, MAX_ROOM, MAX_MESSAGE_ROOMS))
        pairs = ", ".join([f'"{room}": {dp_rank}' for room, dp_rank in found.items()])
        return json_reply(f"{{{pairs}}}".encode())

    async def _ready(self, _: web.BaseRequest) -> Reply:
        topology = self._registry.topology()
        body = {
            "state": topology.state.name,
            "registered": topology.registered,
            "expected": topology.expected,
            "missing_total": topology.missing_total,
            "missing": [asdict(key) for key in topology.missing],
        }
        ready = topology.state is TopologyState.READY
        return json_reply(json.dumps(body).encode(), 200 if ready else 503)

    async def _get_metadata(self, request: web.BaseRequest) -> Reply:
        value = self._metadata.get(_key(request))
        if value is None:
            return Reply(404, b"metadata not found", JSON)
        return Reply(200, value, BYTES)

    async def _put_metadata(self, request: web.BaseRequest) -> Reply:
        self._metadata.put(_key(request), await self._bodies.read(request))
        return Reply(200, b"metadata updated", JSON)

    async def _delete_metadata(self, request: web.BaseRequest) -> Reply:
        if not self._metadata.delete(_key(request)):
            return Reply(404, b"metadata not found", JSON)
        return Reply(200, b"metadata deleted", JSON)


def _key(request: web.BaseRequest) -> str:
    return text("key", request.query.get("key", ""))
