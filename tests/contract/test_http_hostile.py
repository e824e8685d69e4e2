"""Hostile input on the HTTP port: a clear 4xx, no traceback, state unchanged, next call works."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bootstrap_grpc.compat.config import HttpConfig
from bootstrap_grpc.server.registry import RankRegistry
from support.http_shim import TOPOLOGY, RunningShim, payload, rank_target, running_shim

LONG = b"x" * (20 * 1024 * 1024)


@pytest.fixture
async def shim(caplog: pytest.LogCaptureFixture) -> AsyncIterator[RunningShim]:
    """A ready shim that must be just as ready, and its log without a fault, afterwards."""
    caplog.set_level(logging.INFO)
    async with running_shim() as running:
        await running.register()
        body = {"bootstrap_room": 1, "dp_rank": 0}
        await running.call("POST", "/register_dp_rank", body)
        version = running.registry.version
        yield running
        assert (await running.call("GET", rank_target())).json["rank_port"] == 17000
        rooms = await running.call("POST", "/query_dp_ranks", {"bootstrap_rooms": [1]})
        assert rooms.json == {"1": 0}
        assert running.registry.version == version
        assert len(running.rooms) == 1
    await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert "Traceback" not in caplog.text
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []


BODIES: list[bytes] = [
    b"",
    b"[]",
    b"null",
    b'"x"',
    b"1",
    b"{",
    b"\xff\xfe\x00",
    b'{"rank_ip": "\xff"}',
    b'{"bootstrap_room": NaN, "bootstrap_rooms": NaN, "rank_port": NaN}',
    b'{"bootstrap_room": ' + b"9" * 6_000 + b"}",
    b"[" * 1_000_000,
    b'{"a":' * 1_000_000,
    b"{}",
]


@pytest.mark.parametrize(
    ("method", "target"),
    [("PUT", "/route"), ("POST", "/register_dp_rank"), ("POST", "/query_dp_ranks")],
)
async def test_bodies_that_are_no_object_of_fields(
    shim: RunningShim, method: str, target: str
) -> None:
    for body in BODIES:
        reply = await shim.call(method, target, body)
        assert reply.status == 400, body[:40]
        assert ("body" in reply.text) or ("is missing" in reply.text)


@pytest.mark.parametrize("value", [1e30, -1, 2**64, 1.9, True, None, [], {}, "x", ""])
async def test_bad_numbers_are_named(shim: RunningShim, value: Any) -> None:
    for method, target, body, name in (
        ("PUT", "/route", payload(rank_port=value), "rank_port"),
        ("PUT", "/route", payload(attn_tp_rank=value), "attn_tp_rank"),
        ("POST", "/register_dp_rank", {"bootstrap_room": value, "dp_rank": 0}, "bootstrap_room"),
        ("POST", "/register_dp_rank", {"bootstrap_room": 1, "dp_rank": value}, "dp_rank"),
        ("POST", "/query_dp_ranks", {"bootstrap_rooms": [1, value]}, "bootstrap_rooms[1]"),
    ):
        reply = await shim.call(method, target, body)
        assert (reply.status, reply.text.startswith(f"{name} is ")) == (400, True), reply.text


async def test_a_registration_is_checked_whole(shim: RunningShim) -> None:
    """SGLang's server stores the sizes before it finds the port to be no number."""
    reply = await shim.register(attn_tp_size=8, rank_port=18000, prefill_http_port="http")
    assert (reply.status, "prefill_http_port" in reply.text) == (400, True)
    assert (await shim.call("GET", TOPOLOGY)).json["attn_tp_size"] == 1


async def test_limits(shim: RunningShim) -> None:
    reply = await shim.call("POST", "/query_dp_ranks", {"bootstrap_rooms": [1] * 65_537})
    assert (reply.status, "65,536" in reply.text) == (413, True)
    reply = await shim.call("POST", "/query_dp_ranks", {"bootstrap_rooms": [1] * 65_536})
    assert (reply.status, reply.json) == (200, {"1": 0})
    for method, target in (("PUT", "/route"), ("POST", "/query_dp_ranks")):
        reply = await shim.call(method, target, LONG)
        text = "Maximum request body size 16777216 exceeded."
        assert (reply.status, reply.text, reply.closes) == (413, text, True)


