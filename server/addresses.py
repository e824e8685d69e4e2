"""Which ``rank_ip`` a peer can dial (registration rule 7). Names are never resolved."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from bootstrap_grpc.protos.errors import BootstrapError

__all__ = ["Peer", "canonical", "check_rank_ip"]

# RFC 1123 host name. Its last label must hold a letter other than in a number's prefix:
# "192.0.2.300", "127.1" and "0x7f000001" are misspelt addresses that resolvers accept.
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}\Z)(?:{_LABEL}\.)*({_LABEL})\.?\Z")
_NUMBER = re.compile(r"(?:\d+|0[xX][0-9A-Fa-f]*)\Z")


@dataclass(frozen=True, slots=True)
class Peer:
    """Who registers: the address that the connection came from, as text for messages."""

    address: str
    on_this_host: bool


def canonical(rank_ip: str) -> str:
    """One spelling for each address, to tell whether two registrations name the same."""
    text = _bare(rank_ip)
    try:
        return str(_unmapped(ip_address(text)))
    except ValueError:
        return text.lower().rstrip(".")


def check_rank_ip(rank_ip: str, peer: Peer) -> None:
    """Raise INVALID_FIELD where peers cannot dial ``rank_ip``.

    Empty, wildcard, multicast and misspelt addresses never pass; loopback (also ``localhost``,
    ``::ffff:127.0.0.1`` and brackets around either) passes only from a peer on this host.
    """
    wanted = "an address that peers can dial"
    text = _bare(rank_ip)
    try:
        address = _unmapped(ip_address(text))
    except ValueError:
        match = _HOST_NAME.match(text)
        if match is None or _NUMBER.match(match[1]):
            raise BootstrapError.invalid(
                "rank_ip", rank_ip, f"{wanted}: an IP address or a host name"
            ) from None
        loopback = _names_loopback(canonical(text))
    else:
        if address.is_unspecified or (address.version == 4 and str(address).startswith("0.")):
            raise BootstrapError.invalid("rank_ip", rank_ip, f"{wanted}, not a wildcard")
        if address.is_multicast or str(address) == "255.255.255.255":
            raise BootstrapError.invalid("rank_ip", rank_ip, f"{wanted}, not multicast")
        loopback = address.is_loopback
    if loopback and not peer.on_this_host:
        raise BootstrapError.invalid(
            "rank_ip",
            rank_ip,
            f"{wanted}: loopback may be registered only from this host, not from {peer.address}",
        )


def _names_loopback(name: str) -> bool:
    """RFC 6761's ``localhost``, and what /etc/hosts of Debian and Fedora call loopback."""
    labels = name.split(".")
    return (
        labels[-1] == "localhost"
        or labels[0] == "localhost"
        or name in ("ip6-localhost", "ip6-loopback", "localhost4", "localhost6")
    )


def _bare(text: str) -> str:
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def _unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped
