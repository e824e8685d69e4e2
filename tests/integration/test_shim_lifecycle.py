"""Binding, restarting and stopping the HTTP shim."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time

import pytest

from bootstrap_grpc.compat.config import HttpConfig
from bootstrap_grpc.compat.shim import HttpShim
from bootstrap_grpc.server.registry import RankRegistry, RegistryConfig
from bootstrap_grpc.server.rooms import RoomTable
from bootstrap_grpc.server.service import BindError
from support.http_shim import TOPOLOGY, HttpConnection, payload, running_shim


def new_shim(host: str = "127.0.0.1", port: int = 0) -> HttpShim:
    registry = RankRegistry(RegistryConfig("s"), clock=time.monotonic, wall_clock=time.time)
    config = HttpConfig(host=host, port=port)
    return HttpShim(registry, RoomTable(time.monotonic), config, grpc_port=1)


async def connects(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


async def test_a_port_in_use_is_named() -> None:
    first, second = new_shim(), None
    await first.start()
    try:
        second = new_shim(port=first.port)
        with pytest.raises(BindError, match=rf"127\.0\.0\.1:{first.port}: Address already in use"):
            await second.start()
        await second.stop(0)
        assert await connects("127.0.0.1", first.port)
    finally:
        await first.stop(0)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
async def test_a_host_that_is_not_this_one_is_named(host: str) -> None:
    shim = new_shim(host=host)
    with pytest.raises(BindError, match=host):
        await shim.start()
    assert shim.port == 0


async def test_every_address_of_a_name_is_bound_on_one_port() -> None:
    shim = new_shim(host="localhost")
    await shim.start()
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            "localhost", shim.port, type=socket.SOCK_STREAM
        )
        assert any([await connects(entry[4][0], shim.port) for entry in found])
        assert await connects("127.0.0.1", shim.port)
    finally:
        await shim.stop(0)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this host has no IPv6")
async def test_the_ipv6_wildcard_takes_both_families() -> None:
    shim = new_shim(host="::")
    await shim.start()
    try:
        assert await connects("127.0.0.1", shim.port)
        assert await connects("::1", shim.port)
        connection = HttpConnection(*await asyncio.open_connection("127.0.0.1", shim.port))
        await connection.send("PUT", "/route", payload(rank_ip="127.0.0.1"))
        assert (await connection.receive()).status == 200, "::ffff:127.0.0.1 is this host"
        await connection.close()
    finally:
        await shim.stop(0)


async def test_a_port_is_free_again_at_once() -> None:
    """The server keeps the TIME-WAITs, and they must not keep its successor from the port."""
    port = 0
    for _ in range(3):
        shim = new_shim(port=port)
        await shim.start()
        port = shim.port
        for _ in range(3):
            connection = HttpConnection(*await asyncio.open_connection("127.0.0.1", port))
            await connection.send("GET", TOPOLOGY)
            assert (await connection.receive()).closes
            await connection.close()
        await shim.stop(0)
        assert not await connects("127.0.0.1", port)


async def test_stop_lets_requests_in_flight_finish() -> None:
    async with running_shim() as shim:
        connection = await shim.connect()
        body = json.dumps(payload()).encode()
        await connection.send("PUT", "/route", headers=f"Content-Length: {len(body)}\r\n")
        # The handler waits for the body once the server has said that it may come.
        idle = await shim.connect()
        await idle.send("GET", "/health")
        await idle.receive()
        stopping = asyncio.create_task(shim.shim.stop(20.0))
        assert await idle.at_eof()
        await connection.write(body)
        assert (await connection.receive()).status == 200
        await stopping
        assert shim.registry.registered == 1


async def test_stop_does_not_wait_for_a_body_that_never_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for timeout in (0, 0.05):
        async with running_shim() as shim:
            connection = await shim.connect()
            await connection.send("PUT", "/route", headers="Content-Length: 10\r\n")
            other = await shim.connect()
            await other.send("GET", "/health")  # by then the handler waits for the body
            await other.receive()
            await asyncio.wait_for(shim.shim.stop(timeout), 20)
            assert await connection.at_eof()
    assert not [record for record in caplog.records if record.exc_info]


async def test_stop_is_idempotent_and_needs_no_start() -> None:
    shim = new_shim()
    await shim.stop(0)
    await shim.start()
    await asyncio.gather(shim.stop(0), shim.stop(0))
    await shim.stop(0)


async def test_a_connection_that_is_accepted_as_the_shim_stops_is_ended() -> None:
    """asyncio forgot it, open: the client waited for the garbage collector."""
    shim = new_shim()
    await shim.start()
    with socket.create_connection(("127.0.0.1", shim.port)) as client:
        await asyncio.sleep(0)  # the next step accepts, and closes the listener
        await shim.stop(0)
        client.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.to_thread(client.recv, 1) == b""
