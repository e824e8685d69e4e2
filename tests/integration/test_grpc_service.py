"""The gRPC service as generated stubs see it: errors, watches, health, limits."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import grpc
import pytest
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos import bootstrap_pb2_grpc as rpc
from bootstrap_grpc.server.service import BindError, BootstrapService, ServiceConfig
from support.clock import FakeClock
from support.service import RunningService, eventually, running_service

SERVICE = "/bootstrap.v1.BootstrapService/"
TP4 = pb.Shape(attn_tp_size=4, attn_cp_size=1, dp_size=1, pp_size=1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def running(clock: FakeClock) -> Iterator[RunningService]:
    with running_service(
        ServiceConfig(grpc_port=0, instance_id="engine-1"), clock=clock
    ) as running:
        yield running


@pytest.fixture
def channel(running: RunningService) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(running.grpc) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.Channel) -> rpc.BootstrapServiceStub:
    return rpc.BootstrapServiceStub(channel)


def rank(tp: int, port: int, **more: object) -> pb.RegisterRankRequest:
    request = pb.RegisterRankRequest(
        key=pb.RankKey(tp_rank=tp), rank_ip="10.0.0.1", rank_port=port, shape=TP4, owner="me"
    )
    for name, value in more.items():
        setattr(request, name, value)
    return request


def detail(error: grpc.RpcError) -> pb.ErrorDetail:
    metadata = dict(error.trailing_metadata())  # type: ignore[attr-defined]
    return pb.ErrorDetail.FromString(metadata["bootstrap-error-bin"])


# --- ranks and topology --------------------------------------------------------------------


def test_registration_answers_who_serves_and_what_changed(stub: rpc.BootstrapServiceStub) -> None:
    first = stub.RegisterRank(rank(0, 17000))
    assert first.instance_id == "engine-1"
    assert len(first.server_id) >= 16
    again = stub.RegisterRank(rank(0, 17000))
    assert again == first, "a repeated registration changes nothing"
    second = stub.RegisterRank(rank(1, 17001))
    assert (second.generation, second.version) == (1, first.version + 1)


def test_topology_tells_states_counts_and_missing_ranks(stub: rpc.BootstrapServiceStub) -> None:
    empty = stub.GetTopology(pb.GetTopologyRequest()).topology
    assert empty.state == pb.TOPOLOGY_STATE_EMPTY
    assert (empty.expected, empty.generation) == (0, 0)
    assert not empty.HasField("shape")
    stub.RegisterRank(rank(2, 17002))
    partial = stub.GetTopology(pb.GetTopologyRequest()).topology
    assert partial.state == pb.TOPOLOGY_STATE_PARTIAL
    assert (partial.registered, partial.expected, partial.missing_total) == (1, 4, 3)
    assert [key.tp_rank for key in partial.missing] == [0, 1, 3]
    for tp in (0, 1, 3):
        stub.RegisterRank(rank(tp, 17000 + tp))
    ready = stub.GetTopology(pb.GetTopologyRequest()).topology
    assert ready.state == pb.TOPOLOGY_STATE_READY
    assert [route.rank_port for route in ready.routes] == [17000, 17001, 17002, 17003]
    assert ready.shape == TP4


def test_engine_keys_that_this_version_does_not_know_come_back_verbatim(
    stub: rpc.BootstrapServiceStub,
) -> None:
    request = rank(0, 17000)
    request.attributes.prefill_http_port = 30000
    request.attributes.agent_name = "nixl-7"
    request.attributes.extra_json["future_key"] = '{"b": 1.50, "a": [9007199254740993]}'
    stub.RegisterRank(request)
    route = stub.GetRoute(pb.GetRouteRequest(key=pb.RankKey())).route
    assert route.attributes == request.attributes


def test_only_the_owner_at_its_address_may_deregister(stub: rpc.BootstrapServiceStub) -> None:
    stub.RegisterRank(rank(0, 17000))
    right = pb.DeregisterRankRequest(
        key=pb.RankKey(), rank_ip="10.0.0.1", rank_port=17000, owner="me"
    )
    for name, value in [("owner", "you"), ("rank_port", 17001), ("rank_ip", "10.0.0.2")]:
        wrong = pb.DeregisterRankRequest()
        wrong.CopyFrom(right)
        setattr(wrong, name, value)
        with pytest.raises(grpc.RpcError) as refused:
            stub.DeregisterRank(wrong)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION  # type: ignore[attr-defined]
    stub.DeregisterRank(right)
    with pytest.raises(grpc.RpcError) as refused:
        stub.DeregisterRank(right)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION  # type: ignore[attr-defined]


# --- watches ----------------------------------------------------------------------------------


def test_a_watch_shows_counts_while_partial_and_routes_from_ready_on(
    stub: rpc.BootstrapServiceStub,
) -> None:
    watch = stub.WatchTopology(pb.WatchTopologyRequest(), timeout=30)
    assert next(watch).topology.state == pb.TOPOLOGY_STATE_EMPTY
    stub.RegisterRank(rank(0, 17000))
    partial = next(watch).topology
    assert (partial.state, partial.registered) == (pb.TOPOLOGY_STATE_PARTIAL, 1)
    assert not partial.routes
    for tp in (1, 2, 3):
        stub.RegisterRank(rank(tp, 17000 + tp))
    states = []
    while not states or states[-1].state != pb.TOPOLOGY_STATE_READY:
        states.append(next(watch).topology)
    assert len(states) <= 2, "three registrations within a moment are no three messages"
    assert [route.rank_port for route in states[-1].routes] == [17000, 17001, 17002, 17003]
    watch.cancel()


def test_a_watch_sees_a_restart_as_partial_and_never_an_old_route(
    stub: rpc.BootstrapServiceStub,
) -> None:
    for tp in range(4):
        stub.RegisterRank(rank(tp, 17000 + tp))
    watch = stub.WatchTopology(pb.WatchTopologyRequest(), timeout=30)
    assert next(watch).topology.generation == 1
    for tp in range(4):
        stub.RegisterRank(rank(tp, 17500 + tp, owner="successor"))
    last = next(watch).topology
    while last.state != pb.TOPOLOGY_STATE_READY:
        assert not last.routes
        last = next(watch).topology
    assert last.generation == 2
    assert {route.rank_port for route in last.routes} == {17500, 17501, 17502, 17503}
    watch.cancel()


def test_versions_of_a_watch_only_rise(stub: rpc.BootstrapServiceStub) -> None:
    for tp in range(4):
        stub.RegisterRank(rank(tp, 17000 + tp))
    watch = stub.WatchTopology(pb.WatchTopologyRequest(), timeout=30)
    versions = [next(watch).topology.version]
    for port in (18000, 18001, 18002):  # the owner moves its rank: READY throughout
        stub.RegisterRank(rank(0, port))
        topology = next(watch).topology
        assert topology.state == pb.TOPOLOGY_STATE_READY
        assert topology.routes[0].rank_port == port
        versions.append(topology.version)
    assert versions == sorted(set(versions))
    watch.cancel()


def test_watches_that_end_leave_nothing_behind(
    running: RunningService, stub: rpc.BootstrapServiceStub
) -> None:
    watches = [stub.WatchTopology(pb.WatchTopologyRequest(), timeout=30) for _ in range(50)]
    for watch in watches:
        next(watch)
    for watch in watches:
        watch.cancel()
    stub.RegisterRank(rank(0, 17000))
    assert stub.GetTopology(pb.GetTopologyRequest()).topology.registered == 1


# --- health ------------------------------------------------------------------------------------


def test_health_is_serving_until_the_drain(
    running: RunningService, channel: grpc.Channel, stub: rpc.BootstrapServiceStub
) -> None:
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check", StringValue.SerializeToString, Int32Value.FromString
    )
    for name in ("", "bootstrap.v1.BootstrapService"):
        assert check(StringValue(value=name)).value == 1
    with pytest.raises(grpc.RpcError) as unknown:
        check(StringValue(value="nothing"))
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND  # type: ignore[attr-defined]
    watch = channel.unary_stream(
        "/grpc.health.v1.Health/Watch", StringValue.SerializeToString, Int32Value.FromString
    )(StringValue(), timeout=30)
    assert next(watch).value == 1
    topology = stub.WatchTopology(pb.WatchTopologyRequest(), timeout=30)
    next(topology)
    running.run(running.service.drain(5))
    assert next(watch).value == 2, "NOT_SERVING is the last that a watcher hears"
    with pytest.raises(grpc.RpcError) as ended:
        next(topology)
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
    assert "shuts down" in ended.value.details()  # type: ignore[attr-defined]


def test_a_fault_of_a_background_task_turns_health(
    running: RunningService, channel: grpc.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("planted")

    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check", StringValue.SerializeToString, Int32Value.FromString
    )
    running.call(setattr, running.service.registry, "advance", fail)
    eventually(lambda: check(StringValue()).value == 2, "health turns NOT_SERVING")
    assert "planted" in repr(running.service.failure.result())
    assert "timekeeper failed" in caplog.text


# --- refusals --------------------------------------------------------------------------------


def test_a_refusal_carries_code_and_fields_for_programs(stub: rpc.BootstrapServiceStub) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        stub.RegisterRank(rank(9, 17000))
    error = refused.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    assert detail(error).code == pb.ERROR_CODE_INVALID_FIELD
    assert [(f.field, f.value) for f in detail(error).fields] == [("key.tp_rank", "9")]
    assert detail(error).message == error.details()  # type: ignore[attr-defined]


def test_another_engines_rank_is_refused_by_instance(stub: rpc.BootstrapServiceStub) -> None:
    with pytest.raises(grpc.RpcError, match="engine-0") as refused:
        stub.RegisterRank(rank(0, 17000, instance_id="engine-0"))
    assert detail(refused.value).code == pb.ERROR_CODE_INSTANCE_MISMATCH
    stub.RegisterRank(rank(0, 17000, instance_id="engine-1"))


def test_batches_of_unequal_length_and_of_too_many_rooms_are_refused_whole(
    stub: rpc.BootstrapServiceStub,
) -> None:
    with pytest.raises(grpc.RpcError) as unequal:
        stub.RegisterDpRanks(pb.RegisterDpRanksRequest(rooms=[1, 2], dp_ranks=[1]))
    assert unequal.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    many = pb.RegisterDpRanksRequest(rooms=range(65_537), dp_ranks=[0] * 65_537)
    with pytest.raises(grpc.RpcError) as limit:
        stub.RegisterDpRanks(many)
    assert limit.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
    assert "65,536" in limit.value.details()  # type: ignore[attr-defined]
    with pytest.raises(grpc.RpcError):
        stub.QueryDpRanks(pb.QueryDpRanksRequest(rooms=range(65_537)))
    assert not stub.QueryDpRanks(pb.QueryDpRanksRequest(rooms=[1, 2])).rooms
    most = stub.QueryDpRanks(pb.QueryDpRanksRequest(rooms=range(65_536)))
    assert not most.rooms


def test_a_fault_tells_the_peer_nothing_and_the_log_everything(
    running: RunningService, stub: rpc.BootstrapServiceStub, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_args: object) -> None:
        raise RuntimeError("the secret of the service")

    running.call(setattr, running.service.registry, "route", fail)
    with pytest.raises(grpc.RpcError) as fault:
        stub.GetRoute(pb.GetRouteRequest(key=pb.RankKey()))
    assert fault.value.code() is grpc.StatusCode.INTERNAL  # type: ignore[attr-defined]
    assert "secret" not in fault.value.details()  # type: ignore[attr-defined]
    assert "secret" in caplog.text


# --- hostile input -----------------------------------------------------------------------------


@pytest.fixture
def unchanged(running: RunningService, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever happens: the state stays, the next good call works, the log has no traceback."""
    with grpc.insecure_channel(running.grpc) as channel:
        stub = rpc.BootstrapServiceStub(channel)
        stub.RegisterRank(rank(0, 17000))
        before = running.call(running.service.registry.topology)
        yield
        assert running.call(running.service.registry.topology) == before
        assert len(running.service.rooms) == 0
        assert stub.RegisterRank(rank(1, 17001)).generation == 1
        assert not [record for record in caplog.records if record.exc_info], caplog.text
        assert "Traceback" not in caplog.text


