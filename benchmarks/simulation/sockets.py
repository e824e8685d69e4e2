"""Connections to one port of this host, as the kernel lists them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["PortUse", "port_use"]

_LISTEN, _TIME_WAIT = "0A", "06"  # as in include/net/tcp_states.h


@dataclass(frozen=True, slots=True)
class PortUse:
    """What is left of the connections to a server on loopback."""

    time_wait: int
    """Sockets in TIME-WAIT at the clients' end, each of which keeps a port from its host."""
    connections: int
    """Client ports that either end still names. A connection is named for a minute after its end,
    so that these are all of a shorter run, less the few whose port the kernel gave out twice."""


def port_use(port: int) -> PortUse:
    """Count the connections to ``port``, those of other processes included."""
    wanted = f"{port:04X}"
    time_wait: set[str] = set()
    clients: set[str] = set()
    for table in ("tcp", "tcp6"):  # gRPC uses IPv6 sockets with mapped addresses
        for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            _, local, peer, state, *_ = line.split()
            local_port, peer_port = local[-4:], peer[-4:]
            if peer_port == wanted:
                clients.add(local_port)
                if state == _TIME_WAIT:
                    time_wait.add(local_port)
            elif local_port == wanted and state != _LISTEN:
                clients.add(peer_port)
    return PortUse(len(time_wait), len(clients))
