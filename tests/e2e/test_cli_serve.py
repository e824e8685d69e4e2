"""The life of the service process: ports, the port file, signals."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from bootstrap_grpc.client import BootstrapClient
from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos import bootstrap_pb2_grpc as rpc
from bootstrap_grpc.protos.model import RankKey, Registration, Shape, TopologyState
from support.cli_process import Process, Service, environment, run


def test_the_start_line_names_addresses_and_identities(serve: Callable[..., Service]) -> None:
    service = serve("--instance-id", "engine-7")
    service.wait_for_log("serves gRPC on")
    (line,) = [line for line in service.log.splitlines() if "serves gRPC" in line]
    assert f"gRPC on {service.address}, HTTP on 127.0.0.1:{service.ports['http']}" in line
    assert re.search(r"server id \S+, instance id engine-7$", line)
    assert service.ports["pid"] == service.popen.pid
    topology = service.topology()
    assert topology.server_id in line
    assert topology.instance_id == "engine-7"


def test_options_come_from_the_environment_and_the_command_line_wins(
    serve: Callable[..., Service],
) -> None:
    env = environment(BOOTSTRAP_GRPC_INSTANCE_ID="from-env", BOOTSTRAP_GRPC_NO_HTTP="1")
    assert serve(env=env).topology().instance_id == "from-env"
    named = serve("--instance-id", "given", env=env)
    assert named.topology().instance_id == "given"
    assert named.ports["http"] is None
    assert "no HTTP" in named.log


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_port_in_use_ends_a_second_service(service: Service, protocol: str) -> None:
    taken = {"grpc": "0", "http": "0"} | {protocol: str(service.ports[protocol])}
    second = run("serve", "--port", taken["grpc"], "--http-port", taken["http"])
    assert (second.returncode, second.stdout) == (1, "")
    assert f"127.0.0.1:{taken[protocol]}" in second.stderr.splitlines()[-1]
    assert "Traceback" not in second.stderr
    assert service.topology().state is TopologyState.EMPTY


def test_a_service_whose_http_port_is_taken_leaves_no_grpc_port(
    service: Service, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ports = tmp_path / "second.json"
    second = run(
        *("serve", "--port", str(port), "--http-port", str(service.ports["http"])),
        *("--port-file", str(ports)),
    )
    assert second.returncode == 1
    assert not ports.exists()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_a_signal_ends_an_idle_service(service: Service, number: signal.Signals) -> None:
    assert service.port_file.exists()
    service.signal(number)
    assert service.wait() == 0
    assert not service.port_file.exists()
    assert f"{number.name}: draining" in service.log
    assert "Traceback" not in service.log


def test_sigterm_ends_50_watches_within_5_s(service: Service) -> None:
    with ExitStack() as stack:
        watches = []
        for _ in range(5):
            options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
            channel = stack.enter_context(grpc.insecure_channel(service.address, options))
            stub = rpc.BootstrapServiceStub(channel)
            watches += [stub.WatchTopology(pb.WatchTopologyRequest()) for _ in range(10)]
        for watch in watches:
            assert next(watch).topology.state == pb.TOPOLOGY_STATE_EMPTY
        service.signal(signal.SIGTERM)
        assert service.wait(timeout=5) == 0
        assert {watch.code() for watch in watches} == {grpc.StatusCode.UNAVAILABLE}
    assert "Traceback" not in service.log


def test_sigterm_with_holds_and_kept_http_connections_drains(service: Service) -> None:
    with BootstrapClient(service.address) as client, ExitStack() as stack:
        shape = Shape(attn_tp_size=4)
        for tp_rank in range(4):
            rank = Registration(RankKey(tp_rank=tp_rank), "127.0.0.1", 17_001 + tp_rank, shape)
            stack.enter_context(client.hold_rank(rank)).wait_registered()
        idle = stack.enter_context(socket.create_connection(("127.0.0.1", service.ports["http"])))
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(4096).startswith(b"HTTP/1.1 200 ")
        service.signal(signal.SIGTERM)
        assert service.wait(timeout=5) == 0
    assert "Traceback" not in service.log


@pytest.fixture
def draining(serve: Callable[..., Service]) -> Iterator[Service]:
    """A service that drains, and cannot end soon: a request is under way."""
    service = serve("--drain-timeout", "600")
    with socket.create_connection(("127.0.0.1", service.ports["http"])) as slow:
        head = (
            b"PUT /route HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n"
        )
        slow.sendall(head)
        assert slow.recv(4096).startswith(b"HTTP/1.1 100 ")  # its handler runs
        service.signal(signal.SIGTERM)
        service.wait_for_log("SIGTERM: draining")
        yield service


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_a_second_signal_exits_at_once(draining: Service, number: signal.Signals) -> None:
    assert draining.popen.poll() is None
    draining.signal(number)
    assert draining.wait(timeout=5) == 128 + number
    assert "Traceback" not in draining.log


def test_a_killed_service_leaves_a_port_file_that_the_next_start_replaces(
    service: Service, start: Callable[..., Process]
) -> None:
    service.signal(signal.SIGKILL)
    service.wait()
    assert service.port_file.exists()
    blocked = start("serve", "--port-file", str(service.port_file), "--host", "192.0.2.1")
    assert blocked.wait() == 1
    assert not service.port_file.exists()  # so a script does not take the old ports for new ones


def test_the_port_file_names_ports_that_answer(serve: Callable[..., Service]) -> None:
    service = serve()
    assert service.http("GET", "/health") == (200, "OK")
    assert json.loads(service.port_file.read_text()) == service.ports


def test_http_options_reach_the_shim(serve: Callable[..., Service]) -> None:
    service = serve("--http-omit", "prefill_http_port", "--http-pass", "zone")
    service.run(
        *("register", "--rank-ip", "127.0.0.1", "--rank-port", "17001"),
        *("--prefill-http-port", "30000", "--attribute", 'zone="a"', "--attribute", "x=1"),
    )
    path = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
    status, text = service.http("GET", path)
    document = json.loads(text)
    assert status == 200
    assert document["zone"] == "a"
    assert {"prefill_http_port", "x"}.isdisjoint(document)