METHODS = [method.name for method in pb.DESCRIPTOR.services_by_name["BootstrapService"].methods]


@pytest.mark.timeout(120)
def test_random_bytes_as_messages_are_refused(
    unchanged: None, channel: grpc.Channel, stub: rpc.BootstrapServiceStub
) -> None:
    die = random.Random(20261201)
    outcomes: dict[str, int] = {}
    for number in range(2_000):
        method = METHODS[number % len(METHODS)]
        if method == "WatchTopology":
            continue  # takes an empty message: any field is an unknown one, which is legal
        junk = die.randbytes(die.randrange(1, 200))
        if method in ("HoldRank", "PublishDpRanks", "ResolveDpRanks"):
            call = channel.unary_stream(SERVICE + method)
            outcome = call(junk, timeout=20).code().name
        else:
            try:
                channel.unary_unary(SERVICE + method)(junk, timeout=20)
                outcome = "OK"
            except grpc.RpcError as error:
                outcome = error.code().name  # type: ignore[attr-defined]
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    # Some junk is a message with unknown fields only: then it is an empty request.
    assert set(outcomes) <= {
        "OK", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "UNIMPLEMENTED", "NOT_FOUND"
    }, outcomes  # fmt: skip
    assert outcomes["INVALID_ARGUMENT"] > 500, outcomes


