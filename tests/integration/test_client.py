"""The clients against a real service: calls, errors, one connection, forks, proxies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bootstrap_grpc.client import (
    AsyncBootstrapClient,
    BootstrapClient,
    ClientConfig,
    Deregistration,
    InvalidRequest,
    NoContact,
    NotFound,
    RankKey,
    Refused,
    Registration,
    Shape,
    TopologyState,
)
from support.serve import ServeProcess, child_environment, serving
from support.service import RunningService, eventually, running_service

ALONE = Registration(RankKey(), "10.0.0.1", 17000, Shape(page_size=64))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    with serving(tmp_path_factory.mktemp("serve")) as service:
        yield service


@pytest.fixture
def running() -> Iterator[RunningService]:
    with running_service() as running:
        yield running


@pytest.fixture
def client(running: RunningService) -> Iterator[BootstrapClient]:
    with BootstrapClient(running.grpc) as client:
        yield client


def connections(port: int) -> int:
    """TCP connections of this process to ``port`` of loopback."""
    own = psutil.Process().net_connections("tcp")
    return sum(1 for c in own if c.raddr and c.raddr.port == port and c.status == "ESTABLISHED")


# --- the blocking client -----------------------------------------------------------------------


def test_every_unary_call(client: BootstrapClient) -> None:
    assert client.get_topology().state is TopologyState.EMPTY
    registered = client.register_rank(ALONE)
    assert registered.generation == 1
    topology = client.get_topology()
    assert topology.state is TopologyState.READY
    assert topology.shape == ALONE.shape
    route = client.get_route(RankKey())
    assert (route.rank_ip, route.rank_port, route.held) == ("10.0.0.1", 17000, False)
    with pytest.raises(NotFound, match="dp1"):
        client.get_route(RankKey(dp_rank=1))
    client.register_dp_ranks({0: 3, 2**64 - 1: 0})
    assert client.query_dp_ranks([0, 1, 2**64 - 1]) == {0: 3, 2**64 - 1: 0}
    with pytest.raises(Refused):
        client.deregister_rank(Deregistration(RankKey(), "10.0.0.1", 17001))
    client.deregister_rank(Deregistration(RankKey(), "10.0.0.1", 17000))
    assert client.get_topology().state is TopologyState.EMPTY


def test_more_rooms_than_a_message_holds_are_split(client: BootstrapClient) -> None:
    rooms = {room: room % 7 for room in range(150_000)}
    client.register_dp_ranks(rooms)
    assert client.query_dp_ranks(rooms) == rooms


@pytest.mark.parametrize("room", [-1, 2**64, 1.5, "7", None, True])
def test_a_room_that_is_none_is_refused_before_anything_is_sent(room: object) -> None:
    with BootstrapClient("127.0.0.1:9") as nowhere:
        with pytest.raises(InvalidRequest, match="room"):
            nowhere.register_dp_ranks({room: 0})  # type: ignore[dict-item]
        if room is not True:  # protobuf takes True for 1
            with pytest.raises(InvalidRequest, match="room"):
                nowhere.query_dp_ranks([1, room])  # type: ignore[list-item]


def test_a_service_that_is_not_there_is_no_contact() -> None:
    with BootstrapClient("127.0.0.1:9") as nowhere, pytest.raises(NoContact) as error:
        nowhere.get_topology()
    assert error.value.target == "127.0.0.1:9"


def test_a_service_that_accepts_and_never_answers_is_no_contact_by_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with BootstrapClient(address) as client, pytest.raises(NoContact):
            client.query_dp_ranks([1], timeout=0.3)


def test_waiting_for_a_service_that_comes_up(tmp_path: Path) -> None:
    with ServeProcess(tmp_path) as service:
        service.start()
        service.kill()
        with BootstrapClient(service.grpc, ClientConfig(timeout=20, wait_for_ready=True)) as client:
            answers: list[TopologyState] = []
            asker = threading.Thread(target=lambda: answers.append(client.get_topology().state))
            asker.start()
            service.start()
            asker.join(20)
            assert answers == [TopologyState.EMPTY]


def test_clients_of_one_process_share_one_connection(running: RunningService) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(BootstrapClient(running.grpc)) for _ in range(8)]
        askers = [threading.Thread(target=client.get_topology) for client in clients]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        assert connections(running.service.port) == 1
        clients[0].close()
        assert clients[1].get_topology().registered == 0, "the others keep the connection"
    eventually(lambda: connections(running.service.port) == 0, "the last one closes it")


def test_a_closed_client_says_so(client: BootstrapClient) -> None:
    client.close()
    client.close()
    with pytest.raises(ValueError, match="closed"):
        client.get_topology()


def test_a_proxy_of_the_cluster_is_not_asked(service: ServeProcess) -> None:
    proxy = "http://192.0.2.9:3128"
    names = ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    code = (
        "import sys; from bootstrap_grpc.client import BootstrapClient\n"
        "with BootstrapClient(sys.argv[1]) as c: print(c.get_topology(timeout=10).state.name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, service.grpc],
        env={**child_environment(), **dict.fromkeys(names, proxy)},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.strip() in ("EMPTY", "PARTIAL", "READY")


def test_a_watch_goes_on_after_a_restart_and_ends_when_closed(tmp_path: Path) -> None:
    with ServeProcess(tmp_path) as service:
        service.start()
        with BootstrapClient(service.grpc) as client, client.watch_topology() as watch:
            before = next(watch)
            service.kill()
            service.start()
            after = next(watch)
            assert after.server_id != before.server_id
            threading.Timer(0.05, watch.close).start()
            assert list(watch) == []


def test_a_watch_with_a_timeout_ends(client: BootstrapClient) -> None:
    assert [t.state for t in client.watch_topology(timeout=0.2)] == [TopologyState.EMPTY]


# --- forks -------------------------------------------------------------------------------------


_FORK = """
import os, signal, sys
from bootstrap_grpc.client import BootstrapClient, RankKey, Registration, Shape
client = BootstrapClient(sys.argv[1])
port = int(sys.argv[2])
hold = client.hold_rank(Registration(RankKey(tp_rank=port % 8), "10.0.0.1", port, Shape(8)))
hold.wait_registered(10)
owner = client.owner
child = os.fork()
if child == 0:
    signal.alarm(20)  # a hang ends the child, and the test
    try:
        answer = client.get_topology(timeout=10)
        assert client.owner != owner, "a child is another owner"
        assert answer.routes, "the parent's rank is registered"
        client.close()
        hold.close()  # the parent's: harmless here
        os._exit(0)
    except BaseException as error:
        print("child:", repr(error), file=sys.stderr, flush=True)
        os._exit(1)
