"""What this process knows of one HTTP address of the bootstrap protocol."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from bootstrap_grpc.client.target import Target
from bootstrap_grpc.client.topology_cache import TopologyCache, is_restart
from bootstrap_grpc.compat.session_rooms import RoomAnswers
from bootstrap_grpc.protos.model import Topology, TopologyState

__all__ = ["GRPC_PORT_HEADER", "Greeting", "Peer", "greeting_of"]

GRPC_PORT_HEADER = "Bootstrap-Grpc-Port"
"""Header of every reply of this project's HTTP shim."""

_log = logging.getLogger("bootstrap_grpc.session")


@dataclass(frozen=True, slots=True)
class Greeting:
    """What the headers of an HTTP reply say of its server; empty for a server of SGLang's."""

    grpc_port: int = 0
    server_id: str = ""
    instance_id: str = ""

    def __bool__(self) -> bool:
        return self.grpc_port != 0


def greeting_of(headers: Mapping[str, str]) -> Greeting:
    """Read the headers of a reply, of whatever server."""
    port = headers.get(GRPC_PORT_HEADER, "")
    server_id = headers.get("Bootstrap-Server-Id", "")
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65_535 and server_id):
        return Greeting()
    return Greeting(int(port), server_id, unquote(headers.get("Bootstrap-Instance-Id", "")))


@dataclass(slots=True, eq=False)
class Peer:
    """One address. Its fields are the hub's; ``rooms`` locks itself."""

    address: str
    host: str
    on_restart: Callable[[str], None]
    greeting: Greeting | None = None
    """The newest HTTP reply's; ``None`` before the first."""
    cache: TopologyCache | None = None
    rooms: RoomAnswers = field(default_factory=RoomAnswers)
    instance_id: str = ""
    ready: Topology | None = None
    """The newest READY state, to tell a restart by."""
    used_at: float = 0.0
    grpc_expected_until: float = math.inf
    """Until then no HTTP connection is kept: the next calls go over gRPC, or so it is hoped."""
    probe_at: float | None = None
    """When to look by HTTP what became of it; ``None`` while there is nothing to find out."""
    probe_delay: float = 0.0

    @property
    def grpc(self) -> str:
        """The gRPC address that the newest HTTP reply named."""
        return str(Target(self.host, self.greeting.grpc_port)) if self.greeting else ""

    def greet(self, greeting: Greeting) -> None:
        """An HTTP reply came."""
        before, self.greeting = self.greeting, greeting
        if before is not None and bool(before) != bool(greeting):
            _log.info(
                "%s: %s",
                self.address,
                f"gRPC on port {greeting.grpc_port}" if greeting else "speaks HTTP only now",
            )
            # The one server runs inside the engine, the other beside it: it is another start.
            self.instance_id, self.ready = greeting.instance_id, None
            self.on_restart(self.address)
        else:
            self._meet(greeting.instance_id)

    def receive(self, topology: Topology) -> None:
        """A state of the topology came, over gRPC."""
        if self._meet(topology.instance_id):
            return
        if topology.state is not TopologyState.READY:
            return
        before, self.ready = self.ready, topology
        if before is not None and is_restart(before, topology):
            self.on_restart(self.address)

    def _meet(self, instance_id: str) -> bool:
        """Whether ``instance_id`` tells that the engine started anew."""
        if not instance_id or instance_id == self.instance_id:
            return False
        known, self.instance_id = self.instance_id, instance_id
        if not known:
            return False
        self.ready = None
        self.on_restart(self.address)
        return True
