"""Two network namespaces joined by veth: a server's host and a client's host on one machine."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

__all__ = ["NamespacePair", "NamespacesUnavailableError", "Path4", "SocketCount", "count_sockets"]

_LINK = "veth0"
_FIRST_PORT = 20000


class NamespacesUnavailableError(Exception):
    """This process may not build network namespaces. The text says why."""


@dataclass(frozen=True, slots=True)
class Path4:
    """One way from the client's host to the server's, with addresses of its own at both ends.

    A client that connects to ``server`` does so from ``client``, without having to bind: the
    route says so.
    """

    server: str
    client: str


@dataclass(frozen=True, slots=True)
class SocketCount:
    """TCP sockets of the client's host towards one server address."""

    time_wait: int = 0
    established: int = 0


class NamespacePair:
    """Builds the two namespaces on entry and removes them on exit, whatever happens between.

    Names are unique, so that several runs do not meet. IPv4 only.

    :param ports: how many ephemeral ports the client's host has.
    :param paths: how many pairs of addresses there are.
    :raises NamespacesUnavailableError: on entry: no root, no ``ip`` command, or no permission.
    """

    def __init__(self, *, ports: int = 200, paths: int = 1) -> None:
        token = secrets.token_hex(4)
        self._server, self._client = f"bootstrap-{token}-s", f"bootstrap-{token}-c"
        self._ports = ports
        self.paths = [Path4(f"10.203.0.{n}", f"10.203.0.{100 + n}") for n in range(1, paths + 1)]

    @property
    def on_server(self) -> tuple[str, ...]:
        """Command prefix that runs a program on the server's host."""
        return ("ip", "netns", "exec", self._server)

    @property
    def on_client(self) -> tuple[str, ...]:
        """Command prefix that runs a program on the client's host."""
        return ("ip", "netns", "exec", self._client)

    def __enter__(self) -> NamespacePair:
        if os.geteuid() != 0:
            raise NamespacesUnavailableError("network namespaces need root")
        if shutil.which("ip") is None:
            raise NamespacesUnavailableError("the ip command is missing (Debian: iproute2)")
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def _build(self) -> None:
        for name in (self._server, self._client):
            _ip("netns", "add", name)
        link = ("link", "add", _LINK, "type", "veth", "peer", "name", _LINK)
        _ip("-n", self._server, *link, "netns", self._client)
        for name, side in ((self._server, "server"), (self._client, "client")):
            for path in self.paths:
                _ip("-n", name, "addr", "add", f"{getattr(path, side)}/24", "dev", _LINK)
            for device in ("lo", _LINK):
                _ip("-n", name, "link", "set", device, "up")
        for path in self.paths:
            route = ("route", "add", f"{path.server}/32", "dev", _LINK, "src", path.client)
            _ip("-n", self._client, *route)
        span = f"{_FIRST_PORT} {_FIRST_PORT + self._ports - 1}"
        setting = "/proc/sys/net/ipv4/ip_local_port_range"
        _run(*self.on_client, "sh", "-c", f"echo {span} > {setting}")

    def _remove(self) -> None:
        for name in (self._client, self._server):  # the link goes with either
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NamespacesUnavailableError(f"{' '.join(command)}: {done.stderr.strip()}")


_MAPPED = "0000000000000000FFFF0000"  # ::ffff:0:0/96, as the kernel prints it
_ESTABLISHED, _TIME_WAIT = "01", "06"  # as in include/net/tcp_states.h


def count_sockets(pid: int, server: str) -> SocketCount:
    """Count the sockets towards ``server`` on the host (network namespace) of process ``pid``."""
    remote = "".join(f"{int(part):02X}" for part in reversed(server.split(".")))
    # By local address: a table that changes while it is read may show an entry twice.
    states: dict[str, str] = {}
    # gRPC uses IPv6 sockets with mapped addresses.
    for table, prefix in (("tcp", ""), ("tcp6", _MAPPED)):
        text = Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii")
        for line in text.splitlines()[1:]:
            _, local, peer, state, *_ = line.split()
            if peer.startswith(prefix + remote):
                states[local] = state
    found = list(states.values())
    return SocketCount(found.count(_TIME_WAIT), found.count(_ESTABLISHED))
