"""Where a bootstrap service is: one parser for every spelling of an address."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

__all__ = ["DEFAULT_PORT", "Target", "parse_target"]

DEFAULT_PORT = 18_998
"""gRPC port of ``bootstrap-grpc serve``."""

# What a server binds to mean "every address" is no address to dial (operator case 6a).
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - rewritten, never bound

_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?\Z")


@dataclass(frozen=True, slots=True)
class Target:
    """A host and a port to dial."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def grpc_target(self) -> str:
        """The spelling that gRPC takes: no resolver is asked where the host is an address."""
        if ":" in self.host:
            # A zone's percent sign must be escaped in gRPC's URI form (RFC 6874).
            return f"ipv6:[{self.host.replace('%', '%25')}]:{self.port}"
        try:
            ip_address(self.host)
        except ValueError:
            return f"dns:///{self.host}:{self.port}"
        return f"ipv4:{self.host}:{self.port}"


def parse_target(text: str, default_port: int = DEFAULT_PORT) -> Target:
    """``host``, ``host:port``, ``[v6]``, ``[v6]:port`` or ``v6``; a wildcard means loopback.

    Raises
    ------
    ValueError
        For anything else, naming what is wrong.
    """
    stripped = text.strip()
    if "//" in stripped:
        raise ValueError(f"address is {text!r}, must be host:port without a scheme")
    host, port_text = _split(stripped, text)
    port = default_port
    if port_text is not None:
        if not (port_text.isascii() and port_text.isdigit() and 1 <= int(port_text[:6]) <= 65_535):
            raise ValueError(f"port of address {text!r} is {port_text!r}, must be from 1 to 65535")
        port = int(port_text)
    host = _WILDCARDS.get(host, host)
    if ":" in host:
        try:
            IPv6Address(host)
        except ValueError as error:
            raise ValueError(f"address is {text!r}: {error}") from None
    elif not _HOST_NAME.match(host):
        raise ValueError(
            f"host of address {text!r} is {host!r}, must be a host name or an IP address"
        )
    return Target(host, port)


def _split(stripped: str, text: str) -> tuple[str, str | None]:
    if stripped.startswith("["):
        host, bracket, rest = stripped[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"address is {text!r}, must be [v6]:port")
        if ":" not in host:
            raise ValueError(f"address is {text!r}: brackets are for IPv6 addresses")
        return host, rest[1:] if rest else None
    if stripped.count(":") > 1:
        return stripped, None
    host, colon, port = stripped.partition(":")
    return host, port if colon else None
