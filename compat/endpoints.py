"""What each path answers: requests to calls of the registry and the rooms, answers to replies."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TypeAlias, cast

from aiohttp import web

from bootstrap_grpc.compat.bodies import BodyReader
from bootstrap_grpc.compat.closing import Connection
from bootstrap_grpc.compat.config import HttpConfig
from bootstrap_grpc.compat.dialects.dialect import (
    Dialect,
    MissingParameters,
    RankQuery,
    TopologyOptions,
)
from bootstrap_grpc.compat.dialects.table import dialect_of_query, dialect_of_registration
from bootstrap_grpc.compat.fields import integer, integers, required
from bootstrap_grpc.compat.replies import (
    JSON,
    OK,
    Closing,
    Reply,
    json_reply,
    refusal,
    text_reply,
)
from bootstrap_grpc.protos.errors import BootstrapError, ErrorCode
from bootstrap_grpc.protos.model import (
    MAX_DP_RANK,
    MAX_MESSAGE_ROOMS,
    MAX_ROOM,
    TopologyState,
)
from bootstrap_grpc.server.peers import peer_from_ip
from bootstrap_grpc.server.registry import RankRegistry
from bootstrap_grpc.server.rooms import RoomTable

__all__ = ["Endpoints", "Operation"]

_log = logging.getLogger(__name__)

_MOST_TARGETS = 8_192
_LONGEST_TARGET = 256
"""Request targets whose parsing is remembered: decodes ask for the same few over and over."""

Answer: TypeAlias = Callable[[web.BaseRequest], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Operation:
    """What answers a request, and who closes its connection afterwards."""

    answer: Answer
    closing: Closing


@dataclass(frozen=True, slots=True)
class _Target:
    """One path, with its query: an operation for each method and one for any other."""

    operations: Mapping[str, Operation]
    otherwise: Operation


class Endpoints:
    """The paths of the shim. One event loop, like the registry and the rooms behind it."""

    def __init__(self, registry: RankRegistry, rooms: RoomTable, config: HttpConfig) -> None:
        self._registry = registry
        self._rooms = rooms
        self._bodies = BodyReader(config.max_body_bytes, config.body_timeout)
        self._options = TopologyOptions(config.omit, config.pass_keys)
        self._targets: dict[str, _Target] = {}
        self._register = Operation(self._register_rank, Closing.SERVER)
        health = Operation(_fixed(OK), Closing.CLIENT)
        ready = Operation(self._ready, Closing.LEARNED)
        self._paths: dict[str, _Target] = {
            "/health": _target({"GET": health, "HEAD": health}),
            "/ready": _target({"GET": ready, "HEAD": ready}),
            "/register_dp_rank": _target(
                {"POST": Operation(self._register_dp_rank, Closing.SERVER)}
            ),
            "/query_dp_ranks": _target({"POST": Operation(self._query_dp_ranks, Closing.LEARNED)}),
        }

    def operation(self, request: web.BaseRequest) -> Operation:
        """What answers ``request``: always something, be it a refusal."""
        raw = request.raw_path
        target = self._targets.get(raw)
        if target is None:
            target = self._resolve(request)
            if len(raw) <= _LONGEST_TARGET:
                if len(self._targets) >= _MOST_TARGETS:
                    self._targets.clear()
                self._targets[raw] = target
        return target.operations.get(request.method, target.otherwise)

    def _resolve(self, request: web.BaseRequest) -> _Target:
        if request.path != "/route":
            return self._paths.get(request.path, _NOT_FOUND)
        operations = {"GET": self._route_query(request), "PUT": self._register}
        return _Target(operations, _ROUTE_METHOD)

    def _route_query(self, request: web.BaseRequest) -> Operation:
        # Where a name comes twice the first counts, as in SGLang.
        query = {name: request.query[name] for name in request.query}
        dialect = dialect_of_query(query)
        try:
            asked = dialect.parse_query(query)
        except MissingParameters as missing:
            return Operation(_fixed(text_reply(400, str(missing))), Closing.LEARNED)
        except BootstrapError as error:
            return Operation(_fixed(refusal(error)), Closing.LEARNED)
        if asked is None:
            answer = _TopologyAnswer(self._registry, dialect, self._options)
            return Operation(answer, Closing.SERVER)
        return Operation(_RankAnswer(self._registry, dialect, asked), Closing.LEARNED)

    async def _register_rank(self, request: web.BaseRequest) -> Reply:
        data = await self._bodies.json_object(request)
        registration = dialect_of_registration(data).parse_registration(data)
        try:
            self._registry.register(registration, peer_from_ip(_peer_ip(request)))
        except BootstrapError as error:
            # SGLang's prefill logs a status without its text, and runs on unregistered.
            _log.warning("refused over HTTP from %s: %s", _peer_ip(request), error)
            raise
        return OK

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


class _TopologyAnswer:
    """The topology in one dialect, rendered once a version."""

    def __init__(self, registry: RankRegistry, dialect: Dialect, options: TopologyOptions) -> None:
        self._registry = registry
        self._dialect = dialect
        self._options = options
        self._version = -1
        self._reply = OK

    async def __call__(self, _: web.BaseRequest) -> Reply:
        version = self._registry.version
        if version != self._version:
            self._reply = self._render()
            self._version = version
        return self._reply

    def _render(self) -> Reply:
        topology = self._registry.topology()
        if topology.state is not TopologyState.READY:
            return text_reply(503, self._dialect.not_ready(topology.registered))
        return json_reply(self._dialect.render_topology(topology, self._options))


class _RankAnswer:
    """The address of one rank in one dialect, rendered once a version."""

    def __init__(self, registry: RankRegistry, dialect: Dialect, asked: RankQuery) -> None:
        self._registry = registry
        self._dialect = dialect
        self._asked = asked
        self._version = -1
        self._reply = OK

    async def __call__(self, _: web.BaseRequest) -> Reply:
        version = self._registry.version
        if version != self._version:
            self._reply = self._render()
            self._version = version
        return self._reply

    def _render(self) -> Reply:
        if self._registry.state is not TopologyState.READY:
            return text_reply(503, self._dialect.not_ready(self._registry.registered))
        try:
            route = self._registry.route(self._asked.key)
        except BootstrapError as error:
            if error.code is not ErrorCode.RANK_NOT_FOUND:
                raise
            return text_reply(404, self._asked.not_found)
        return json_reply(self._dialect.render_route(route))


def _peer_ip(request: web.BaseRequest) -> str:
    return cast("Connection", request.protocol).peer


def _fixed(reply: Reply) -> Answer:
    async def answer(_: web.BaseRequest) -> Reply:
        return reply

    return answer


def _target(operations: Mapping[str, Operation]) -> _Target:
    # The texts are those of aiohttp's router, which SGLang's server shows.
    refused = Reply(405, b"405: Method Not Allowed", allow=",".join(operations))
    return _Target(operations, Operation(_fixed(refused), Closing.LEARNED))


_ROUTE_METHOD = Operation(_fixed(Reply(405, b"Method not allowed", JSON)), Closing.LEARNED)
_NOT_FOUND = _Target({}, Operation(_fixed(text_reply(404, "404: Not Found")), Closing.LEARNED))
