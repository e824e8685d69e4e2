"""Whole SGLang servers on the CPU, unmodified and with the plugin: ``make test-e2e``."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from bootstrap_grpc.client import BootstrapClient, BootstrapError, NoContact, TopologyState
from support.engine_pair import OFF, PLUGIN, Answer, EnginePair
from support.service import eventually

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

REQUESTS = 200
AT_ONCE = 8
REPORTING = {**PLUGIN, "SGLANG_BOOTSTRAP_GRPC_REPORT": "1"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnginePair]:
    """Both servers with the plugin, for all tests of this file."""
    folder = tmp_path_factory.mktemp("plugin")
    with EnginePair(folder, prefill=REPORTING, decode=REPORTING) as started:
        yield started


def is_held(client: BootstrapClient) -> bool:
    try:
        topology = client.get_topology(timeout=2)
    except (BootstrapError, NoContact):
        return False
    return topology.state is TopologyState.READY and all(route.held for route in topology.routes)


def all_answered(pair: EnginePair, count: int) -> range:
    """Send ``count`` requests, several at once; every one must be answered. Their rooms."""
    rooms = pair.rooms(count)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers: list[Answer] = list(threads.map(pair.request_room, rooms))
    assert [answer for answer in answers if answer.error or answer.tokens != 8] == []
    return rooms


def answered(pair: EnginePair) -> bool:
    with requests.Session() as session:
        return not pair.request(session, timeout=10).error


def reported(log: str) -> Counter[str]:
    """The newest report of each process of an engine, summed: ``grpc`` and ``http`` calls."""
    newest: dict[str, dict[str, int]] = {}
    for pid, text in re.findall(r"pid (\d+), bootstrap calls so far: (\{.*?\}\})", log):
        newest[pid] = {
            transport: sum(calls.values()) for transport, calls in json.loads(text).items()
        }
    total: Counter[str] = Counter()
    for counts in newest.values():
        total.update(counts)
    return total


def test_the_unmodified_pair_answers(tmp_path: Path) -> None:
    """The yardstick: what fails here is not the plugin's doing."""
    with EnginePair(tmp_path, prefill=OFF, decode=OFF) as unmodified:
        all_answered(unmodified, 20)
        assert "bootstrap-grpc" not in unmodified.prefill.log + unmodified.decode.log


def test_every_process_says_that_all_runs_over_grpc(pair: EnginePair) -> None:
    for engine in (pair.prefill, pair.decode):
        lines = [line for line in engine.log.splitlines() if "over gRPC with peers" in line]
        assert lines
        assert all("over HTTP as before: nothing" in line for line in lines)


def requests_without_a_connection(pair: EnginePair) -> range:
    """Send the requests, and see that the decode opens no connection for them. Their rooms."""
    all_answered(pair, 10)  # discovery
    eventually(lambda: not pair.decode.connections(pair.bootstrap_port), "HTTP is left")
    before = reported(pair.decode.log)
    over_http: list[Any] = []
    over_grpc: list[int] = []
    done = threading.Event()

    def sample() -> None:
        while not done.is_set():
            over_http.extend(pair.decode.connections(pair.bootstrap_port))
            grpc = pair.decode.connections(pair.grpc_port)
            over_grpc.append(sum(each.status == psutil.CONN_ESTABLISHED for each in grpc))
            done.wait(0.05)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        rooms = all_answered(pair, REQUESTS)
    finally:
        done.set()
        sampler.join()
    assert over_http == []
    assert set(over_grpc) == {1}  # one decode process asks
    waiting = [
        each
        for each in psutil.net_connections("tcp")
        if each.status == psutil.CONN_TIME_WAIT
        and each.raddr
        and each.raddr.port in (pair.bootstrap_port, pair.grpc_port)
    ]
    assert waiting == []
    # The decode's own count: its heartbeats at least went over gRPC.
    eventually(lambda: reported(pair.decode.log)["grpc"] > before["grpc"], "calls are counted")
    assert reported(pair.decode.log)["http"] == before["http"]
    return rooms


def test_200_requests_open_no_connection(pair: EnginePair) -> None:
    requests_without_a_connection(pair)


def test_a_killed_service_is_started_again(pair: EnginePair) -> None:
    child = pair.prefill.bootstrap_child()
    os.kill(child.pid, signal.SIGKILL)
    eventually(lambda: child_pid(pair) not in (None, child.pid), "another child")
    with BootstrapClient(f"127.0.0.1:{pair.grpc_port}") as client:
        eventually(lambda: is_held(client), "the rank is held again")
    all_answered(pair, 20)


def test_a_prefill_that_starts_anew_is_found_without_a_restart_of_the_decode(
    pair: EnginePair,
) -> None:
    pair.prefill.kill()
    eventually(lambda: is_free(pair.bootstrap_port), "the port is free")
    pair.prefill.start()
    pair.prefill.wait_ready(starts=2)
    eventually(lambda: answered(pair), "a request is answered", timeout=30)
    all_answered(pair, 20)


def test_the_service_goes_with_its_engine(pair: EnginePair) -> None:
    child = pair.prefill.bootstrap_child()
    pair.prefill.kill()
    eventually(lambda: not child.is_running(), "the child is gone")
    assert is_free(pair.bootstrap_port)


def test_both_replicas_of_plain_dp_answer(tmp_path: Path) -> None:
    """Requests on replica 1 hang with SGLang 0.5.23 alone: it registers rank 0 for them.

    Here each request registers its DP rank and has it asked for.
    """
    with EnginePair(
        tmp_path,
        prefill={**REPORTING, "SGLANG_CPU_OMP_THREADS_BIND": "0|1"},
        decode=REPORTING,
        prefill_flags=["--dp-size", "2", "--load-balance-method", "round_robin"],
    ) as replicas:
        rooms = requests_without_a_connection(replicas)
        with BootstrapClient(f"127.0.0.1:{replicas.grpc_port}") as client:
            known = Counter(client.query_dp_ranks(rooms).values())
        assert set(known) == {0, 1}
        assert sum(known.values()) == REQUESTS
        assert '"register_dp_rank"' in replicas.prefill.log
        assert '"query_dp_ranks"' in replicas.decode.log


def child_pid(pair: EnginePair) -> int | None:
    try:
        return pair.prefill.bootstrap_child().pid
    except LookupError:
        return None


def is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False
