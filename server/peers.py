"""Whether a peer runs on this host (registration rule 7)."""

from __future__ import annotations

import socket
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import unquote

from bootstrap_grpc.server.addresses import Peer, canonical

__all__ = ["peer_from_grpc", "peer_from_ip"]


def peer_from_grpc(peer: str) -> Peer:
    """The peer that ``ServicerContext.peer()`` names, such as ``ipv4:192.0.2.7:5000``."""
    scheme, _, rest = peer.partition(":")
    if scheme in ("ipv4", "ipv6"):
        # IPv6 comes as "ipv6:%5Bfe80::1%25eth0%5D:5000" or with plain brackets.
        return peer_from_ip(unquote(rest).rpartition(":")[0])
    # A Unix socket or an in-process channel reaches no further than this host.
    return Peer(peer, on_this_host=scheme in ("unix", "unix-abstract", "inproc"))


@lru_cache(maxsize=4_096)
def peer_from_ip(ip: str) -> Peer:
    """The peer with the address ``ip``. Cached: a host rarely loses an address."""
    text = canonical(ip)
    return Peer(text, on_this_host=_is_local(text))


def _is_local(ip: str) -> bool:
    bare, _, _ = ip.partition("%")
    try:
        address = ip_address(bare)
    except ValueError:
        return False
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    # The kernel binds a socket only to an address of its own (without ip_nonlocal_bind).
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((bare, 0))
        except OSError:
            return False
    return True
