"""Requests that are held until READY, and what must not suffer from them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import requests

from bootstrap_grpc.compat.config import HttpConfig
from support.dialects import TOPOLOGY_B, TOPOLOGY_C, payload_b, rank_a, rank_b
from support.http_shim import HttpConnection, RunningShim, running_shim


def held(shim: RunningShim) -> int:
    return len(shim.shim._endpoints._routes.holds)


async def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition never came true")


async def ask(shim: RunningShim, target: str = TOPOLOGY_B) -> HttpConnection:
    """A request that is under way."""
    before = held(shim)
    connection = await shim.connect()
    await connection.send("GET", target)
    await eventually(lambda: held(shim) > before)
    return connection


async def test_200_held_requests_keep_nothing_else_waiting() -> None:
    async with running_shim() as shim:
        waiting = [await ask(shim, rank_b(0)) for _ in range(200)]
        assert (await shim.call("GET", "/health")).text == "OK"
        assert (await shim.call("GET", "/ready")).status == 503
        assert (await shim.call("GET", TOPOLOGY_C)).status == 503, "dialect C never waits"
        body = {"bootstrap_room": 1, "dp_rank": 3}
        assert (await shim.call("POST", "/register_dp_rank", body)).status == 200
        rooms = await shim.call("POST", "/query_dp_ranks", {"bootstrap_rooms": [1]})
        assert rooms.json == {"1": 3}
        assert (await shim.call("PUT", "/route", payload_b())).status == 200
        for connection in waiting:
            assert (await connection.receive()).json["rank_port"] == 17000
        assert held(shim) == 0


async def test_a_client_that_hangs_up_is_forgotten() -> None:
    async with running_shim() as shim:
        closed, reset = await ask(shim), await ask(shim)
        await closed.close()
        reset.writer.transport.abort()
        await eventually(lambda: held(shim) == 0)


async def test_held_requests_are_bounded() -> None:
    async with running_shim(HttpConfig(max_holds=2)) as shim:
        waiting = [await ask(shim), await ask(shim, rank_a(0))]
        reply = await shim.call("GET", TOPOLOGY_B)
        text = "Prefill server not fully registered yet (0 workers registered)."
        assert (reply.status, reply.text) == (503, text)
        await waiting[0].close()
        await eventually(lambda: held(shim) == 1)
        again = await ask(shim)
        await shim.call("PUT", "/route", payload_b())
        assert (await again.receive()).status == 200


async def test_a_service_that_stops_tells_the_held_to_ask_again() -> None:
    """Not 503, of which the client dies: whoever serves the address next answers."""
    async with running_shim() as shim:
        waiting = [await ask(shim) for _ in range(3)]
        await asyncio.wait_for(shim.shim.stop(20.0), 20)
        for connection in waiting:
            reply = await connection.receive()
            assert (reply.status, reply.closes) == (307, True)
            assert reply.headers["location"] == TOPOLOGY_B


async def test_the_redirection_of_a_spelling_of_its_own_is_to_the_same_query() -> None:
    async with running_shim(HttpConfig(hold=0.01)) as shim:
        for target, location in (
            ("/route", "/route"),
            ("/%72oute?engine_rank=%30&x=a%0Ab", "/route?engine_rank=%30&x=a%0Ab"),
            (f"http://elsewhere{rank_b(1)}", rank_b(1)),
        ):
            reply = await shim.call("GET", target)
            assert (reply.status, reply.headers["location"]) == (307, location)


async def test_what_the_clients_use_follows_the_redirections() -> None:
    """``requests.get`` with its defaults, as in SGLang 0.4.6: several holds long, one 200."""
    async with running_shim(HttpConfig(hold=0.05)) as shim:
        url = f"http://127.0.0.1:{shim.port}{TOPOLOGY_B}"
        asked = asyncio.get_running_loop().run_in_executor(None, requests.get, url)
        await eventually(lambda: held(shim) == 1)
        await eventually(lambda: held(shim) == 0)
        await eventually(lambda: held(shim) == 1)
        await shim.call("PUT", "/route", payload_b())
        response = await asked
        assert (response.status_code, len(response.history) >= 1) == (200, True)
        assert response.json()["prefill_tp_size"] == 1


async def test_a_part_of_the_ranks_answers_nobody() -> None:
    async with running_shim() as shim:
        waiting = await ask(shim)
        await shim.call("PUT", "/route", payload_b(0, tp_size=2))
        assert held(shim) == 1
        await shim.call("PUT", "/route", payload_b(1, tp_size=2))
        assert (await waiting.receive()).json["prefill_tp_size"] == 2


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with running_shim(HttpConfig(first_request_timeout=0.05)) as shim:
        silent, slow, used = [await shim.connect() for _ in range(3)]
        await slow.write(b"GET /health HTT")
        await used.send("GET", "/health")
        assert (await used.receive()).status == 200
        assert await silent.at_eof()
        assert await slow.at_eof()
        await used.send("GET", "/health")
        assert (await used.receive()).status == 200, "only the first request is waited for"


async def test_a_held_request_outlives_the_time_for_the_first() -> None:
    async with running_shim(HttpConfig(first_request_timeout=0.05)) as shim:
        waiting, silent = await ask(shim), await shim.connect()
        assert await silent.at_eof()
        await shim.call("PUT", "/route", payload_b())
        assert (await waiting.receive()).status == 200


async def test_a_query_of_any_bytes_can_be_asked_again() -> None:
    async with running_shim(HttpConfig(hold=0.01)) as shim:
        connection = await shim.connect()
        await connection.write(
            b"GET /route?engine_rank=0&x=\xff\xfe\x80 HTTP/1.1\r\nHost: a\r\n\r\n"
        )
        reply = await connection.receive()
        assert reply.status in (307, 400)
        location = "/route?engine_rank=0&x=%FF%FE%80"
        assert reply.headers.get("location", location) == location


@pytest.mark.parametrize("target", ["http://[::1/", "http://a:99999/", "http://[::1]x/"])
async def test_a_target_that_is_no_url_is_answered_with_the_headers_of_all(target: str) -> None:
    async with running_shim() as shim:
        reply = await shim.call("GET", target)
        assert reply.status in (400, 404)
        assert reply.headers["bootstrap-server-id"]
        assert reply.headers["bootstrap-grpc-port"]
        assert reply.headers["date"]
