"""TIME-WAIT sockets of this host, as the kernel lists them."""

from __future__ import annotations

from pathlib import Path

__all__ = ["client_time_waits"]

_TIME_WAIT = "06"  # as in include/net/tcp_states.h


def client_time_waits(port: int) -> set[str]:
    """Return the local addresses of the sockets in TIME-WAIT towards ``port``, whoever left them.

    Each keeps a port of its host for a minute: in a shorter run, all of its are there at the end,
    less the few whose port the kernel gave out again (it does on loopback). What is there before
    a server has its first client is none of its: the kernel gave out a port that was a client's.
    """
    wanted = f":{port:04X}"
    found: set[str] = set()
    for table in ("tcp", "tcp6"):  # gRPC uses IPv6 sockets with mapped addresses
        for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            _, local, peer, state, *_ = line.split()
            if state == _TIME_WAIT and peer.endswith(wanted):
                found.add(local)
    return found
