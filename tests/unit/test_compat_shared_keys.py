from __future__ import annotations

import pytest

from bootstrap_grpc.compat.shared_keys import SharedKeys
from bootstrap_grpc.protos.errors import BootstrapError, ErrorCode
from bootstrap_grpc.protos.model import RankKey, Registration, Shape, TopologyState
from bootstrap_grpc.server.registry import Peer, RankRegistry, RegistryConfig
from support.clock import FakeClock

PEER = Peer("10.0.0.9", on_this_host=False)
TP2 = Shape(attn_tp_size=2, page_size=64)


class Group:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.registry = RankRegistry(RegistryConfig("s"), clock=self.clock, wall_clock=lambda: 0.0)
        self.shared = SharedKeys(self.registry, quiet=10.0, clock=self.clock)

    def put(self, tp: int, port: int) -> None:
        self.shared.register(Registration(RankKey(tp_rank=tp), "10.0.0.1", port, TP2), PEER)

    def port(self, tp: int) -> int:
        return self.registry.route(RankKey(tp_rank=tp)).rank_port

    @property
    def generation(self) -> int:
        return self.registry.topology().generation

    @property
    def ready(self) -> bool:
        return self.registry.state is TopologyState.READY


@pytest.fixture
def group() -> Group:
    """Two keys of two context-parallel ranks each, all registered within seconds."""
    group = Group()
    for tp, port in ((0, 100), (0, 110), (1, 101), (1, 111)):
        group.put(tp, port)
        group.clock.advance(3)
    assert (group.generation, group.ready) == (1, True)
    return group


def test_turns_on_one_key_are_no_restart_however_late(group: Group) -> None:
    for port in (100, 110, 100, 110):
        group.clock.advance(3_600)
        group.put(0, port)
        assert (group.port(0), group.generation, group.ready) == (port, 1, True)


def test_a_restart_of_all_is_one_restart(group: Group) -> None:
    group.clock.advance(60)
    for tp, port in ((0, 200), (1, 201), (1, 211), (0, 210)):
        group.put(tp, port)
        group.clock.advance(3)
    assert (group.generation, group.ready) == (2, True)
    assert (group.port(0), group.port(1)) == (210, 211)


def test_what_is_repeated_from_before_the_restart_is_late(group: Group) -> None:
    group.clock.advance(60)
    group.put(0, 200)
    with pytest.raises(BootstrapError) as caught:
        group.put(0, 110)
    assert caught.value.code is ErrorCode.ADDRESS_SUPERSEDED
    assert group.port(0) == 200


def test_a_restart_within_the_burst_is_taken_for_a_sibling(group: Group) -> None:
    """The price of the rule, and what SGLang's own server does."""
    group.put(0, 300)
    assert (group.port(0), group.generation, group.ready) == (300, 1, True)


def test_refused_registrations_leave_no_trace(group: Group) -> None:
    group.clock.advance(60)
    for tp in (2, 3):
        with pytest.raises(BootstrapError):
            group.put(tp, 1)
    group.put(0, 200)
    assert group.generation == 2


def test_addresses_are_bounded(group: Group) -> None:
    for port in range(1_000, 2_000):
        group.put(0, port)
    assert group.port(0) == 1_999
    (claims,) = [claim for key, claim in group.shared._claims.items() if key.tp_rank == 0]
    assert len(claims.owners) == 256
