"""The heartbeat threads of all releases that have one, through a restart of the service."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from support.sglang_matrix import SIZES, Peers
from support.sglang_members import HEARTBEATS, MEMBERS, Member, chosen
from support.sglang_servers import ranks_of, run_service

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

_NEWEST = MEMBERS[-1]

INTERVAL = 5.0
"""Seconds between two heartbeats: SGLang's default. At the second miss a server is given up."""


def wait_until(condition: Callable[[], bool], timeout: float = 30.0) -> None:
    """Poll until ``condition`` holds; fail after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.02)


def test_content_through_a_restart_shorter_than_two_misses(peers: Peers) -> None:
    watching = {member: peers.of(member) for member in chosen(HEARTBEATS)}
    newest = watching[_NEWEST]

    def beats() -> dict[Member, int]:
        return {member: peer.heartbeat()["beats"] for member, peer in watching.items()}

    try:
        with run_service(omit=("prefill_http_port",)) as service:
            for rank in ranks_of(SIZES):
                assert newest.register(service.address, rank).log == ()
            for member, peer in watching.items():
                started = peer.start_heartbeat(service.address, SIZES, INTERVAL)
                assert started.value, f"{member}: {started.log}"
            wait_until(lambda: min(beats().values()) > 0)
            service.kill()  # no goodbye: as hard as a restart can be
        before = beats()
        with run_service(port=int(service.address.rpartition(":")[2])):
            wait_until(lambda: all(beats()[member] > before[member] for member in watching))
            for member, peer in watching.items():
                state = peer.heartbeat()
                assert (state["misses"], state["known"]) == (0, True), member
    finally:
        for peer in watching.values():
            peer.stop_heartbeat()