@pytest.mark.timeout(120)
def test_random_bytes_on_the_port_and_http_1_do_no_harm(
    unchanged: None, running: RunningService
) -> None:
    die = random.Random(20261202)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for number in range(10_000):
        with socket.create_connection(("127.0.0.1", running.service.port), 20) as peer:
            junk = die.randbytes(die.randrange(1, 100))
            peer.sendall(preface + junk if number % 2 else junk)
            # Leave at once: a reset, so that 10,000 rounds need no 10,000 ports.
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    with socket.create_connection(("127.0.0.1", running.service.port), 20) as peer:
        peer.settimeout(20)
        peer.sendall(b"GET /route HTTP/1.1\r\nHost: x\r\n\r\n")
        while peer.recv(65536):  # SETTINGS, perhaps a 4xx, then the end: never a hang
            pass


# --- binding -------------------------------------------------------------------------------------


def test_a_second_service_on_the_same_port_fails_naming_the_address(
    running: RunningService,
) -> None:
    async def start_second() -> None:
        second = BootstrapService(ServiceConfig(grpc_port=running.service.port))
        try:
            await second.start()
        finally:
            await second.drain(0)

    with pytest.raises(BindError, match=rf"gRPC to 127\.0\.0\.1:{running.service.port}"):
        running.run(start_second())
