"""Short ways to say who registers what, and a registry with a clock for tests to turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest

from bootstrap_grpc.protos.errors import BootstrapError, ErrorCode
from bootstrap_grpc.protos.model import (
    Attributes,
    Deregistration,
    RankKey,
    Registered,
    Registration,
    Route,
    Shape,
    Topology,
)
from bootstrap_grpc.server.registry import Hold, Peer, RankRegistry, RegistryConfig
from support.clock import FakeClock

__all__ = [
    "LOCAL",
    "REMOTE",
    "TP2",
    "TP4",
    "EndedHolds",
    "World",
    "key",
    "rank",
    "refused",
]

REMOTE = Peer("198.51.100.7", on_this_host=False)
LOCAL = Peer("127.0.0.1", on_this_host=True)

TP2 = Shape(attn_tp_size=2, page_size=64)
TP4 = Shape(attn_tp_size=4, page_size=64)


def key(tp: int, *, dp: int = 0, cp: int = 0, pp: int = 0) -> RankKey:
    return RankKey(dp, cp, tp, pp)


def rank(
    tp: int,
    port: int,
    *,
    ip: str = "10.0.0.1",
    shape: Shape = TP2,
    owner: str = "",
    instance: str = "",
    attributes: Attributes | None = None,
) -> Registration:
    """What rank ``tp`` says of itself; without ``owner`` it speaks HTTP."""
    return Registration(
        key(tp), ip, port, shape, attributes or Attributes(), owner, instance_id=instance
    )


@contextmanager
def refused(code: ErrorCode) -> Iterator[pytest.ExceptionInfo[BootstrapError]]:
    """A ``pytest.raises`` for one code; ``.value`` is the error."""
    with pytest.raises(BootstrapError) as caught:
        yield caught
    assert caught.value.code is code, f"{caught.value.code!r}: {caught.value}"


@dataclass
class EndedHolds:
    """What ``on_end`` was told, in order: (label, code)."""

    told: list[tuple[str, ErrorCode]] = field(default_factory=list)

    def __call__(self, label: str) -> Callable[[BootstrapError], None]:
        return lambda error: self.told.append((label, error.code))

    def codes(self, label: str) -> list[ErrorCode]:
        return [code for told, code in self.told if told == label]


class World:
    """A registry with its clock, as a test sees it. Defaults: grace 10 s, settle 60 s."""

    def __init__(
        self, *, instance_id: str = "", hold_grace: float = 10.0, settle: float = 60.0
    ) -> None:
        self.clock = FakeClock()
        self.wall = FakeClock(1_700_000_000.0)
        self.ended = EndedHolds()
        self.registry = RankRegistry(
            RegistryConfig("server-1", instance_id, hold_grace=hold_grace, settle=settle),
            clock=self.clock,
            wall_clock=self.wall,
        )

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.wall.advance(seconds)

    def put(self, registration: Registration, peer: Peer = REMOTE) -> Registered:
        return self.registry.register(registration, peer)

    def put_all(self, registrations: Iterable[Registration]) -> None:
        for registration in registrations:
            self.put(registration)

    def hold(self, registration: Registration, label: str = "", peer: Peer = REMOTE) -> Hold:
        label = label or f"{registration.owner}@{registration.rank_port}"
        return self.registry.hold(registration, peer, self.ended(label))

    def leave(self, registration: Registration) -> Registered:
        return self.registry.deregister(
            Deregistration(
                registration.key, registration.rank_ip, registration.rank_port, registration.owner
            )
        )

    @property
    def topology(self) -> Topology:
        return self.registry.topology()

    def ports(self) -> dict[int, int]:
        """tp rank to port of every rank that is served; checks ``route`` on the way."""
        served = {route.key.tp_rank: route.rank_port for route in self.topology.routes}
        for tp, port in served.items():
            assert self.route(tp).rank_port == port
        assert self.registry.registered == len(served)
        return served

    def route(self, tp: int) -> Route:
        return self.registry.route(key(tp))

    def refused_codes(self) -> dict[int, ErrorCode]:
        return {refusal.key.tp_rank: refusal.code for refusal in self.topology.refused}

    def undated(self) -> Topology:
        """The topology without what a refused call alone may change: the list of refusals."""
        return replace(self.topology, refused=(), version=0)
