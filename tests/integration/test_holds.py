"""Holds over real connections: what a rank's owner and the operator see when something ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from bootstrap_grpc.client import (
    BootstrapClient,
    ErrorCode,
    NoContact,
    NotFound,
    RankKey,
    Refused,
    Registration,
    Shape,
    TopologyState,
)
from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos import bootstrap_pb2_grpc as rpc
from bootstrap_grpc.protos.convert import registration_to_proto
from bootstrap_grpc.server.service import ServiceConfig
from support.clock import FakeClock
from support.serve import ServeProcess, child_environment, serving
from support.service import RunningService, eventually, running_service
from support.transports import HttpTransport

TP2 = Shape(attn_tp_size=2)
TP4 = Shape(attn_tp_size=4)


def rank(tp: int, port: int, shape: Shape = TP2, **more: str) -> Registration:
    return Registration(RankKey(tp_rank=tp), "10.0.0.1", port, shape, **more)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def running(clock: FakeClock) -> Iterator[RunningService]:
    with running_service(ServiceConfig(grpc_port=0), clock=clock) as running:
        yield running


@pytest.fixture
def client(running: RunningService) -> Iterator[BootstrapClient]:
    with BootstrapClient(running.grpc) as client:
        yield client


@pytest.fixture
def other(running: RunningService) -> Iterator[BootstrapClient]:
    """Another process's client: another owner."""
    with BootstrapClient(running.grpc) as client:
        yield client


