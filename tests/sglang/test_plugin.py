"""The plugin in SGLang's own code: releases from the first with plugins to the newest."""

from __future__ import annotations

import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.service import eventually
from support.sglang_peer import SglangPeer
from support.sglang_process import ChildError, ChildProcess
from support.sglang_release import NEWEST, ReleaseUnavailableError, install_release
from support.sglang_roles import PrefillRank
from support.sglang_servers import Service, run_service

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(120)]

RELEASES = ("0.5.11", "0.5.16", NEWEST)
_WORKER = Path(__file__).resolve().parents[1] / "support" / "sglang_plugin_worker.py"
ONE = (1, 1, 1, 1)


class PluginPeer(SglangPeer):
    """A process of SGLang with the plugin."""

    def __init__(self, root: Path, backend: str = "") -> None:
        self._child = ChildProcess(_WORKER, [str(root), backend])

    def __enter__(self) -> PluginPeer:
        super().__enter__()
        return self

    def call(self, name: str, **arguments: Any) -> Any:
        """One of the calls that only ``PluginWorker`` has."""
        return self._call(name, **arguments).value


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def root_of(release: str) -> Path:
    try:
        return install_release(release)
    except ReleaseUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(params=RELEASES)
def plugin(request: pytest.FixtureRequest) -> Iterator[PluginPeer]:
    with PluginPeer(root_of(request.param)) as peer:
        yield peer


@pytest.fixture
def newest(newest_release: Path) -> Iterator[PluginPeer]:
    with PluginPeer(newest_release) as peer:
        yield peer


def is_ready(address: str, peer: SglangPeer) -> bool:
    return peer.topology(address, ONE).value is not None


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_every_call_takes_effect_and_the_line_says_so(plugin: PluginPeer) -> None:
    said = plugin.call("said")
    assert said["active"]
    assert said["line"].count("\n") == 1
    assert "over HTTP as before: nothing" in said["line"]
    for part in ("registration", "topology", "routes", "DP rank", "heartbeat", "server"):
        assert part in said["line"]


def test_the_switch_leaves_sglang_alone(
    newest_release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_BOOTSTRAP_GRPC", "0")
    with PluginPeer(newest_release) as peer:
        said = peer.call("said")
        assert not said["active"]
        assert "SGLANG_BOOTSTRAP_GRPC=0" in said["line"]
        with run_service() as service:
            peer.register(service.address, PrefillRank())
            assert peer.call("held") == 0


def test_a_hook_that_no_longer_fits_is_named_and_the_rest_works(
    newest_release: Path, monkeypatch: pytest.MonkeyPatch, service: Service
) -> None:
    monkeypatch.setenv("SGLANG_CHANGED", "query")
    with PluginPeer(newest_release) as peer:
        said = peer.call("said")
        assert said["active"]
        assert said["line"].count("\n") == 1
        assert "over HTTP as before: DP rank queries (it is not called)" in said["line"]
        assert peer.register(service.address, PrefillRank()).log == ()
        assert peer.call("held") == 1
        eventually(lambda: is_ready(service.address, peer), "READY")


def test_without_a_server_to_replace_the_calls_go_over_grpc_all_the_same(
    newest_release: Path, monkeypatch: pytest.MonkeyPatch, service: Service
) -> None:
    monkeypatch.setenv("SGLANG_CHANGED", "server")
    with PluginPeer(newest_release) as peer:
        line = peer.call("said")["line"]
        assert "over HTTP as before: server (" in line
        assert peer.register(service.address, PrefillRank()).log == ()
        assert peer.call("held") == 1


def test_an_sglang_that_is_quite_another_is_left_alone(
    newest_release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_CHANGED", "requests")
    with PluginPeer(newest_release) as peer:
        said = peer.call("said")
        assert not said["active"]
        assert said["line"].count("\n") == 1
        assert "bootstrap-grpc is not in use, all is HTTP" in said["line"]


def test_both_sides_with_the_plugin(plugin: PluginPeer, service: Service) -> None:
    assert plugin.register(service.address, PrefillRank()).log == ()
    assert plugin.call("held") == 1
    eventually(lambda: is_ready(service.address, plugin), "READY")
    assert plugin.route(service.address, (0, 0, 0, 0)).value["rank_port"] == 40000
    assert plugin.route(service.address, (0, 0, 3, 0)).value is None
    assert plugin.register_dp_rank(service.address, 2**63 - 1, 1).log == ()
    answers = {str(2**63 - 1): 1}
    eventually(
        lambda: plugin.query_dp_ranks(service.address, [7, 2**63 - 1]).value == answers,
        "the room is known",
    )
    assert plugin.call("live", address=service.address)


@pytest.mark.parametrize("new_side", ["prefill", "decode", "neither"])
def test_mixed_fleets(newest_release: Path, newest: PluginPeer, new_side: str) -> None:
    """Old and new on either side; the prefill side brings the server."""
    with SglangPeer(newest_release) as old:
        prefill, decode = {
            "prefill": (newest, old),
            "decode": (old, newest),
            "neither": (old, old),
        }[new_side]
        if new_side == "prefill":
            port = free_port()
            address = f"127.0.0.1:{port}"
            newest.call("start_server", host="127.0.0.1", port=port)
        else:
            address = old.serve()
        assert prefill.register(address, PrefillRank()).log == ()
        eventually(lambda: is_ready(address, decode), "READY")
        found = decode.route(address, (0, 0, 0, 0)).value
        assert (found["rank_ip"], found["rank_port"]) == ("10.0.0.7", 40000)
        prefill.register_dp_rank(address, 5, 0)
        eventually(lambda: decode.query_dp_ranks(address, [5]).value == {"5": 0}, "the room")
        assert decode.start_heartbeat(address, ONE).value
        eventually(lambda: decode.heartbeat()["beats"] > 1, "heartbeats")
        assert decode.heartbeat()["misses"] == 0
        decode.stop_heartbeat()
        if new_side == "prefill":
            newest.call("stop_server")
        else:
            old.close_server()


def test_the_server_is_a_child_that_is_kept_running(plugin: PluginPeer) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}"
    first = plugin.call("start_server", host="127.0.0.1", port=port)
    assert first["grpc"] in (port + 10_000, first["grpc"] if port > 55_535 else -1)
    plugin.register(address, PrefillRank())
    eventually(lambda: is_ready(address, plugin), "READY")

    os.kill(first["pid"], signal.SIGKILL)
    eventually(lambda: plugin.call("server")["pid"] != first["pid"], "another child")
    eventually(lambda: plugin.call("held") == 1, "the rank is held again")
    eventually(lambda: is_ready(address, plugin), "READY again")
    assert plugin.call("server")["instance"] == first["instance"]
    with urllib.request.urlopen(f"http://{address}/health", timeout=5) as reply:
        assert reply.headers["Bootstrap-Instance-Id"] == first["instance"]

    second = plugin.call("server")["pid"]
    plugin.call("stop_server")
    assert not alive(second)
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_the_child_goes_with_its_engine(newest: PluginPeer) -> None:
    port = free_port()
    child = newest.call("start_server", host="127.0.0.1", port=port)["pid"]
    newest.kill()
    # 2 s are promised; no test asserts a time.
    eventually(lambda: not alive(child), "the child is gone")
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_another_bootstrap_grpc_on_the_port_is_joined_and_taken_over(newest: PluginPeer) -> None:
    with run_service() as service:
        port = int(service.address.rpartition(":")[2])
        assert newest.call("start_server", host="127.0.0.1", port=port)["joined"]
    eventually(lambda: not newest.call("server")["joined"], "its own child")
    newest.call("stop_server")


def test_a_port_that_anything_else_holds_raises(newest: PluginPeer) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(ChildError, match="no bootstrap-grpc"),
    ):
        newest.call("start_server", host="127.0.0.1", port=other.getsockname()[1])


