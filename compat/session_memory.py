"""The answers to bootstrap calls that need no I/O."""

from __future__ import annotations

import json
from typing import Any, cast

from bootstrap_grpc.client.directory import PrefillDirectory
from bootstrap_grpc.client.topology_cache import TopologyCache
from bootstrap_grpc.compat.dialects.dialect import MissingParameters, TopologyOptions
from bootstrap_grpc.compat.dialects.table import dialect_of_query
from bootstrap_grpc.compat.replies import OK, Reply, json_reply, refusal, text_reply
from bootstrap_grpc.compat.session_calls import Call, Kind, UrlParts
from bootstrap_grpc.compat.session_peers import Peer
from bootstrap_grpc.protos.errors import BootstrapError
from bootstrap_grpc.protos.model import TopologyState

__all__ = ["from_memory"]


def from_memory(
    call: Call,
    peer: Peer,
    cache: TopologyCache,
    directory: PrefillDirectory,
    options: TopologyOptions,
) -> Reply | None:
    """The answer of a server whose stream is live; ``None`` for what only the server can judge.

    Raises ValueError where ``directory`` drops the address at this very moment.
    """
    try:
        if call.kind is Kind.HEALTH:
            return OK
        if call.kind is Kind.ROUTE:
            return _route(call.parts, cache, options)
        given: Any = call.json
        if not isinstance(given, dict):
            return None
        body = cast("dict[str, Any]", given)
        if call.kind is Kind.QUERY_DP_RANKS:
            return _query(body, peer, directory)
        return _register(body, peer, directory)
    except BootstrapError as error:
        return refusal(error)


def _query(body: dict[str, Any], peer: Peer, directory: PrefillDirectory) -> Reply | None:
    given: Any = body.get("bootstrap_rooms")
    if not isinstance(given, list):
        return None
    rooms: list[Any] = given  # pyright: ignore[reportUnknownVariableType] - JSON is untyped
    if rooms and set(map(type, rooms)) != {int}:
        return None
    known = peer.rooms.ask(rooms, directory.resolver(peer.grpc))
    return json_reply(json.dumps(known).encode())  # its keys become texts, as on the wire


def _register(body: dict[str, Any], peer: Peer, directory: PrefillDirectory) -> Reply | None:
    room, dp_rank = body.get("bootstrap_room"), body.get("dp_rank")
    if type(room) is not int or type(dp_rank) is not int:
        return None
    directory.publisher(peer.grpc).publish(room, dp_rank)
    return OK


def _route(parts: UrlParts, cache: TopologyCache, options: TopologyOptions) -> Reply | None:
    dialect = dialect_of_query(parts.query)
    topology = cache.current()
    if dialect.name != "E" or topology is None:
        return None
    try:
        asked = dialect.parse_query(parts.query)
    except MissingParameters as missing:
        return text_reply(400, str(missing))
    if topology.state is not TopologyState.READY:
        return text_reply(503, dialect.not_ready(topology.registered))
    if asked is None:
        return json_reply(dialect.render_topology(topology, options))
    for route in topology.routes:
        if route.key == asked.key:
            return json_reply(dialect.render_route(route))
    return text_reply(404, asked.not_found)
