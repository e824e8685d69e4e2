"""Binding the listening sockets."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import Any

from bootstrap_grpc.server.service import BindError

__all__ = ["bind"]


async def bind(host: str, port: int) -> list[socket.socket]:
    """A bound socket for each address of ``host``, all on one port.

    Port 0 picks a free one. Raises ``BindError`` naming the address; then nothing stays bound.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise BindError("HTTP", host, port, error.strerror or str(error)) from error
    sockets: list[socket.socket] = []
    refused: OSError | None = None
    # A host name may list one address twice.
    for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
        chosen = sockets[0].getsockname()[1] if sockets else port
        try:
            sockets.append(_bind(family, (address[0], chosen, *address[2:])))
        except OSError as error:
            refused = error
            if error.errno not in _NO_SUCH_FAMILY:
                break
    if sockets and (refused is None or refused.errno in _NO_SUCH_FAMILY):
        return sockets
    for sock in sockets:
        sock.close()
    reason = os.strerror(refused.errno) if refused and refused.errno else str(refused)
    raise BindError("HTTP", host, port, reason)


# "localhost" names ::1 also on a host without IPv6.
_NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


def _bind(family: socket.AddressFamily, address: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)  # noqa: FBT003 - the socket API's own signature
        # A restart binds although closed connections of the old process are still in TIME-WAIT;
        # a port that is served is refused all the same. SO_REUSEPORT, which would share it,
        # stays off.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # "::" takes both families, as gRPC does; any other address has one.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] != "::"))
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock
