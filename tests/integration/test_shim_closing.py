"""Who closes first, seen from the client's socket and from the kernel's table of connections."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

import pytest

from bootstrap_grpc.compat.config import HttpConfig
from support.http_shim import TOPOLOGY, RunningShim, payload, rank_target, running_shim

ESTABLISHED, TIME_WAIT, CLOSE_WAIT = 1, 6, 8
PER_RANK = rank_target()
QUERY = ("POST", "/query_dp_ranks", {"bootstrap_rooms": [1]})
T = TypeVar("T")


@pytest.fixture
async def shim() -> AsyncIterator[RunningShim]:
    async with running_shim() as running:
        await running.register()
        yield running


def request(method: str, target: str, body: object = None, *, headers: str = "") -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(data)}\r\n{headers}\r\n"
    return head.encode() + data


def call_once(port: int, data: bytes, source: str = "127.0.0.1") -> tuple[int, int]:
    """An unpooled client: the socket's state as the reply comes, and its port after its close."""
    with closing(socket.create_connection(("127.0.0.1", port), 20, (source, 0))) as client:
        client.sendall(data)
        client.recv(1, socket.MSG_PEEK)
        state = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        assert client.recv(65_536).startswith(b"HTTP/1.1 ")
        return state, client.getsockname()[1]


def states_of(port: int) -> dict[tuple[int, int], int]:
    """TCP state by (local port, remote port), of the connections from or to ``port``."""
    found = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        pair = int(local.rpartition(":")[2], 16), int(remote.rpartition(":")[2], 16)
        if port in pair:
            found[pair] = int(state, 16)
    return found


async def until(check: Callable[[], T]) -> T:
    """The first true value of ``check``; the test's time-out ends a check that stays false."""
    while True:
        value = check()
        if value:
            return value
        await asyncio.sleep(0.01)


CLOSED_FIRST = [
    request("PUT", "/route", payload()),
    request("GET", TOPOLOGY),
    request("POST", "/register_dp_rank", {"bootstrap_room": 1, "dp_rank": 0}),
]


@pytest.mark.parametrize("data", CLOSED_FIRST, ids=["register", "topology", "register_dp_rank"])
async def test_the_fin_comes_with_the_reply(shim: RunningShim, data: bytes) -> None:
    for _ in range(50):
        state, _ = await asyncio.to_thread(call_once, shim.port, data)
        assert state == CLOSE_WAIT


async def test_the_fin_comes_with_the_reply_of_a_busy_loop(shim: RunningShim) -> None:
    loop = asyncio.get_running_loop()
    over = False

    def spin() -> None:
        until = loop.time() + 200e-6
        while loop.time() < until:
            pass
        if not over:
            loop.call_soon(spin)

    spin()
    try:
        for data in CLOSED_FIRST * 20:
            state, _ = await asyncio.to_thread(call_once, shim.port, data)
            assert state == CLOSE_WAIT
    finally:
        over = True


async def test_the_server_keeps_the_time_wait(shim: RunningShim) -> None:
    # By their ports on both sides: an earlier test's TIME-WAIT may name this shim's port.
    ports = {(await asyncio.to_thread(call_once, shim.port, data))[1] for data in CLOSED_FIRST * 10}

    def all_closed() -> dict[tuple[int, int], int] | None:
        found = {pair: s for pair, s in states_of(shim.port).items() if set(pair) & ports}
        return found if set(found.values()) <= {TIME_WAIT} else None

    found = await until(all_closed)
    assert {local for local, _ in found} == {shim.port}, "a client's TIME-WAIT"


async def test_health_is_never_closed_first(shim: RunningShim) -> None:
    states = [(await asyncio.to_thread(call_once, shim.port, request("GET", "/health")))[0]]
    assert states == [ESTABLISHED]
    connection = await shim.connect()
    for _ in range(5):
        await connection.send("GET", "/health")
        assert not (await connection.receive()).closes


@pytest.mark.parametrize("call", [("GET", PER_RANK, None), QUERY], ids=["rank", "query"])
async def test_a_peer_that_does_not_pool_is_learned(
    shim: RunningShim, call: tuple[str, str, object]
) -> None:
    data = request(*call)
    pooled = await shim.connect()
    await pooled.send(*call)
    assert not (await pooled.receive()).closes
    await pooled.send(*call)
    assert not (await pooled.receive()).closes
    states = [
        (await asyncio.to_thread(call_once, shim.port, data, "127.0.0.2"))[0] for _ in range(20)
    ]
    assert states[2:] == [CLOSE_WAIT] * 18
    for _ in range(3):  # what was learned of one address concerns no other, nor an open connection
        await pooled.send(*call)
        assert not (await pooled.receive()).closes
    again, _ = await asyncio.to_thread(call_once, shim.port, data, "127.0.0.3")
    assert again == ESTABLISHED


