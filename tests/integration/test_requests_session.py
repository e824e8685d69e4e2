"""``BootstrapSession`` against running services, and against servers that speak HTTP alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from bootstrap_grpc.client import BootstrapClient
from bootstrap_grpc.compat import requests_session
from bootstrap_grpc.compat.config import HttpConfig
from bootstrap_grpc.compat.session_hub import hub, reset
from bootstrap_grpc.compat.shim import HttpShim
from bootstrap_grpc.server.service import ServiceConfig
from support.serve import serving
from support.service import RunningService, eventually, running_service

TOPOLOGY = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"


def rank(**changed: object) -> dict[str, object]:
    groups = ("attn_tp", "attn_cp", "attn_dp", "system_dp", "pp")
    body: dict[str, object] = {f"{group}_size": 1 for group in groups}
    body |= {f"{group}_rank": 0 for group in groups}
    body |= {"rank_ip": "10.0.0.7", "rank_port": 17000, "page_size": 64, "kv_cache_dtype": "auto"}
    return body | {"load_balance_method": "round_robin"} | changed


def route(dp: int = 0, tp: int = 0) -> str:
    return f"/route?prefill_dp_rank={dp}&prefill_cp_rank=0&target_tp_rank={tp}&target_pp_rank=0"


def over_grpc(response: requests.Response) -> bool:
    return response.headers.get("Bootstrap-Transport") == "grpc"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(autouse=True)
def _own_hub() -> Iterator[None]:
    reset()
    yield
    reset()


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        yield running


@pytest.fixture
def session() -> Iterator[requests_session.BootstrapSession]:
    with requests_session.BootstrapSession() as session:
        yield session


class OldServer(ThreadingHTTPServer):
    """Answers every request with 200 and no header of ours, as SGLang's own server does."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int = 0) -> None:
        self.seen: list[str] = []
        self.connections: set[object] = set()
        super().__init__(("127.0.0.1", port), _OldHandler)
        self.address = f"127.0.0.1:{self.server_address[1]}"


