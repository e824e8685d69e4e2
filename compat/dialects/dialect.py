"""What a dialect is: how it is recognised, what it reads and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from bootstrap_grpc.compat.fields import JsonObject
from bootstrap_grpc.protos.model import RankKey, Registration, Route, Shape, Topology

__all__ = ["Dialect", "Intake", "MissingParameters", "RankQuery", "TopologyOptions"]


class MissingParameters(Exception):  # noqa: N818 - an outcome of parsing, not a fault
    """A ``GET /route`` lacks parameters. ``str()`` is the reply's text, its status is 400."""


class Intake(Enum):
    """How the registrations of a dialect reach the registry."""

    DIRECT = auto()
    """As they are: they name their rank and all sizes."""
    GATHERED = auto()
    """They name no size: see ``compat.gathering``."""
    SHARED = auto()
    """Several live ranks may name one key: see ``compat.shared_keys``."""


@dataclass(frozen=True, slots=True)
class RankQuery:
    """A ``GET /route`` for one rank, in the dialect's own numbering."""

    key: RankKey
    not_found: str
    """The text of the 404 reply, with the parameters as the client spelt them."""


@dataclass(frozen=True, slots=True)
class TopologyOptions:
    """Which optional keys a topology reply has (``HttpConfig``)."""

    omit: frozenset[str] = frozenset()
    pass_keys: frozenset[str] = frozenset()


def _as_asked(asked: RankKey, _: Shape) -> RankKey:
    return asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One contract of ``/route``. Functions raise ``BootstrapError`` for bad input."""

    name: str
    query_names: frozenset[str]
    """Parameters of a ``GET /route``: one of them tells this dialect from all older ones."""
    registration_names: frozenset[str]
    """Keys of a ``PUT /route``: one of them tells this dialect from all older ones."""
    known_keys: frozenset[str]
    """Every key of a ``PUT /route`` that is read; any other becomes an attribute."""
    optional_keys: frozenset[str] = frozenset()
    """Keys of a topology reply that its clients can do without."""
    unsaid_sizes: frozenset[str] = frozenset()
    """Sizes of ``Shape`` that the dialect has no word for: its clients cannot read a prefill
    server in which one of them is not 1."""
    waits: bool = False
    """Whether its clients die of any answer but 200, and therefore wait until the prefill server
    is READY."""
    intake: Intake = Intake.DIRECT
    parse_query: Callable[[Mapping[str, str]], RankQuery | None]
    """``None`` where the query asks for the topology. Raises ``MissingParameters``."""
    parse_registration: Callable[[JsonObject], Registration | None]
    """``None`` for a registration that SGLang answers with 200 and does not keep."""
    locate: Callable[[RankKey, Shape], RankKey] = _as_asked
    """The registry's key for a rank as a query names it, in a READY topology of this shape."""
    render_topology: Callable[[Topology, TopologyOptions], bytes]
    """The JSON body for a topology that is READY."""
    render_route: Callable[[Route], bytes]
    """The JSON body for one rank."""
    not_ready: Callable[[int], str]
    """The text of the 503 reply, from the number of registered ranks."""