async def test_clients_that_come_at_once_are_closed_first_but_for_two(shim: RunningShim) -> None:
    connections = [await shim.connect() for _ in range(8)]
    for connection in connections:
        await connection.send("GET", PER_RANK)
    closes = Counter([(await connection.receive()).closes for connection in connections])
    assert closes == {True: 6, False: 2}


async def test_a_refusal_is_closed_as_its_path_is(shim: RunningShim) -> None:
    for data in (request("PUT", "/route", []), request("POST", "/register_dp_rank", {})):
        state, _ = await asyncio.to_thread(call_once, shim.port, data)
        assert state == CLOSE_WAIT


async def test_pipelined_requests_all_get_their_reply(shim: RunningShim) -> None:
    connection = await shim.connect()
    await connection.write(b"".join(CLOSED_FIRST) * 3 + request("GET", "/health"))
    replies = [await connection.receive() for _ in range(10)]
    assert [reply.status for reply in replies] == [200] * 10
    assert [reply.closes for reply in replies] == [False] * 10
    await connection.write(b"".join(CLOSED_FIRST))
    replies = [await connection.receive() for _ in range(3)]
    assert [reply.closes for reply in replies] == [False, False, True]
    assert await connection.at_eof()


async def test_http_1_0_and_connection_close(shim: RunningShim) -> None:
    for head in (
        "GET /health HTTP/1.0\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    ):
        with closing(socket.create_connection(("127.0.0.1", shim.port), 20)) as client:
            client.sendall(head.encode())
            await asyncio.to_thread(client.recv, 1, socket.MSG_PEEK)
            assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == CLOSE_WAIT
            assert client.recv(65_536).endswith(b"\r\n\r\nOK")
    connection = await shim.connect()
    for _ in range(3):
        await connection.send("GET", "/health", version="1.0", headers="Connection: keep-alive\r\n")
        reply = await connection.receive()
        assert reply.headers["connection"] == "keep-alive"


async def test_chunked_requests(shim: RunningShim) -> None:
    connection = await shim.connect()
    for _ in range(3):
        await connection.send(*QUERY[:2], headers="Transfer-Encoding: chunked\r\n")
        for part in (b'{"bootstrap_', b'rooms": [1]}', b""):
            await connection.write(b"%x\r\n%b\r\n" % (len(part), part))
        assert (await connection.receive()).json == {}


async def test_a_reply_longer_than_every_buffer_arrives_whole() -> None:
    keys = {f"key{n}": "x" * 16_000 for n in range(64)}
    async with running_shim(HttpConfig(pass_keys=frozenset(keys))) as shim:
        await shim.register(**keys)
        connection = await shim.connect()
        await connection.send("GET", TOPOLOGY)
        await until(lambda: CLOSE_WAIT not in states_of(shim.port).values())
        topology = (await connection.receive()).json
        assert keys.items() <= topology.items()
        assert await connection.at_eof()


async def test_a_peer_that_stays_is_left_after_its_silence() -> None:
    async with running_shim(HttpConfig(linger=0.05)) as shim:
        connection = await shim.connect()
        await connection.send("GET", TOPOLOGY)
        assert (await connection.receive()).closes

        # A byte is answered with a reset once the server has given up the connection.
        with suppress(ConnectionError):
            while True:
                await connection.write(b"x")
                await asyncio.sleep(0.1)  # longer than the silence


async def test_what_a_peer_sends_after_the_reply_does_not_reset_it(shim: RunningShim) -> None:
    connection = await shim.connect()
    await connection.send("GET", TOPOLOGY)
    await until(lambda: CLOSE_WAIT in states_of(shim.port).values())
    for _ in range(10):
        await connection.send("GET", TOPOLOGY)
    assert (await connection.receive()).status == 200
    assert await connection.at_eof()


async def test_stop_does_not_wait_for_peers_that_stay() -> None:
    async with running_shim(HttpConfig(linger=50.0)) as shim:
        connection = await shim.connect()
        await connection.send("GET", TOPOLOGY)
        await connection.receive()
        idle = await shim.connect()
        await idle.send("GET", "/health")
        await idle.receive()
        await asyncio.wait_for(shim.shim.stop(50.0), 20)
        assert await idle.at_eof()
