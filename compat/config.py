"""Configuration of the HTTP shim."""

from __future__ import annotations

from dataclasses import dataclass, field

from bootstrap_grpc.compat.dialects.table import KNOWN_KEYS, OPTIONAL_KEYS
from bootstrap_grpc.protos.model import MAX_RANKS

__all__ = ["HttpConfig"]

_SECONDS = (
    "body_timeout",
    "first_request_timeout",
    "hold",
    "keepalive_timeout",
    "learned_for",
    "linger",
    "quiet",
)


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Where the shim listens, what its topology replies carry, and its limits.

    Raises ``ValueError``, naming the field, for a value that cannot work.
    """

    host: str = "127.0.0.1"
    """Address or host name to bind. ``0.0.0.0`` is every IPv4 address, ``::`` every address of
    either family."""
    port: int = 8998
    """Port to bind, SGLang's default; 0 picks a free one."""
    omit: frozenset[str] = field(default_factory=frozenset[str])
    """Optional keys that a topology reply never has. Without ``prefill_http_port`` the decodes
    of SGLang 0.5.10 to 0.5.15 read it too."""
    pass_keys: frozenset[str] = field(default_factory=frozenset[str])
    """Keys unknown to this version that a topology reply passes on, where every rank registered
    with the same value. A decode that does not know a key rejects the topology."""
    hold: float = 300.0
    """Seconds for which a request of a decode that dies of any answer but 200 (SGLang 0.4.5 to
    0.4.10.post2, NIXL to 0.5.2) waits for READY; then it is redirected to itself."""
    max_holds: int = 1_024
    """Requests that may wait at a time; another one is answered with 503."""
    expected_ranks: int | None = None
    """How many ranks the prefill server has, for SGLang 0.4.5 and NIXL to 0.4.6.post5, whose
    registrations do not say. ``None`` takes those that came once ``quiet`` has passed."""
    quiet: float = 10.0
    """Seconds without a registration after which the ranks of one start have all registered;
    shorter than any start of an engine."""
    metadata: bool = False
    """Whether ``/metadata`` is served: a bounded store that anybody may write to."""
    max_body_bytes: int = 16 * 1024 * 1024
    """Longest request body, after decompression; a longer one is answered with 413."""
    body_timeout: float = 30.0
    """Seconds that a client may take to send a body; then 408."""
    first_request_timeout: float = 30.0
    """Seconds that a client may take to send the head of its first request; then the connection is
    closed."""
    keepalive_timeout: float = 3630.0
    """Seconds without a request after which a kept connection is closed: aiohttp's newest
    default, longer than the hour of a usual proxy."""
    linger: float = 2.0
    """Seconds without a byte from the peer for which a connection that was closed for writing
    waits for the peer's close."""
    learned_for: float = 65.0
    """Seconds for which a peer that does not reuse its connections has them closed for it: longer
    than Linux keeps a TIME-WAIT, which is 60 s and up to half a second more."""
    max_peers: int = 4096
    """Peers whose habit of closing is remembered; the one seen longest ago goes first."""

    def __post_init__(self) -> None:
        if not self.host:
            raise ValueError("host is empty, must be an address to bind")
        if not 0 <= self.port <= 65_535:
            raise ValueError(f"port is {self.port}, must be from 0 to 65535")
        for name in ("max_body_bytes", "max_peers", "max_holds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least 1")
        if self.expected_ranks is not None and not 1 <= self.expected_ranks <= MAX_RANKS:
            raise ValueError(f"expected_ranks is {self.expected_ranks}, must be 1 to {MAX_RANKS}")
        for name in _SECONDS:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must be more than 0 seconds")
        if unknown := self.omit - OPTIONAL_KEYS:
            raise ValueError(
                f"omit names {', '.join(sorted(unknown))}, "
                f"may name {', '.join(sorted(OPTIONAL_KEYS))}"
            )
        if known := self.pass_keys & KNOWN_KEYS:
            raise ValueError(f"pass_keys names {', '.join(sorted(known))}, which is no unknown key")
