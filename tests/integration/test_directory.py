"""Prefill servers by address: few kept, shared where they are one, none in another's way."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import psutil
import pytest

from bootstrap_grpc.client import BootstrapClient, PrefillDirectory, RankKey, Registration, Shape
from bootstrap_grpc.server.service import ServiceConfig
from support.clock import FakeClock
from support.service import RunningService, eventually, running_service


@pytest.fixture
def running() -> Iterator[RunningService]:
    with running_service() as running:
        yield running


def connections(port: int) -> int:
    own = psutil.Process().net_connections("tcp")
    return sum(1 for c in own if c.raddr and c.raddr.port == port and c.status == "ESTABLISHED")


def test_each_address_has_one_of_each_and_resolves(running: RunningService) -> None:
    with PrefillDirectory() as directory, BootstrapClient(running.grpc) as client:
        resolver = directory.resolver(running.grpc)
        assert directory.resolver(running.grpc) is resolver
        resolver.submit([1])
        directory.publisher(running.grpc).publish(1, 3)
        known: dict[int, int] = {}
        eventually(lambda: known.update(resolver.poll()) or known, "room 1 resolves")
        assert known == {1: 3}
        client.register_rank(Registration(RankKey(), "10.0.0.1", 17000, Shape()))
        eventually(directory.topology_cache(running.grpc).ready, "the topology is READY")
        assert len(directory) == 1


def test_an_address_that_fails_affects_only_its_own_rooms(running: RunningService) -> None:
    with PrefillDirectory() as directory:
        for port in range(1, 50):
            directory.resolver(f"127.0.0.1:{port}").submit([1])
        healthy = directory.resolver(running.grpc)
        healthy.submit([1])
        directory.publisher(running.grpc).publish(1, 3)
        eventually(healthy.poll, "the healthy one resolves")
        assert directory.resolver("127.0.0.1:7").poll() == {}


def test_addresses_of_one_service_share_a_connection() -> None:
    everywhere = ServiceConfig(host="0.0.0.0", grpc_port=0)
    with running_service(everywhere) as running:
        check_sharing(running.service.port)


def check_sharing(port: int) -> None:
    spellings = [f"127.0.0.1:{port}", f"localhost:{port}", f"0.0.0.0:{port}", f"127.0.0.2:{port}"]
    with running_service() as other, PrefillDirectory() as directory:
        caches = [directory.topology_cache(address) for address in (*spellings, other.grpc)]
        eventually(lambda: all(cache.current() for cache in caches), "all are known")
        assert len(directory) == 4, "0.0.0.0 is 127.0.0.1, as a name to dial"
        eventually(lambda: connections(port) <= 1, "one connection is left")
        resolver = directory.resolver(f"localhost:{port}")
        resolver.submit([5])
        directory.publisher(f"127.0.0.1:{port}").publish(5, 2)
        eventually(resolver.poll, "it resolves over the shared connection")
        assert connections(port) <= 1
        assert all(cache.age() == 0 for cache in caches)


def test_the_least_used_address_goes_first_and_what_it_held_with_it(
    running: RunningService,
) -> None:
    with PrefillDirectory(limit=2) as directory:
        first = directory.resolver("127.0.0.1:1")
        directory.resolver("127.0.0.1:2")
        directory.resolver("127.0.0.1:1")
        directory.resolver("127.0.0.1:3")
        assert len(directory) == 2
        assert directory.resolver("127.0.0.1:1") is first
        first.submit([1])
        directory.resolver("127.0.0.1:4")
        directory.resolver("127.0.0.1:5")
        with pytest.raises(ValueError, match="closed"):
            first.submit([2])


def test_an_address_that_is_unused_or_out_of_reach_for_too_long_goes(
    running: RunningService,
) -> None:
    clock = FakeClock()
    with PrefillDirectory(idle=600, clock=clock) as directory:
        directory.resolver(running.grpc)
        eventually(directory.topology_cache(running.grpc).current, "the service is reached")
        dead = directory.resolver("127.0.0.1:1")
        clock.advance(500)
        assert directory.resolver("127.0.0.1:1") is dead
        directory.resolver(running.grpc)
        clock.advance(150)
        directory.resolver(running.grpc)
        assert directory.resolver("127.0.0.1:1") is not dead, "never reached for 650 s"
        clock.advance(601)
        directory.resolver("127.0.0.1:2")
        assert len(directory) == 1


@pytest.mark.timeout(120)
def test_5000_addresses_that_nobody_answers_stay_flat_past_the_cap(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Each is named, asked and given up for newer ones, as a bad router would have it.
    caplog.set_level(logging.INFO)
    process = psutil.Process()
    with PrefillDirectory(limit=100) as directory:

        def name(numbers: range) -> int:
            most = 0
            for number in numbers:
                address = f"127.1.{number // 250}.{number % 250 + 1}:9"
                directory.resolver(address).submit(range(10))
                directory.publisher(address).publish(1, 1)
                most = max(most, process.num_threads())
            return most

        most = name(range(1_000))  # gRPC's own pool comes and goes
        eventually(lambda: len(directory) == 100, "the cap holds")
        before = threading.active_count()
        memory = process.memory_info().rss
        name(range(1_000, 5_000))
        assert len(directory) == 100
        assert threading.active_count() <= before + 1  # gRPC's poller comes and goes, too
        flat = most + 4
        eventually(lambda: process.num_threads() <= flat, "gRPC's pool is no larger", 60)
        assert process.memory_info().rss - memory < 50 * 2**20
        eventually(lambda: process.num_fds() < 400, "no sockets are left behind")
        assert len(caplog.records) <= 3, caplog.text


def test_misuse_says_what_is_wrong() -> None:
    with PrefillDirectory() as directory, pytest.raises(ValueError, match="http"):
        directory.resolver("http://127.0.0.1:8998")
    with pytest.raises(ValueError, match="limit is 0"):
        PrefillDirectory(limit=0)
    with pytest.raises(ValueError, match="idle is 0"):
        PrefillDirectory(idle=0)
