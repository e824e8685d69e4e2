"""The unary calls, written once for the sync and the asyncio client: message in, value out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from bootstrap_grpc.client.errors import BootstrapError, typed
from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos import convert
from bootstrap_grpc.protos.model import (
    MAX_DP_RANK,
    MAX_MESSAGE_ROOMS,
    MAX_ROOM,
    Deregistration,
    RankKey,
    Registered,
    Registration,
    Route,
    Topology,
)

__all__ = [
    "Call",
    "deregister_rank",
    "get_route",
    "get_topology",
    "query_dp_ranks",
    "register_dp_ranks",
    "register_rank",
]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Call(Generic[_T]):
    """One unary call: the stub's method, its request, and what its response means."""

    method: str
    request: Any
    result: Callable[[Any], _T]


def register_rank(registration: Registration) -> Call[Registered]:
    request = _checked(convert.registration_to_proto, registration, pb.RegisterRankRequest)
    return Call("RegisterRank", request, convert.registered_from_proto)


def deregister_rank(deregistration: Deregistration) -> Call[None]:
    request = _checked(convert.deregistration_to_proto, deregistration)
    return Call("DeregisterRank", request, _nothing)


def get_topology() -> Call[Topology]:
    return Call("GetTopology", pb.GetTopologyRequest(), _topology)


def get_route(key: RankKey) -> Call[Route]:
    request = pb.GetRouteRequest(key=_checked(convert.key_to_proto, key))
    return Call("GetRoute", request, _route)


def register_dp_ranks(dp_ranks: Mapping[int, int]) -> Iterator[Call[None]]:
    """One call for each 65,536 rooms. All are checked before the first is sent."""
    for room, rank in dp_ranks.items():
        _check_integer("room", room, MAX_ROOM)
        _check_integer("dp_rank", rank, MAX_DP_RANK)
    items = iter(dp_ranks.items())
    while batch := dict(islice(items, MAX_MESSAGE_ROOMS)):
        request = pb.RegisterDpRanksRequest(rooms=batch.keys(), dp_ranks=batch.values())
        yield Call("RegisterDpRanks", request, _nothing)


def query_dp_ranks(rooms: Iterable[int]) -> Iterator[Call[dict[int, int]]]:
    """One call for each 65,536 rooms. All are checked before the first is sent."""
    rooms = list(rooms)
    try:
        if len(rooms) <= MAX_MESSAGE_ROOMS:  # protobuf checks each room itself
            yield Call("QueryDpRanks", pb.QueryDpRanksRequest(rooms=rooms), _dp_ranks)
            return
    except (TypeError, ValueError):
        pass  # said below, with the room's name
    for room in rooms:
        _check_integer("room", room, MAX_ROOM)
    for start in range(0, len(rooms), MAX_MESSAGE_ROOMS):
        batch = rooms[start : start + MAX_MESSAGE_ROOMS]
        yield Call("QueryDpRanks", pb.QueryDpRanksRequest(rooms=batch), _dp_ranks)


def _nothing(_response: object) -> None:
    return None


def _topology(response: pb.GetTopologyResponse) -> Topology:
    return convert.topology_from_proto(response.topology)


def _route(response: pb.GetRouteResponse) -> Route:
    return convert.route_from_proto(response.route)


def _dp_ranks(response: pb.QueryDpRanksResponse) -> dict[int, int]:
    return dict(zip(response.rooms, response.dp_ranks, strict=True))


def _checked(build: Callable[..., _T], *args: object) -> _T:
    try:
        return build(*args)
    except BootstrapError as error:
        raise typed(error) from None


def _check_integer(name: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise typed(BootstrapError.invalid(name, value, f"an integer from 0 to {most}"))