class CrashingOwner:
    """A process's gRPC connection, without the client library's manners: it just breaks."""

    def __init__(self, address: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
        self._channel = grpc.insecure_channel(address, options=options)
        self._holds: list[Any] = []

    def hold(self, registration: Registration) -> None:
        request = registration_to_proto(replace(registration, owner="crashing"), pb.HoldRankRequest)
        hold = rpc.BootstrapServiceStub(self._channel).HoldRank(request, timeout=60)
        next(hold)
        self._holds.append(hold)

    def crash(self) -> None:
        self._channel.close()


def port_of(client: BootstrapClient, tp: int) -> int | None:
    try:
        return client.get_route(RankKey(tp_rank=tp)).rank_port
    except NotFound:
        return None


def is_held(client: BootstrapClient, tp: int) -> bool:
    return client.get_route(RankKey(tp_rank=tp)).held


def test_a_held_rank_is_marked_and_leaves_at_once_when_closed(client: BootstrapClient) -> None:
    hold = client.hold_rank(rank(0, 17000))
    hold.wait_registered(10)
    assert is_held(client, 0)
    hold.close()
    assert port_of(client, 0) is None
    assert hold.is_over


def test_a_hold_that_breaks_leaves_the_rank_for_its_grace(
    running: RunningService, client: BootstrapClient, clock: FakeClock
) -> None:
    crashing = CrashingOwner(running.grpc)
    crashing.hold(rank(0, 17000))
    crashing.crash()
    eventually(lambda: not is_held(client, 0), "the broken hold is noticed")
    clock.advance(9.9)
    assert port_of(client, 0) == 17000
    clock.advance(0.2)
    assert port_of(client, 0) is None


def test_two_live_owners_of_one_rank_are_loud(
    client: BootstrapClient, other: BootstrapClient
) -> None:
    with client.hold_rank(rank(0, 17000)) as held:
        held.wait_registered(10)
        with pytest.raises(Refused, match=r"held at 10\.0\.0\.1:17000") as refused:
            other.register_rank(rank(0, 17555))
        assert refused.value.code is ErrorCode.RANK_HELD
        assert [r.rank_port for r in client.get_topology().refused] == [17555]
        with (
            other.hold_rank(rank(0, 17555)) as second,
            pytest.raises(Refused, match=r"held at 10\.0\.0\.1:17000"),
        ):
            second.wait_registered(0.5)
        assert port_of(client, 0) == 17000


def test_a_second_owner_gets_the_rank_once_the_first_has_left(
    client: BootstrapClient, other: BootstrapClient
) -> None:
    first = client.hold_rank(rank(0, 17000))
    first.wait_registered(10)
    with other.hold_rank(rank(0, 17555)) as second:
        eventually(lambda: second.error is not None, "the second hold is refused")
        first.close()
        second.wait_registered(10)
        assert port_of(client, 0) == 17555


def test_a_role_switch_in_one_process_moves_the_rank_and_ends_the_old_hold(
    client: BootstrapClient,
) -> None:
    with client.hold_rank(rank(0, 17000)) as before:
        generation = before.wait_registered(10).generation
        with client.hold_rank(rank(0, 17555)) as after:
            assert after.wait_registered(10).generation == generation
            eventually(lambda: before.is_over, "the old hold ends for good")
            assert before.error is not None
            assert port_of(client, 0) == 17555
            before.close()
            assert is_held(client, 0), "closing the old handle must not remove the moved rank"


def test_one_held_rank_that_rejoins_a_living_group_brings_it_back_at_once(
    running: RunningService, client: BootstrapClient, other: BootstrapClient
) -> None:
    with BootstrapClient(running.grpc) as rejoining, client.hold_rank(rank(0, 17000)) as living:
        living.wait_registered(10)
        other.register_rank(rank(1, 17001))
        assert client.get_topology().state is TopologyState.READY
        with rejoining.hold_rank(rank(1, 17555)) as new:
            assert new.wait_registered(10).generation == 2
            for topology in client.watch_topology(timeout=20):
                if topology.state is TopologyState.READY:
                    break
            assert topology.generation == 2
            assert {r.rank_port for r in topology.routes} == {17000, 17555}
            eventually(lambda: living.registered is not None, "the living rank is held again")
            assert living.registered is not None
            assert living.registered.generation == 2


@pytest.mark.parametrize("within_grace", [True, False])
def test_a_restart_of_held_ranks_is_a_new_generation_inside_and_after_the_grace(
    running: RunningService, client: BootstrapClient, clock: FakeClock, within_grace: bool
) -> None:
    first_engine = CrashingOwner(running.grpc)
    for tp in (0, 1):
        first_engine.hold(rank(tp, 17000 + tp))
    assert client.get_topology().state is TopologyState.READY
    first_engine.crash()
    eventually(lambda: not any(r.held for r in client.get_topology().routes), "both holds broke")
    if not within_grace:
        clock.advance(11)
        assert client.get_topology().state is TopologyState.EMPTY
    with BootstrapClient(running.grpc) as second_engine:  # noqa: SIM117 - one step each
        with second_engine.hold_rank(rank(1, 17501)) as one:
            assert one.wait_registered(10).generation == 2
            assert port_of(client, 0) is None, "an address of the dead engine must not be served"
            assert client.get_topology().state is TopologyState.PARTIAL
            with second_engine.hold_rank(rank(0, 17500)) as zero:
                zero.wait_registered(10)
                assert client.get_topology().state is TopologyState.READY
                assert (port_of(client, 0), port_of(client, 1)) == (17500, 17501)


@pytest.mark.parametrize("http_first", [True, False])
def test_a_half_held_half_http_group_restarts_without_mixing_old_and_new(
    running: RunningService, client: BootstrapClient, http_first: bool
) -> None:
    http = HttpTransport(running.http)
    first_engine = CrashingOwner(running.grpc)
    first_engine.hold(rank(0, 17000))
    http.register(rank(1, 17001))
    assert client.get_topology().state is TopologyState.READY
    first_engine.crash()
    eventually(lambda: not is_held(client, 0), "the hold broke")
    with BootstrapClient(running.grpc) as second_engine:
        if http_first:
            http.register(rank(1, 17501))
            assert (port_of(client, 0), port_of(client, 1)) == (None, 17501)
            hold = second_engine.hold_rank(rank(0, 17500))
            hold.wait_registered(10)
        else:
            hold = second_engine.hold_rank(rank(0, 17500))
            hold.wait_registered(10)
            assert (port_of(client, 0), port_of(client, 1)) == (17500, None)
            http.register(rank(1, 17501))
        topology = client.get_topology()
        assert topology.state is TopologyState.READY
        assert [r.rank_port for r in topology.routes] == [17500, 17501]
        assert [r.held for r in topology.routes] == [True, False]
        hold.close()


def test_a_living_group_is_not_taken_down_by_a_rank_of_another_shape(
    client: BootstrapClient, other: BootstrapClient
) -> None:
    with client.hold_rank(rank(0, 17000)) as zero, client.hold_rank(rank(1, 17001)) as one:
        zero.wait_registered(10)
        one.wait_registered(10)
        with pytest.raises(Refused, match="attn_tp_size is 4 and not 2"):
            other.register_rank(rank(2, 17502, TP4))
        topology = client.get_topology()
        assert topology.state is TopologyState.READY
        assert topology.generation == 1
        assert all(route.held for route in topology.routes)


def test_growth_from_tp2_to_tp4_by_the_processes_that_hold_the_ranks(
    client: BootstrapClient,
) -> None:
    holds = [client.hold_rank(rank(tp, 17000 + tp)) for tp in (0, 1)]
    for hold in holds:
        hold.wait_registered(10)
    grown = [client.hold_rank(rank(tp, 17500 + tp, TP4)) for tp in (2, 0, 1, 3)]
    for hold in grown:
        hold.wait_registered(10)
    topology = client.get_topology()
    assert topology.state is TopologyState.READY
    assert topology.generation == 2
    assert [r.rank_port for r in topology.routes] == [17500, 17501, 17502, 17503]
    for hold in holds + grown:
        hold.close()


# --- real processes --------------------------------------------------------------------

_HOLDER = """
import sys
from bootstrap_grpc.client import BootstrapClient, RankKey, Registration, Shape
client = BootstrapClient(sys.argv[1])
size = int(sys.argv[2])
holds = [
    client.hold_rank(Registration(RankKey(tp_rank=tp), "10.0.0.1", 17000 + tp, Shape(size)))
    for tp in map(int, sys.argv[3:])
]
print("holding", flush=True)
sys.stdin.read()
"""


class Holder:
    """A process that holds ranks until its stdin ends."""

    def __init__(self, address: str, size: int, *ranks: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _HOLDER, address, str(size), *map(str, ranks)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(),
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "holding\n"

    def end(self) -> None:
        self.process.kill()
        with self.process:  # closes its pipes and waits
            pass


@pytest.fixture
def holders() -> Iterator[list[Holder]]:
    holders: list[Holder] = []
    yield holders
    for holder in holders:
        holder.end()


def wait_ready(address: str, timeout: float) -> int:
    """Wait for READY; how many ranks are registered then."""
    with BootstrapClient(address) as client:
        for topology in client.watch_topology(timeout=timeout):
            if topology.state is TopologyState.READY:
                return topology.registered
    raise AssertionError(f"not READY within {timeout} s")


@pytest.mark.timeout(120)
def test_16_ranks_started_before_the_service_register_and_come_back_after_its_sigkill(
    tmp_path: Path, holders: list[Holder]
) -> None:
    # "within 3 s of the bind" is what must hold: a deadline of the contract, not a benchmark.
    with ServeProcess(tmp_path) as service:
        service.start()
        service.kill()  # the ports are known, and nobody listens
        holders += [Holder(service.grpc, 16, *range(tp, tp + 4)) for tp in range(0, 16, 4)]
        service.start()
        assert wait_ready(service.grpc, 3) == 16
        service.kill()
        service.start()
        assert wait_ready(service.grpc, 3) == 16
        assert "Traceback" not in service.log


def test_a_killed_owner_is_noticed_at_once_and_a_leaving_one_deregisters(
    tmp_path: Path, holders: list[Holder]
) -> None:
    with serving(tmp_path) as service, BootstrapClient(service.grpc) as client:
        holders += [Holder(service.grpc, 2, tp) for tp in (0, 1)]
        assert wait_ready(service.grpc, 20) == 2
        holders[0].process.send_signal(signal.SIGKILL)
        eventually(lambda: not is_held(client, 0), "the killed owner's hold ended")
        assert port_of(client, 0) == 17000, "within its grace"
        assert holders[1].process.stdin is not None
        holders[1].process.stdin.close()
        assert holders[1].process.wait(20) == 0
        assert port_of(client, 1) is None, "an interpreter that exits deregisters"


def test_a_dead_engines_surviving_process_does_not_poison_its_successors_service(
    tmp_path: Path,
) -> None:
    with ServeProcess(tmp_path) as service:
        service.start("--instance-id", "engine-1")
        with BootstrapClient(service.grpc) as survivor:
            hold = survivor.hold_rank(rank(0, 17000))
            assert hold.wait_registered(10).instance_id == "engine-1"
            service.kill()
            service.start("--instance-id", "engine-2")
            eventually(lambda: hold.is_over, "the hold ends for good")
            assert isinstance(hold.error, Refused)
            assert hold.error.code is ErrorCode.INSTANCE_MISMATCH
            topology = survivor.get_topology()
            assert topology.state is TopologyState.EMPTY
            # The successor's operator is told who was refused.
            assert [r.code for r in topology.refused] == [ErrorCode.INSTANCE_MISMATCH]
            with pytest.raises(Refused):
                hold.wait_registered(10)


def test_the_same_instance_goes_on_after_a_restart_of_its_service(tmp_path: Path) -> None:
    with ServeProcess(tmp_path, "--instance-id", "engine-1") as service:
        service.start()
        with BootstrapClient(service.grpc) as client, client.hold_rank(rank(0, 17000)) as hold:
            before = hold.wait_registered(10)
            service.kill()
            eventually(lambda: hold.registered is None, "the loss is noticed")
            service.start()
            after = hold.wait_registered(10)
            assert after.server_id != before.server_id
            assert after.instance_id == "engine-1"


def test_waiting_for_a_service_that_is_not_there_ends_with_no_contact() -> None:
    with (
        BootstrapClient("127.0.0.1:9") as client,
        client.hold_rank(rank(0, 17000)) as hold,
        pytest.raises(NoContact, match=r"127\.0\.0\.1:9"),
    ):
        hold.wait_registered(0.2)


def test_closing_a_hold_from_another_thread_wakes_who_waits(client: BootstrapClient) -> None:
    with BootstrapClient("127.0.0.1:9") as nowhere:
        hold = nowhere.hold_rank(rank(0, 17000))
        closer = threading.Thread(target=hold.close)
        closer.start()
        with pytest.raises(NoContact):
            hold.wait_registered(20)
        closer.join()


def test_a_bad_registration_is_refused_in_the_caller(client: BootstrapClient) -> None:
    with pytest.raises(Exception, match="rank_port is -1") as refused:
        client.hold_rank(replace(rank(0, 17000), rank_port=-1))
    assert type(refused.value).__name__ == "InvalidRequest"