def test_a_switch_of_roles_ends_the_holds(newest: PluginPeer, service: Service) -> None:
    newest.register(service.address, PrefillRank())
    assert newest.call("held") == 1
    newest.call("tear_down", address=service.address)
    assert newest.call("held") == 0
    newest.register(service.address, PrefillRank(rank_port=40002))
    eventually(lambda: newest.call("held") == 1, "the new role's rank is held")


def test_an_engine_that_started_anew_is_asked_again(
    newest: PluginPeer, newest_release: Path
) -> None:
    """The manager drops the topology without a heartbeat's help, and reads the new routes."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    for rank_port in (17001, 17555):
        with PluginPeer(newest_release) as prefill:
            prefill.call("start_server", host="127.0.0.1", port=port)
            prefill.register(address, PrefillRank(rank_port=rank_port))
            if rank_port == 17555:
                eventually(lambda: not newest.call("knows", address=address), "it is dropped")
            eventually(lambda: newest.call("watch", address=address, sizes=ONE), "topology is read")
            eventually(lambda: newest.call("live", address=address), "gRPC is live")
            found = newest.route(address, (0, 0, 0, 0)).value
            assert found["rank_port"] == rank_port
            prefill.kill()
        eventually(lambda: _is_free(port), "the port is free")


def _is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def test_a_live_swap_of_the_prefill_side_and_back(newest_release: Path, newest: PluginPeer) -> None:
    """SGLang's server, ours and SGLang's again on one port, under a decode that keeps running."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    with SglangPeer(newest_release) as first:
        first.serve(port=port)
        first.register(address, PrefillRank())
        assert newest.start_heartbeat(address, ONE, interval=5.0).value  # SGLang's own
        eventually(lambda: newest.heartbeat()["beats"] > 0, "heartbeats")
        first.close_server()
    with PluginPeer(newest_release) as second:
        second.call("start_server", host="127.0.0.1", port=port)
        second.register(address, PrefillRank(rank_port=40002))
        eventually(lambda: is_ready(address, newest), "READY")
        eventually(lambda: newest.call("live", address=address), "gRPC is live")
        assert newest.route(address, (0, 0, 0, 0)).value["rank_port"] == 40002
        second.call("stop_server")
    with SglangPeer(newest_release) as third:
        third.serve(port=port)
        third.register(address, PrefillRank(rank_port=40003))
        eventually(lambda: is_ready(address, newest), "READY")
        assert newest.route(address, (0, 0, 0, 0)).value["rank_port"] == 40003
        assert not newest.call("live", address=address)
        assert newest.heartbeat()["misses"] <= 2
        newest.stop_heartbeat()


def test_rooms_of_replica_1_are_answered_with_1(newest: PluginPeer, service: Service) -> None:
    newest.call("register_replica", address=service.address, dp_size=2, dp_rank=1, port=40001)
    newest.register_dp_rank(service.address, 902, 0)  # what SGLang sends
    eventually(
        lambda: newest.query_dp_ranks(service.address, [902]).value == {"902": 1},
        "the room has the rank that keys its route",
    )