class _OldHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: OldServer

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append(f"{self.command} {self.path.partition('?')[0]}")
        self.server.connections.add(self.client_address)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_GET = do_PUT = do_POST = _answer  # noqa: N815 - the names that http.server calls

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Nothing."""


@contextmanager
def old_server(port: int = 0) -> Iterator[OldServer]:
    with OldServer(port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)


def meet(session: requests_session.BootstrapSession, address: str) -> None:
    """Let the session find the gRPC port, and wait until it is reached."""
    session.get(f"http://{address}/health", timeout=5)
    eventually(lambda: hub().speaks_grpc(address), "gRPC is live")


def test_every_call_goes_over_grpc_once_the_port_is_known(
    service: RunningService, session: requests_session.BootstrapSession
) -> None:
    base = f"http://{service.http}"
    assert not over_grpc(session.get(f"{base}/health", timeout=5))  # how the port becomes known
    put = session.put(f"{base}/route", json=rank(), timeout=5)
    assert (put.status_code, put.text, over_grpc(put)) == (200, "OK", True)
    eventually(lambda: session.get(base + TOPOLOGY, timeout=5).status_code == 200, "READY")

    topology = session.get(base + TOPOLOGY, timeout=5)
    assert over_grpc(topology)
    assert topology.json() == requests.get(base + TOPOLOGY, timeout=5).json()
    address = session.get(base + route(), timeout=5)
    assert over_grpc(address)
    assert address.json() == {"rank_ip": "10.0.0.7", "rank_port": 17000}
    unknown = session.get(base + route(tp=3), timeout=5)
    assert over_grpc(unknown)
    assert unknown.status_code == 404
    assert unknown.text == requests.get(base + route(tp=3), timeout=5).text

    told = session.post(
        f"{base}/register_dp_rank", json={"bootstrap_room": 2**63 - 1, "dp_rank": 3}, timeout=5
    )
    assert (told.status_code, over_grpc(told)) == (200, True)

    def ask() -> Any:
        asked = session.post(
            f"{base}/query_dp_ranks", json={"bootstrap_rooms": [5, 2**63 - 1]}, timeout=5
        )
        assert over_grpc(asked)
        return asked.json()

    eventually(lambda: ask() == {str(2**63 - 1): 3}, "the room is known")
    assert ask() == {str(2**63 - 1): 3}, "an answer stays readable"
    health = session.get(f"{base}/health", timeout=(2, 3), headers={"Connection": "keep-alive"})
    assert (health.status_code, health.text, over_grpc(health)) == (200, "OK", True)


def test_nothing_is_sent_by_the_calling_thread(
    service: RunningService,
    session: requests_session.BootstrapSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meet(session, service.http)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the caller did I/O")

    caller = threading.current_thread()
    for name in ("connect", "send", "sendall", "recv", "recv_into"):
        real = getattr(socket.socket, name)

        def guarded(self: Any, *args: Any, real: Any = real) -> Any:
            return refuse() if threading.current_thread() is caller else real(self, *args)

        monkeypatch.setattr(socket.socket, name, guarded, raising=False)
    url = f"http://{service.http}"
    for room in range(50):
        session.post(f"{url}/query_dp_ranks", json={"bootstrap_rooms": [room]}, timeout=5)
        session.post(
            f"{url}/register_dp_rank", json={"bootstrap_room": room, "dp_rank": 0}, timeout=5
        )
        assert session.get(f"{url}/health", timeout=5).status_code == 200


def test_no_http_connection_is_left_once_grpc_answers(
    service: RunningService, session: requests_session.BootstrapSession
) -> None:
    meet(session, service.http)
    assert over_grpc(session.get(f"http://{service.http}/health", timeout=5))
    (http_port, grpc_port) = (service.shim.port, service.service.port)
    remote = [
        one.raddr.port
        for one in psutil.Process().net_connections("tcp")
        if one.raddr and one.status == psutil.CONN_ESTABLISHED
    ]
    assert http_port not in remote
    assert remote.count(grpc_port) == 1


def test_a_rank_is_held_and_goes_when_the_session_s_hub_ends(
    service: RunningService, session: requests_session.BootstrapSession
) -> None:
    session.put(f"http://{service.http}/route", json=rank(), timeout=5)
    (held,) = service.call(lambda: service.service.registry.topology().routes)
    assert held.held
    reset()
    assert service.call(lambda: service.service.registry.registered) == 0


def test_a_second_put_replaces_the_hold(
    service: RunningService, session: requests_session.BootstrapSession
) -> None:
    url = f"http://{service.http}/route"
    session.put(url, json=rank(), timeout=5)
    assert session.put(url, json=rank(rank_port=17555), timeout=5).status_code == 200
    (held,) = service.call(lambda: service.service.registry.topology().routes)
    assert (held.rank_port, held.held) == (17555, True)
    assert hub().registrations.held == len(hub().registrations) == 1


def test_a_refusal_has_the_status_and_the_text_of_http(
    service: RunningService, session: requests_session.BootstrapSession
) -> None:
    url = f"http://{service.http}/route"
    body = rank(attn_tp_size=2)
    assert session.put(url, json=body, timeout=5).status_code == 200
    other = body | {"attn_tp_rank": 1, "page_size": 32}
    refused = session.put(url, json=other, timeout=2)
    plain = requests.put(url, json=other, timeout=2)
    assert (refused.status_code, over_grpc(refused)) == (plain.status_code, True)
    assert "page_size" in refused.text


def test_what_only_the_server_can_judge_goes_out_as_http(
    service: RunningService, session: requests_session.BootstrapSession
) -> None:
    meet(session, service.http)
    base = f"http://{service.http}"
    for method, path, body in (
        ("POST", "/query_dp_ranks", {"bootstrap_rooms": ["5"]}),
        ("POST", "/register_dp_rank", {"bootstrap_room": "5", "dp_rank": 0}),
        ("PUT", "/route", {"rank_ip": "10.0.0.7"}),
        ("GET", "/ready", None),
    ):
        answer = session.request(method, base + path, json=body, timeout=5)
        plain = requests.request(method, base + path, json=body, timeout=5)
        assert not over_grpc(answer), path
        assert answer.status_code == plain.status_code, path


def test_a_server_without_the_header_is_spoken_to_over_one_kept_alive_connection(
    session: requests_session.BootstrapSession,
) -> None:
    with old_server() as server:
        base = f"http://{server.address}"
        assert session.put(f"{base}/route", json=rank(), timeout=5).status_code == 200
        assert server.seen[:2] == ["GET /health", "PUT /route"]
        server.connections.clear()  # that of the first call, which might have found gRPC
        for _ in range(3):
            session.get(base + TOPOLOGY, timeout=5)
            session.post(f"{base}/query_dp_ranks", json={"bootstrap_rooms": [1]}, timeout=5)
            session.post(
                f"{base}/register_dp_rank", json={"bootstrap_room": 1, "dp_rank": 0}, timeout=5
            )
            session.get(f"{base}/health", timeout=5)
        assert len(server.connections) == 1
        session.close()


def test_a_closed_grpc_port_leaves_everything_on_http(
    session: requests_session.BootstrapSession,
) -> None:
    closed = free_port()
    with running_service(ServiceConfig(grpc_port=0)) as service:
        # The shim of another service tells of a port that nobody listens on.
        shim = HttpShim(
            service.service.registry,
            service.service.rooms,
            HttpConfig(port=0),
            grpc_port=closed,
        )
        service.run(shim.start())
        try:
            base = f"http://127.0.0.1:{shim.port}"
            put = session.put(f"{base}/route", json=rank(), timeout=5)
            assert (put.status_code, over_grpc(put)) == (200, False)
            topology = session.get(base + TOPOLOGY, timeout=5)
            assert (topology.status_code, over_grpc(topology)) == (200, False)
            assert not over_grpc(session.get(f"{base}/health", timeout=5))
            session.close()
        finally:
            reset()
            service.run(shim.stop(1))


def test_a_put_that_finds_nobody_fails_and_is_tried_on(
    session: requests_session.BootstrapSession,
) -> None:
    port = free_port()
    with pytest.raises(requests.ConnectionError):
        session.put(f"http://127.0.0.1:{port}/route", json=rank(), timeout=5)
    with running_service(http=HttpConfig(port=port)) as service:
        eventually(
            lambda: any(
                one.held for one in service.call(lambda: service.service.registry.topology().routes)
            ),
            "the rank is held",
        )
        reset()


def test_a_dead_server_misses_its_heartbeat(
    session: requests_session.BootstrapSession,
) -> None:
    with running_service() as service:
        meet(session, service.http)
        url = f"http://{service.http}/health"
    eventually(lambda: not hub().speaks_grpc(url[7:].partition("/")[0]), "the loss is noticed")
    with pytest.raises(requests.ConnectionError):
        session.get(url, timeout=(2, 3))


def test_a_server_that_is_swapped_for_an_old_one_and_back(
    session: requests_session.BootstrapSession,
) -> None:
    restarts: list[str] = []
    hub().on_restart(restarts.append)
    port = free_port()
    address, url = f"127.0.0.1:{port}", f"http://127.0.0.1:{port}/health"
    with running_service(http=HttpConfig(port=port)):
        meet(session, address)
    eventually(lambda: not hub().speaks_grpc(address), "the loss is noticed")
    with old_server(port) as old:
        assert not over_grpc(session.get(url, timeout=5))
        eventually(lambda: restarts == [address], "the swap is told")
        assert "GET /health" in old.seen
        session.close()
    with running_service(http=HttpConfig(port=port)):
        meet(session, address)
        eventually(lambda: restarts == [address] * 2, "the way back is told")
        assert over_grpc(session.get(url, timeout=5))


@pytest.mark.parametrize("same_grpc_port", [True, False])
def test_a_new_instance_is_told_without_a_call(
    session: requests_session.BootstrapSession, *, same_grpc_port: bool
) -> None:
    told = threading.Event()
    hub().on_restart(lambda _address: told.set())
    port, grpc_ports = free_port(), [free_port(), free_port()]
    second = grpc_ports[0] if same_grpc_port else grpc_ports[1]
    http = HttpConfig(port=port)
    with running_service(ServiceConfig(grpc_port=grpc_ports[0], instance_id="first"), http):
        meet(session, f"127.0.0.1:{port}")
    with running_service(ServiceConfig(grpc_port=second, instance_id="second"), http):
        assert told.wait(10)


def test_the_same_instance_in_a_new_process_is_no_restart(
    session: requests_session.BootstrapSession,
) -> None:
    told = threading.Event()
    hub().on_restart(lambda _address: told.set())
    port = free_port()
    http = HttpConfig(port=port)
    for _ in range(2):
        with running_service(ServiceConfig(grpc_port=0, instance_id="one"), http):
            meet(session, f"127.0.0.1:{port}")
    assert not told.is_set()


def test_rooms_of_a_dp_replica_are_registered_with_the_rank_that_keys_its_route(
    service: RunningService, session: requests_session.BootstrapSession
) -> None:
    base = f"http://{service.http}"
    replica = rank(system_dp_size=2, system_dp_rank=1)
    assert session.put(f"{base}/route", json=replica, timeout=5).status_code == 200
    # What SGLang sends: attn_dp_rank, 0 in every replica.
    session.post(f"{base}/register_dp_rank", json={"bootstrap_room": 902, "dp_rank": 0}, timeout=5)

    def asked() -> Any:
        return requests.post(
            f"{base}/query_dp_ranks", json={"bootstrap_rooms": [902]}, timeout=5
        ).json()

    eventually(lambda: asked() == {"902": 1}, "the room has the replica's rank")


def test_module_functions_share_a_session_of_their_thread(service: RunningService) -> None:
    url = f"http://{service.http}/health"
    requests_session.get(url, timeout=5)
    eventually(lambda: over_grpc(requests_session.get(url, timeout=5)), "gRPC is live")
    in_thread: list[bool] = []
    thread = threading.Thread(
        target=lambda: in_thread.append(over_grpc(requests_session.get(url, timeout=5)))
    )
    thread.start()
    thread.join(10)
    assert in_thread == [True]


def test_response_hooks_see_replies_from_memory(
    service: RunningService, session: requests_session.BootstrapSession
) -> None:
    seen: list[int] = []
    hooks: Any = session.hooks
    hooks["response"].append(lambda response, *_, **__: seen.append(response.status_code))
    meet(session, service.http)
    assert over_grpc(session.get(f"http://{service.http}/health", timeout=5))
    assert seen == [200, 200]


def test_a_frozen_server_costs_no_call_its_time(
    tmp_path: Path, session: requests_session.BootstrapSession
) -> None:
    """Calls are answered from memory until the stream is lost; then HTTP fails, as it would."""
    with serving(tmp_path) as server:
        meet(session, server.http)
        url = f"http://{server.http}/query_dp_ranks"
        os.kill(server.pid, signal.SIGSTOP)
        for room in range(100):
            reply = session.post(url, json={"bootstrap_rooms": [room]}, timeout=5)
            assert over_grpc(reply)
            assert reply.json() == {}
        eventually(lambda: not hub().speaks_grpc(server.http), "the loss is noticed")
        with pytest.raises(requests.exceptions.RequestException):
            session.get(f"http://{server.http}/health", timeout=0.2)
        os.kill(server.pid, signal.SIGCONT)
        eventually(lambda: hub().speaks_grpc(server.http), "gRPC is live again")
        assert over_grpc(session.get(f"http://{server.http}/health", timeout=5))


_FORK = """
import os, sys, time
from bootstrap_grpc.compat import requests_session
from bootstrap_grpc.compat.session_hub import hub
base, body = sys.argv[1], __import__("json").loads(sys.argv[2])
address = base.removeprefix("http://")

def live():
    deadline = time.monotonic() + 20
    while not hub().speaks_grpc(address):
        requests_session.get(base + "/health", timeout=5)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True

assert requests_session.put(base + "/route", json=body, timeout=5).text == "OK"
assert live() and hub().registrations.held == 1
child = os.fork()
if child == 0:
    print("child", len(hub()), hub().registrations.held, live(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("parent", live(), hub().registrations.held, flush=True)
sys.stdin.read()
"""


def test_a_forked_child_starts_anew_and_the_parent_keeps_its_rank(service: RunningService) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONWARNINGS"}
    command = [sys.executable, "-c", _FORK, f"http://{service.http}", json.dumps(rank())]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline().split() == ["child", "0", "0", "True"]
        parent = program.stdout.readline().split()
        assert parent[:2] == ["parent", "True"]
        with BootstrapClient(service.grpc) as client:
            eventually(lambda: client.get_topology().registered == 1, "the rank is held")
            program.communicate("")
