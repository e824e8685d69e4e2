"""The registration rules of design section 4, once for each transport.

Each scenario registers over one transport and looks over both: they share one registry.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bootstrap_grpc.protos.model import Attributes, RankKey, Registration, Shape
from bootstrap_grpc.server.service import ServiceConfig
from support.clock import FakeClock
from support.service import RunningService, running_service
from support.transports import GrpcTransport, HttpTransport, RefusedError, Transport

TP2 = Shape(attn_tp_size=2, page_size=64, kv_cache_dtype="auto")
TP4 = Shape(attn_tp_size=4, page_size=64, kv_cache_dtype="auto")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def running(clock: FakeClock) -> Iterator[RunningService]:
    with running_service(ServiceConfig(grpc_port=0), clock=clock) as running:
        yield running


@pytest.fixture
def grpc(running: RunningService) -> Iterator[GrpcTransport]:
    transport = GrpcTransport(running.grpc)
    yield transport
    transport.close()


@pytest.fixture
def http(running: RunningService) -> HttpTransport:
    return HttpTransport(running.http)


@pytest.fixture(params=["grpc", "http"])
def side(request: pytest.FixtureRequest, grpc: GrpcTransport, http: HttpTransport) -> Transport:
    return {"grpc": grpc, "http": http}[request.param]


@pytest.fixture
def both(grpc: GrpcTransport, http: HttpTransport) -> Both:
    return Both(grpc, http)


class Both:
    """Looks over both transports and insists that they agree."""

    def __init__(self, grpc: GrpcTransport, http: HttpTransport) -> None:
        self._grpc = grpc
        self._http = http

    def is_ready(self) -> bool:
        ready = self._grpc.is_ready()
        assert self._http.is_ready() is ready
        return ready

    def port(self, tp: int) -> int | None:
        """Port of a rank over gRPC. HTTP agrees once the topology is ready (SGLang: 503 before)."""
        route = self._grpc.route(RankKey(tp_rank=tp))
        if self.is_ready():
            assert self._http.route(RankKey(tp_rank=tp)) == route
        else:
            assert self._http.route(RankKey(tp_rank=tp)) is None
        return None if route is None else route[1]


def rank(
    tp: int, port: int, shape: Shape = TP2, ip: str = "10.0.0.1", **more: object
) -> Registration:
    attributes = Attributes(**more)  # type: ignore[arg-type]
    return Registration(RankKey(tp_rank=tp), ip, port, shape, attributes)


def test_rule_1_a_new_rank_with_an_agreeing_shape_is_added(side: Transport, both: Both) -> None:
    side.register(rank(0, 17000))
    assert both.port(0) == 17000
    assert not both.is_ready()
    side.register(rank(1, 17001))
    assert both.is_ready()
    assert both.port(1) == 17001


def test_rule_1_a_rank_outside_the_declared_sizes_is_refused(side: Transport, both: Both) -> None:
    with pytest.raises(RefusedError, match=r"tp_rank.*2.*0 to 1"):
        side.register(rank(2, 17002))
    assert both.port(2) is None


def test_rule_2_and_5_a_repeated_registration_counts_once(side: Transport, both: Both) -> None:
    for _ in range(3):
        side.register(rank(0, 17000))
    assert not both.is_ready()


def test_rule_3_a_rank_is_replaced_in_place_before_the_group_was_ready(
    side: Transport, both: Both
) -> None:
    side.register(rank(0, 17000))
    side.register(rank(0, 17555))
    assert both.port(0) == 17555


def test_rule_3_a_new_address_in_a_ready_group_is_a_restart(side: Transport, both: Both) -> None:
    side.register(rank(0, 17000))
    side.register(rank(1, 17001))
    side.register(rank(0, 17555))
    assert not both.is_ready()
    assert both.port(0) == 17555
    assert both.port(1) is None, "an address from before the restart must not be served"
    side.register(rank(1, 17556))
    assert both.is_ready()
    assert both.port(1) == 17556


def test_rule_3_one_rank_that_rejoined_a_living_group_makes_it_ready_after_the_silence(
    side: Transport, both: Both, clock: FakeClock
) -> None:
    side.register(rank(0, 17000))
    side.register(rank(1, 17001))
    side.register(rank(0, 17555))
    clock.advance(59)
    assert not both.is_ready()
    clock.advance(2)
    assert both.is_ready()
    assert (both.port(0), both.port(1)) == (17555, 17001)


def test_late_put_of_an_old_rank_after_a_new_one_is_refused(side: Transport, both: Both) -> None:
    side.register(rank(0, 17000))
    side.register(rank(1, 17001))
    side.register(rank(0, 17555))
    with pytest.raises(RefusedError, match=r"17000.*replaced"):
        side.register(rank(0, 17000))
    assert both.port(0) == 17555


def test_rule_4_a_disagreeing_shape_is_refused_naming_field_and_both_values(
    side: Transport, both: Both
) -> None:
    side.register(rank(0, 17000))
    other = Shape(attn_tp_size=2, page_size=32, kv_cache_dtype="auto")
    with pytest.raises(RefusedError, match="page_size is 32 and not 64"):
        side.register(rank(1, 17001, other))
    assert both.port(1) is None


def test_rule_4_growth_from_tp2_to_tp4_with_the_new_rank_first(side: Transport, both: Both) -> None:
    side.register(rank(0, 17000))
    side.register(rank(1, 17001))
    side.register(rank(3, 17503, TP4))
    assert both.port(0) is None
    with pytest.raises(RefusedError):
        side.register(rank(1, 17001))
    for tp in (0, 1, 2):
        side.register(rank(tp, 17500 + tp, TP4))
    assert both.is_ready()
    assert [both.port(tp) for tp in range(4)] == [17500, 17501, 17502, 17503]


def test_rule_4_a_group_that_never_was_ready_may_be_replaced_after_a_silence(
    side: Transport, both: Both, clock: FakeClock
) -> None:
    side.register(rank(0, 17000))
    clock.advance(61)
    side.register(rank(0, 17500, TP4))
    assert both.port(0) == 17500


def test_prefill_http_port_may_differ_from_node_to_node(
    side: Transport, both: Both, http: HttpTransport
) -> None:
    side.register(rank(0, 17000, prefill_http_port=30000))
    side.register(rank(1, 17001, ip="10.0.0.2", prefill_http_port=30001))
    assert both.is_ready()
    topology = http.topology()
    assert topology is not None
    assert topology["prefill_http_port"] == 30000, "the one of the lowest rank, on the first node"


@pytest.mark.parametrize("rank_ip", ["", "0.0.0.0", "::", "224.0.0.1", "192.0.2.300", "a b"])
def test_rule_7_an_address_that_nobody_can_dial_is_refused(
    side: Transport, both: Both, rank_ip: str
) -> None:
    with pytest.raises(RefusedError, match="rank_ip"):
        side.register(rank(0, 17000, ip=rank_ip))
    assert both.port(0) is None


@pytest.mark.parametrize("rank_ip", ["127.0.0.1", "localhost", "::1", "[::1]", "::ffff:127.0.0.1"])
def test_rule_7_loopback_is_taken_from_this_host(side: Transport, both: Both, rank_ip: str) -> None:
    side.register(rank(0, 17000, ip=rank_ip))
    assert both.port(0) == 17000


@pytest.mark.parametrize("port", [0, 65536])
def test_rule_8_a_refused_registration_changes_nothing(
    side: Transport, both: Both, running: RunningService, port: int
) -> None:
    side.register(rank(0, 17000))
    before = running.call(running.service.registry.topology)
    with pytest.raises(RefusedError, match=r"rank_port is .*65535"):
        side.register(rank(1, port, TP4))
    assert running.call(running.service.registry.topology) == before


def test_rooms_are_seen_over_both_transports(
    side: Transport, grpc: GrpcTransport, http: HttpTransport
) -> None:
    rooms = {0: 3, 101: 1, 2**63 - 1: 0, 2**64 - 1: 7}
    for room, dp_rank in rooms.items():
        side.register_room(room, dp_rank)
    asked = [*rooms, 999]
    assert grpc.query_rooms(asked) == rooms
    assert http.query_rooms(asked) == rooms


@pytest.mark.parametrize("room", [-1, 2**64])
def test_a_room_outside_64_bits_is_refused(side: Transport, room: int) -> None:
    with pytest.raises(RefusedError, match="room"):
        side.register_room(room, 0)
    with pytest.raises(RefusedError, match="room"):
        side.query_rooms([1, room])


def test_rooms_live_for_their_lifetime_whatever_the_ranks_do(
    side: Transport, both: Both, clock: FakeClock
) -> None:
    side.register_room(7, 1)
    clock.advance(100)
    side.register(rank(0, 17000))
    side.register(rank(1, 17001))
    side.register(rank(0, 17555))  # a restart
    clock.advance(259)
    assert side.query_rooms([7]) == {7: 1}
    clock.advance(2)
    assert side.query_rooms([7]) == {}
