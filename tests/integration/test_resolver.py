"""Resolver, publisher and topology cache against a real service, through outages."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bootstrap_grpc.client import (
    AsyncBootstrapClient,
    BootstrapClient,
    InvalidRequest,
    NoContact,
    RankKey,
    Registration,
    Shape,
    Topology,
    TopologyState,
)
from bootstrap_grpc.server.service import ServiceConfig
from support.rooms import collect, waiting
from support.serve import ServeProcess, serving
from support.service import RunningService, eventually, running_service


@pytest.fixture
def running() -> Iterator[RunningService]:
    with running_service(ServiceConfig(grpc_port=0, max_waiting_rooms=1_000)) as running:
        yield running


@pytest.fixture
def client(running: RunningService) -> Iterator[BootstrapClient]:
    with BootstrapClient(running.grpc) as client:
        yield client


# --- resolver and publisher ---


def test_published_rooms_are_resolved(client: BootstrapClient) -> None:
    resolver, publisher = client.resolver(), client.publisher()
    rooms = {room: room % 5 for room in (0, 1, 2**63, 2**64 - 1)}
    resolver.submit([*rooms, 77])
    for room, rank in rooms.items():
        publisher.publish(room, rank)
    assert collect(resolver, 4) == rooms
    assert resolver.poll() == {}, "each is given out once"
    assert len(resolver) == 1
    assert publisher.flush(20)


def test_discarded_rooms_are_not_given_out(
    running: RunningService, client: BootstrapClient
) -> None:
    resolver = client.resolver()
    resolver.submit([1, 2])
    eventually(lambda: waiting(running) == 2, "the service is asked")
    resolver.discard([1, 99])
    client.register_dp_ranks({1: 3, 2: 4})
    assert collect(resolver, 1) == {2: 4}
    eventually(lambda: waiting(running) == 0, "the service is told")


def test_an_answer_is_not_given_out_that_was_discarded_before_the_poll(
    client: BootstrapClient,
) -> None:
    resolver = client.resolver()
    client.register_dp_ranks({1: 3, 2: 4})
    resolver.submit([1, 2])
    eventually(lambda: len(resolver._answers) == 1, "both are answered")
    assert len(resolver) == 2
    resolver.discard([1])
    assert resolver.poll() == {2: 4}
    assert len(resolver) == 0


def test_a_room_discarded_while_its_answer_is_sorted_out_is_not_given_out(
    client: BootstrapClient,
) -> None:
    """It was neither asked for any more nor among the answers yet: nobody took it out."""
    resolver = client.resolver()
    discarding = threading.Thread(target=resolver.discard, args=([1],))

    class Interrupted(dict[int, float]):
        def pop(self, room: int, default: float | None = None) -> float | None:  # type: ignore[override]
            found = super().pop(room, default)
            if threading.current_thread() is not discarding and not discarding.ident:
                discarding.start()
                discarding.join(0.2)  # over where nothing holds it back
            return found

    resolver._live = Interrupted({1: 1e9, 2: 1e9})
    resolver._deliver({1: 3, 2: 4})
    discarding.join()
    assert resolver.poll() == {2: 4}


def test_a_room_that_is_answered_and_asked_for_again_is_given_out_once(
    running: RunningService, client: BootstrapClient
) -> None:
    resolver = client.resolver()
    client.register_dp_ranks({1: 3, 2: 4})
    resolver.submit([1])
    eventually(lambda: len(resolver._answers) == 1, "it is answered")
    resolver.submit([1, 2])
    assert collect(resolver, 2) == {1: 3, 2: 4}
    eventually(lambda: waiting(running) == 0, "nothing more is asked for")
    assert resolver.poll() == {}
    assert len(resolver) == 0


def test_a_room_that_never_comes_expires(running: RunningService, client: BootstrapClient) -> None:
    resolver = client.resolver()
    resolver.submit([1], timeout=0.05)
    resolver.submit([2], timeout=60)
    expired: list[int] = []
    eventually(lambda: expired.extend(resolver.expired()) or expired, "room 1 expires")
    assert expired == [1]
    assert (len(resolver), resolver.poll()) == (1, {})
    eventually(lambda: waiting(running) == 1, "the service is told")
    resolver.submit([1], timeout=60)
    client.register_dp_ranks({1: 6})
    assert collect(resolver, 1) == {1: 6}


@pytest.mark.parametrize("room", [-1, 2**64, 1.0, "1", None, True])
def test_misuse_raises_at_once_in_the_caller(client: BootstrapClient, room: object) -> None:
    resolver, publisher = client.resolver(), client.publisher()
    for call in (resolver.submit, resolver.discard):
        with pytest.raises(InvalidRequest, match="room"):
            call([1, room])  # type: ignore[list-item]
    with pytest.raises(InvalidRequest, match="room"):
        publisher.publish(room, 0)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="dp_rank"):
        publisher.publish(1, -1)
    assert len(resolver) == 0


def test_nothing_raises_or_waits_where_nobody_listens() -> None:
    with BootstrapClient("127.0.0.1:9") as nowhere:
        resolver, publisher = nowhere.resolver(), nowhere.publisher()
        resolver.submit(range(100))
        for room in range(100):
            publisher.publish(room, 0)
        assert (resolver.poll(), resolver.expired()) == ({}, [])
        assert not publisher.flush(0.05)


def test_threads_do_not_grow_with_rooms_addresses_or_time(client: BootstrapClient) -> None:
    client.resolver().submit([1])
    before = threading.active_count()
    clients = [BootstrapClient(f"127.0.0.1:{port}") for port in range(1, 65)]
    for each in clients:
        each.resolver().submit(range(100))
        each.publisher().publish(1, 1)
    assert threading.active_count() == before
    for each in clients:
        each.close()


def test_a_closed_resolver_says_so(client: BootstrapClient) -> None:
    resolver, publisher = client.resolver(), client.publisher()
    client.close()
    with pytest.raises(ValueError, match="closed"):
        resolver.submit([1])
    with pytest.raises(ValueError, match="closed"):
        publisher.publish(1, 1)


# --- local answers ---


@pytest.mark.parametrize(
    ("shape", "answers"),
    [
        (Shape(dp_size=1), {5: 0, 8: 0}),
        (Shape(dp_size=3), {5: 2, 8: 2}),
        (Shape(dp_size=3, load_balance_method="follow_bootstrap_room"), {5: 2, 8: 2}),
    ],
)
def test_what_the_topology_implies_is_answered_without_a_message(
    running: RunningService, client: BootstrapClient, shape: Shape, answers: dict[int, int]
) -> None:
    resolver = client.resolver(local_answers=True)
    resolver.submit([5])  # before anything is known
    for dp_rank in range(shape.dp_size):
        client.register_rank(Registration(RankKey(dp_rank), "10.0.0.1", 17000, shape))
    known = collect(resolver, 1)
    eventually(lambda: waiting(running) == 0, "the service need not be asked any more")
    resolver.submit([8])
    known.update(resolver.poll())
    assert known == answers
    assert waiting(running) == 0


def test_local_answers_are_off_where_the_engine_balances_otherwise(
    running: RunningService, client: BootstrapClient
) -> None:
    shape = Shape(dp_size=2, load_balance_method="round_robin")
    for dp_rank in (0, 1):
        client.register_rank(Registration(RankKey(dp_rank), "10.0.0.1", 17000, shape))
    resolver = client.resolver(local_answers=True)
    assert client.topology_cache().wait(20).state is TopologyState.READY
    resolver.submit([5])
    eventually(lambda: waiting(running) == 1, "the service is asked")
    client.register_dp_ranks({5: 0})
    assert collect(resolver, 1) == {5: 0}


# --- the topology cache ---


def test_the_cache_follows_changes_restarts_and_losses(tmp_path: Path) -> None:
    with ServeProcess(tmp_path) as service:
        service.start()
        with BootstrapClient(service.grpc) as client, BootstrapClient(service.grpc) as successor:
            cache = client.topology_cache()
            restarts: list[tuple[int, int]] = []
            losses: list[str] = []
            states: list[Topology] = []
            cache.on_change(states.append)
            cache.on_restart(lambda old, new: restarts.append((old.generation, new.generation)))
            cache.on_restart(lambda _old, _new: 1 / 0)  # must not end the watch
            cache.on_lost(lambda error: losses.append(error.target))
            assert cache.wait(20).state is TopologyState.EMPTY
            assert cache.age() == 0
            client.register_rank(Registration(RankKey(), "10.0.0.1", 17000, Shape()))
            eventually(cache.ready, "READY reaches the cache")
            successor.register_rank(Registration(RankKey(), "10.0.0.1", 17555, Shape()))
            eventually(lambda: restarts == [(1, 2)], "the restart is told")
            service.kill()
            eventually(lambda: losses == [service.grpc], "the loss is told")
            assert cache.age() >= 0
            current = cache.current()
            assert current is not None
            assert current.routes[0].rank_port == 17555, "what was known stays readable"
            assert cache.ready() is None
            service.start()
            eventually(lambda: cache.current().server_id != current.server_id, "it is back")  # type: ignore[union-attr]
            assert cache.age() == 0
            assert states[0].state is TopologyState.EMPTY


def test_moved_ranks_are_a_restart_also_where_the_service_started_empty(tmp_path: Path) -> None:
    with ServeProcess(tmp_path) as service:
        service.start()
        with BootstrapClient(service.grpc) as client:
            cache = client.topology_cache()
            moved: list[tuple[int, int]] = []
            cache.on_restart(
                lambda old, new: moved.append((old.routes[0].rank_port, new.routes[0].rank_port))
            )
            states: list[TopologyState] = []
            cache.on_change(lambda topology: states.append(topology.state))
            client.register_rank(Registration(RankKey(), "10.0.0.1", 17000, Shape()))
            eventually(cache.ready, "READY reaches the cache")
            service.kill()
            service.start()
            eventually(lambda: states[-1] is TopologyState.EMPTY, "the new service is empty")
            assert moved == []
            client.register_rank(Registration(RankKey(), "10.0.0.1", 17555, Shape()))
            eventually(lambda: moved, "the moved rank is told")
            assert moved == [(17000, 17555)]


def test_start_up_code_waits_for_the_first_state_and_for_ready(
    running: RunningService, client: BootstrapClient
) -> None:
    cache = client.topology_cache()
    assert cache.wait(20).state is TopologyState.EMPTY
    assert cache.wait_ready(0.01) is None
    with ThreadPoolExecutor(2) as pool:
        waiters = [pool.submit(cache.wait_ready, 20) for _ in range(2)]
        client.register_rank(Registration(RankKey(), "10.0.0.1", 17000, Shape()))
        for waiter in waiters:
            ready = waiter.result()
            assert ready is not None
            assert ready.routes[0].rank_port == 17000
    assert cache.wait_ready(0) is cache.current()


async def test_asyncio_start_up_code_waits_for_the_first_state_and_for_ready(
    running: RunningService,
) -> None:
    async with AsyncBootstrapClient(running.grpc) as client:
        cache = client.topology_cache()
        assert await cache.wait_ready(0) is None
        assert (await cache.wait(20)).state is TopologyState.EMPTY
        assert await cache.wait_ready(0.01) is None
        waiters = [asyncio.create_task(cache.wait_ready(20)) for _ in range(2)]
        await client.register_rank(Registration(RankKey(), "10.0.0.1", 17000, Shape()))
        for ready in await asyncio.gather(*waiters):
            assert ready is not None
            assert ready.routes[0].rank_port == 17000
        assert await cache.wait_ready(0) is cache.current()
    async with AsyncBootstrapClient("127.0.0.1:1") as nobody:
        with pytest.raises(NoContact, match=r"127\.0\.0\.1:1: no topology in time"):
            await nobody.topology_cache().wait(0.01)


# --- outages ---


def test_rooms_outlive_restarts_of_the_service_in_any_order(tmp_path: Path) -> None:
    with ServeProcess(tmp_path) as service:
        service.start()
        with BootstrapClient(service.grpc) as client:
            resolver, publisher = client.resolver(), client.publisher()
            publisher.publish(1, 1)  # acknowledged before the crash
            assert publisher.flush(20)
            resolver.submit([2])  # asked before the crash
            service.kill()
            publisher.publish(3, 3)  # published during the outage
            publisher.publish(1, 7)  # changed during the outage
            resolver.submit([1, 3])
            service.start()
            publisher.publish(2, 2)
            assert collect(resolver, 3) in ({1: 7, 2: 2, 3: 3}, {1: 1, 2: 2, 3: 3})
            assert publisher.flush(20)
            assert client.query_dp_ranks([1, 2, 3]) == {1: 7, 2: 2, 3: 3}


@pytest.mark.timeout(180)
def test_no_room_is_lost_by_kills_at_random_moments(tmp_path: Path) -> None:
    die = random.Random(20261203)
    with ServeProcess(tmp_path) as service:
        service.start()
        with BootstrapClient(service.grpc) as client:
            resolver, publisher = client.resolver(), client.publisher()
            published: dict[int, int] = {}
            stop = threading.Event()

            def publish() -> None:
                while not stop.wait(0.001):
                    room = len(published)
                    published[room] = room % 8
                    publisher.publish(room, room % 8)

            publishing = threading.Thread(target=publish)
            publishing.start()
            known: dict[int, int] = {}
            try:
                for _ in range(5):
                    kill_at = len(published) + die.randrange(1, 300)
                    while len(published) < kill_at:
                        resolver.submit(range(len(known), len(published)))
                        known.update(resolver.poll())
                        stop.wait(0.002)
                    service.kill()
                    service.start()
            finally:
                stop.set()
                publishing.join()
            resolver.submit(room for room in published if room not in known)
            known.update(collect(resolver, len(published) - len(known)))
            assert known == published
            assert publisher.flush(20)
            assert client.query_dp_ranks(published) == published, "a new service knows them all"


def test_a_frozen_service_costs_the_caller_nothing_and_others_nothing(tmp_path: Path) -> None:
    (tmp_path / "frozen").mkdir()
    (tmp_path / "healthy").mkdir()
    with (
        serving(tmp_path / "frozen") as frozen,
        serving(tmp_path / "healthy") as healthy,
        BootstrapClient(frozen.grpc) as one,
        BootstrapClient(healthy.grpc) as two,
    ):
        stuck, free = one.resolver(), two.resolver()
        stuck.submit([1])
        one.register_dp_ranks({1: 1})
        collect(stuck, 1)  # connected
        frozen.send(signal.SIGSTOP)
        stuck.submit(range(100, 164))
        one.publisher().publish(100, 5)
        for _ in range(1_000):
            assert stuck.poll() == {}
        free.submit([2])
        two.register_dp_ranks({2: 2})
        assert collect(free, 1) == {2: 2}
        frozen.send(signal.SIGCONT)
        assert collect(stuck, 1) == {100: 5}


# --- asyncio ---


async def test_the_asyncio_twins_share_meanings(running: RunningService) -> None:
    async with AsyncBootstrapClient(running.grpc) as client:
        resolver, publisher = client.resolver(), client.publisher()
        resolver.submit([1, 2])
        publisher.publish(1, 3)
        known: dict[int, int] = {}
        while not known:
            known.update(await resolver.wait(20))
        assert known == {1: 3}
        publisher.publish(2, 4)
        publisher.publish(5, 6)
        assert await publisher.drain(20)
        assert await resolver.resolve([5], timeout=20) == {2: 4, 5: 6}
        assert await resolver.resolve([99], timeout=0.05) == {}
        with pytest.raises(InvalidRequest):
            resolver.submit([-1])
        with pytest.raises(TypeError, match="drain"):
            publisher.flush()
        async with client.topology_cache() as cache:
            assert (await cache.wait(20)).state is TopologyState.EMPTY
            assert cache.age() == 0


def test_a_mute_server_is_no_hang() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        BootstrapClient(f"127.0.0.1:{mute.getsockname()[1]}") as client,
    ):
        resolver = client.resolver()
        resolver.submit([1], timeout=0.1)
        expired: list[int] = []
        eventually(lambda: expired.extend(resolver.expired()) or expired, "it expires")
