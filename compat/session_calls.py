"""Which calls of a ``requests`` session are bootstrap calls, and what they ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

__all__ = ["KIND_OF_CALL", "Call", "Kind", "UrlParts", "parse_url", "timeout_seconds"]


class Kind(Enum):
    """The five calls of SGLang's bootstrap protocol since 0.5.10."""

    REGISTER = auto()
    """``PUT /route``."""
    ROUTE = auto()
    """``GET /route``: the topology, or one rank."""
    REGISTER_DP_RANK = auto()
    """``POST /register_dp_rank``."""
    QUERY_DP_RANKS = auto()
    """``POST /query_dp_ranks``."""
    HEALTH = auto()
    """``GET /health``."""


KIND_OF_CALL: dict[tuple[str, str], Kind] = {
    ("PUT", "/route"): Kind.REGISTER,
    ("GET", "/route"): Kind.ROUTE,
    ("POST", "/register_dp_rank"): Kind.REGISTER_DP_RANK,
    ("POST", "/query_dp_ranks"): Kind.QUERY_DP_RANKS,
    ("GET", "/health"): Kind.HEALTH,
}


@dataclass(frozen=True, slots=True)
class UrlParts:
    """What a URL of the bootstrap protocol names."""

    address: str
    """``host:port`` as the URL has it."""
    host: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Call:
    """One bootstrap call as a caller made it."""

    kind: Kind
    method: str
    url: str
    parts: UrlParts
    json: Any
    timeout: Any
    """As requests takes it: seconds, (connect, read) or ``None``."""

    @property
    def base(self) -> str:
        """The URL without its path."""
        return f"http://{self.parts.address}"


@lru_cache(maxsize=4_096)
def parse_url(url: str) -> UrlParts | None:
    """The parts of ``url``; ``None`` where it is no plain ``http://host:port/path``."""
    try:
        split = urlsplit(url)
        host, port = split.hostname, split.port
    except ValueError:
        return None
    if split.scheme != "http" or not host or port is None or "@" in split.netloc:
        return None
    query: dict[str, str] = {}
    for name, value in parse_qsl(split.query, keep_blank_values=True):
        query.setdefault(name, value)  # the first counts, as on the server
    return UrlParts(split.netloc, host, split.path, query)


def timeout_seconds(timeout: object, default: float) -> float:
    """The longest wait that a timeout of requests allows between two bytes, in seconds."""
    parts = cast("tuple[object, ...]", timeout) if isinstance(timeout, tuple) else (timeout,)
    given = [float(part) for part in parts if isinstance(part, int | float)]
    return max(given) if given else default