async def test_a_long_body_whose_length_is_not_told(shim: RunningShim) -> None:
    connection = await shim.connect()
    await connection.send("PUT", "/route", headers="Transfer-Encoding: chunked\r\n")
    chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    for _ in range(20):
        await connection.write(chunk)
    assert (await connection.receive()).status == 413
    assert await connection.at_eof()


async def test_a_long_body_that_is_announced_only(shim: RunningShim) -> None:
    connection = await shim.connect()
    await connection.send("PUT", "/route", headers="Content-Length: 99999999999\r\n")
    assert (await connection.receive()).status == 413
    assert await connection.at_eof()


async def test_a_compressed_body_counts_by_what_it_holds(shim: RunningShim) -> None:
    bomb = gzip.compress(LONG)
    encoded = "Content-Encoding: gzip\r\n"
    assert (await shim.call("PUT", "/route", bomb, headers=encoded)).status == 413
    rooms = gzip.compress(json.dumps({"bootstrap_rooms": [1]}).encode())
    assert (await shim.call("POST", "/query_dp_ranks", rooms, headers=encoded)).json == {"1": 0}
    assert (await shim.call("PUT", "/route", b"no gzip", headers=encoded)).status == 400


@pytest.mark.parametrize(
    "data",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300),
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nbroken header\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"z" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /query_dp_ranks HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /query_dp_ranks HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /query_dp_ranks HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\r\n\r\n\x00\x01\x02 nonsense\r\n\r\n",
    ],
)
async def test_what_is_no_http(shim: RunningShim, data: bytes) -> None:
    connection = await shim.connect()
    await connection.write(data)
    reply = await connection.receive()
    assert reply.status == 400
    assert reply.headers["bootstrap-server-id"]
    if data.startswith(b"PRI"):
        assert "gRPC is served on port 18998" in reply.text
    assert await connection.at_eof()


async def test_random_bytes(shim: RunningShim) -> None:
    chance = random.Random(7)
    for _ in range(300):
        connection = await shim.connect()
        await connection.write(chance.randbytes(chance.randrange(1, 400)))
        await connection.close()
        assert (await shim.call("GET", "/health")).status == 200


async def test_clients_that_hang_up_anywhere(shim: RunningShim) -> None:
    body = json.dumps(payload(rank_port=17777)).encode()
    request = b"PUT /route HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    for end in range(1, len(request) - 1, 7):
        connection = await shim.connect()
        await connection.write(request[:end])
        if end % 2:
            connection.writer.transport.abort()
        await connection.close()
        assert (await shim.call("GET", "/health")).status == 200


async def test_a_body_that_never_comes(caplog: pytest.LogCaptureFixture) -> None:
    async with running_shim(HttpConfig(body_timeout=0.05)) as shim:
        connection = await shim.connect()
        await connection.send("PUT", "/route", headers="Content-Length: 10\r\n")
        reply = await connection.receive()
        assert (reply.status, reply.text) == (408, "the body did not arrive within 0.05 s")
        assert await connection.at_eof()
        assert not [record for record in caplog.records if record.exc_info]


async def test_expectations(shim: RunningShim) -> None:
    body = json.dumps({"bootstrap_rooms": [1]}).encode()
    connection = await shim.connect()
    expect = f"Expect: 100-continue\r\nContent-Length: {len(body)}\r\n"
    await connection.send("POST", "/query_dp_ranks", headers=expect)
    assert (await connection.receive()).status == 100
    await connection.write(body)
    assert (await connection.receive()).json == {"1": 0}
    await connection.send(
        "POST", "/query_dp_ranks", headers="Expect: more\r\nContent-Length: 9\r\n"
    )
    reply = await connection.receive()
    assert (reply.status, reply.closes) == (417, True)


async def test_an_upgrade_is_declined(shim: RunningShim) -> None:
    for headers in (
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket\r\n",
    ):
        reply = await shim.call("GET", "/health", headers=headers)
        assert (reply.status, reply.text, reply.closes) == (200, "OK", True)


async def test_a_fault_of_the_service_shows_nothing_to_the_peer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(RankRegistry, "register", broken)
    async with running_shim() as shim:
        reply = await shim.register()
        assert (reply.status, "secret" in reply.text) == (500, False)
        assert (await shim.call("GET", "/health")).status == 200
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.getMessage() == "fault in PUT /route"
