"""What a dialect is: how it is recognised, what it reads and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bootstrap_grpc.compat.fields import JsonObject
from bootstrap_grpc.protos.model import RankKey, Registration, Route, Topology

__all__ = ["Dialect", "MissingParameters", "RankQuery", "TopologyOptions"]


class MissingParameters(Exception):  # noqa: N818 - an outcome of parsing, not a fault
    """A ``GET /route`` lacks parameters. ``str()`` is the reply's text, its status is 400."""


@dataclass(frozen=True, slots=True)
class RankQuery:
    """A ``GET /route`` for one rank."""

    key: RankKey
    not_found: str
    """The text of the 404 reply, with the parameters as the client spelt them."""


@dataclass(frozen=True, slots=True)
class TopologyOptions:
    """Which optional keys a topology reply has (``HttpConfig``)."""

    omit: frozenset[str] = frozenset()
    pass_keys: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Dialect:
    """One contract of ``/route``. Functions raise ``BootstrapError`` for bad input."""

    name: str
    query_names: frozenset[str]
    """The parameters of a ``GET /route``; none of an older dialect has them all."""
    registration_names: frozenset[str]
    """Keys of a ``PUT /route`` that only this and newer dialects have."""
    known_keys: frozenset[str]
    """Every key of a ``PUT /route`` that is read; any other becomes an attribute."""
    optional_keys: frozenset[str]
    """Keys of a topology reply that its clients can do without."""
    parse_query: Callable[[Mapping[str, str]], RankQuery | None]
    """``None`` where the query asks for the topology. Raises ``MissingParameters``."""
    parse_registration: Callable[[JsonObject], Registration]
    render_topology: Callable[[Topology, TopologyOptions], bytes]
    """The JSON body for a topology that is READY."""
    render_route: Callable[[Route], bytes]
    """The JSON body for one rank."""
    not_ready: Callable[[int], str]
    """The text of the 503 reply, from the number of registered ranks."""