_, status = os.waitpid(child, 0)
assert hold.registered is not None, "the parent goes on holding"
assert client.get_route(RankKey(tp_rank=port % 8)).held
print("child exited", os.waitstatus_to_exitcode(status))
client.close()
"""


@pytest.mark.parametrize("support", [None, "1"])
def test_a_client_that_was_used_before_a_fork_works_on_both_sides(
    service: ServeProcess, support: str | None
) -> None:
    environment = child_environment()
    environment.pop("PYTHONWARNINGS")  # the interpreter warns of forks with threads, rightly
    if support is not None:
        environment["GRPC_ENABLE_FORK_SUPPORT"] = support
    port = 18000 + os.getpid() % 1000 + (8 if support else 0)
    done = subprocess.run(
        [sys.executable, "-c", _FORK, service.grpc, str(port)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.stdout.strip() == "child exited 0", done.stderr


# --- asyncio -----------------------------------------------------------------------------------


async def test_every_call_of_the_asyncio_client(running: RunningService) -> None:
    async with AsyncBootstrapClient(running.grpc) as client:
        assert (await client.register_rank(ALONE)).generation == 1
        assert (await client.get_topology()).state is TopologyState.READY
        assert (await client.get_route(RankKey())).rank_port == 17000
        with pytest.raises(NotFound):
            await client.get_route(RankKey(pp_rank=1))
        await client.register_dp_ranks({5: 6})
        assert await client.query_dp_ranks([5, 6]) == {5: 6}
        async with contextlib.aclosing(client.watch_topology()) as watch:
            assert (await anext(watch)).registered == 1
        await client.deregister_rank(Deregistration(RankKey(), "10.0.0.1", 17000))
        with pytest.raises(InvalidRequest, match="rank_port"):
            client.hold_rank(Registration(RankKey(), "10.0.0.1", -1, Shape()))


async def test_an_asyncio_hold_lives_through_a_restart_and_leaves_when_closed(
    tmp_path: Path,
) -> None:
    with ServeProcess(tmp_path) as service:
        service.start()
        async with AsyncBootstrapClient(service.grpc) as client:
            hold = client.hold_rank(ALONE)
            before = await hold.wait_registered(20)
            service.kill()
            await asyncio.to_thread(eventually, lambda: hold.registered is None, "it is noticed")
            await asyncio.to_thread(service.start)
            after = await hold.wait_registered(20)
            assert after.server_id != before.server_id
            await hold.close()
            assert (await client.get_topology()).state is TopologyState.EMPTY


async def test_asyncio_clients_of_one_loop_share_one_connection(running: RunningService) -> None:
    async with AsyncBootstrapClient(running.grpc) as one, AsyncBootstrapClient(running.grpc) as two:
        await asyncio.gather(one.get_topology(), two.get_topology())
        assert connections(running.service.port) == 1


async def test_an_asyncio_hold_that_is_refused_for_good_says_why(running: RunningService) -> None:
    async with AsyncBootstrapClient(running.grpc) as client:
        hold = client.hold_rank(Registration(RankKey(), "0.0.0.0", 17000, Shape()))
        with pytest.raises(InvalidRequest, match="wildcard"):
            await hold.wait_registered(20)
        assert hold.is_over
