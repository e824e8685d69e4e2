"""Dialect B over HTTP: SGLang 0.4.6 to 0.4.10, NIXL to 0.5.2. Traps as in docs/compatibility.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bootstrap_grpc.compat.config import HttpConfig
from bootstrap_grpc.protos.model import RankKey, Shape, TopologyState
from support.dialects import TOPOLOGY_B, payload_b, rank_b
from support.http_shim import RunningShim, running_shim

TEXT = "text/plain; charset=utf-8"
JSON = "application/json; charset=utf-8"
FOUR = {"tp_size": 4, "dp_size": 2}


@pytest.fixture
async def shim() -> AsyncIterator[RunningShim]:
    async with running_shim() as running:
        yield running


async def put(shim: RunningShim, *ranks: int, **changes: Any) -> None:
    for rank in ranks:
        body = payload_b(rank, **{"rank_port": 17000 + rank} | FOUR | changes)
        assert (await shim.call("PUT", "/route", body)).status == 200


async def test_trap_2_one_topology_reply_for_b1_and_b2(shim: RunningShim) -> None:
    await put(shim, *range(4))
    reply = await shim.call("GET", TOPOLOGY_B)
    assert (reply.status, reply.headers["content-type"]) == (200, JSON)
    assert reply.json == {"prefill_tp_size": 4, "prefill_dp_size": 2, "tp_size_per_dp_rank": 2}


async def test_a_rank_s_number_gives_its_dp_group_and_its_rank_in_it(shim: RunningShim) -> None:
    await put(shim, *range(4))
    topology = shim.registry.topology()
    assert topology.shape == Shape(attn_tp_size=2, dp_size=2)
    keys = {route.rank_port: route.key for route in topology.routes}
    assert keys == {
        17000: RankKey(0, 0, 0),
        17001: RankKey(0, 0, 1),
        17002: RankKey(1, 0, 0),
        17003: RankKey(1, 0, 1),
    }


@pytest.mark.parametrize(
    ("engine_rank", "dp_group", "port"),
    [(1, 1, 17003), (3, 1, 17003), (2, 0, 17000), (0, 0, 17000)],
)
async def test_trap_8_the_remainder_serves_b1_and_b2(
    shim: RunningShim, engine_rank: int, dp_group: int, port: int
) -> None:
    """B1 asks by the rank of all groups, B2 by the rank in its group."""
    await put(shim, *range(4))
    reply = await shim.call("GET", rank_b(engine_rank, dp_group))
    assert (reply.status, reply.text) == (200, f'{{"rank_ip": "10.0.0.1", "rank_port": {port}}}')


async def test_weakness_11_a_missing_rank_is_404_and_no_fault(shim: RunningShim) -> None:
    await put(shim, *range(4))
    reply = await shim.call("GET", rank_b(0, 2))
    text = "Bootstrap info not found for engine_rank=0 target_dp_group=2"
    assert (reply.status, reply.text, reply.headers["content-type"]) == (404, text, TEXT)


@pytest.mark.parametrize(("engine_rank", "dp_group"), [(-1, 0), (0, -1), (-2, -2)])
async def test_trap_20_a_partial_minus_one_is_an_ordinary_rank(
    shim: RunningShim, engine_rank: int, dp_group: int
) -> None:
    await put(shim, *range(4))
    assert (await shim.call("GET", rank_b(engine_rank, dp_group))).status == 404


@pytest.mark.parametrize("target", [TOPOLOGY_B, rank_b(0, 1)])
async def test_trap_12_a_request_is_held_until_ready(shim: RunningShim, target: str) -> None:
    asked = asyncio.create_task(shim.call("GET", target))
    for rank in range(4):
        assert (await shim.call("GET", "/health")).text == "OK"
        assert not asked.done()
        await put(shim, rank)
    assert (await asked).status == 200


async def test_trap_12_a_request_that_waited_long_is_sent_to_ask_again() -> None:
    """``requests`` follows 30 redirects: the decode lives, where any other answer kills it."""
    async with running_shim(HttpConfig(hold=0.05)) as shim:
        reply = await shim.call("GET", TOPOLOGY_B)
        assert (reply.status, reply.headers["location"]) == (307, TOPOLOGY_B)
        assert reply.headers["bootstrap-server-id"]
        await put(shim, *range(4))
        assert (await shim.call("GET", reply.headers["location"])).status == 200


async def test_trap_10_another_role_is_answered_and_not_kept(shim: RunningShim) -> None:
    reply = await shim.call("PUT", "/route", payload_b(role="Decode", tp_size=8))
    assert (reply.status, reply.text) == (200, "OK")
    assert shim.registry.state is TopologyState.EMPTY
    await put(shim, *range(4))
    assert (await shim.call("GET", TOPOLOGY_B)).json["prefill_tp_size"] == 4


@pytest.mark.parametrize("name", ["role", "tp_size", "dp_size", "rank_ip", "rank_port"])
async def test_weakness_10_a_missing_key_is_named(shim: RunningShim, name: str) -> None:
    reply = await shim.call("PUT", "/route", payload_b(**{name: ...}))
    assert (reply.status, reply.text) == (400, f"{name} is missing")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dp_size", 0),  # weakness 9: SGLang's server divides by it once it has stored it
        ("dp_size", 3),
        ("dp_size", 8),
        ("tp_size", 0),
        ("tp_size", -4),
        ("engine_rank", 4),
        ("engine_rank", None),
        ("rank_port", "x"),
        ("rank_ip", 5),
    ],
)
async def test_weakness_9_a_bad_registration_changes_nothing(
    shim: RunningShim, name: str, value: object
) -> None:
    await put(shim, *range(4))
    version = shim.registry.version
    reply = await shim.call("PUT", "/route", payload_b(0, **FOUR | {name: value}))
    assert (reply.status, reply.text.startswith(f"{name} is ")) == (400, True)
    assert shim.registry.version == version


async def test_numbers_may_be_texts_and_keys_may_be_new(shim: RunningShim) -> None:
    await put(shim, 0, tp_size="1", dp_size=" 1", rank_port="17005", engine_rank="0", more=[1])
    assert (await shim.call("GET", rank_b(0))).json["rank_port"] == 17005
    (route,) = shim.registry.topology().routes
    assert route.attributes.extra_json == {"more": "[1]"}


async def test_weakness_3_a_restart_may_change_the_sizes(shim: RunningShim) -> None:
    await put(shim, 0, 1, tp_size=2, dp_size=1)
    assert (await shim.call("GET", TOPOLOGY_B)).json["prefill_tp_size"] == 2
    asked = []
    for rank in range(4):
        await put(shim, rank, rank_port=18000 + rank)
        asked.append(asyncio.create_task(shim.call("GET", TOPOLOGY_B)))
    for reply in await asyncio.gather(*asked):
        assert reply.json == {"prefill_tp_size": 4, "prefill_dp_size": 2, "tp_size_per_dp_rank": 2}


async def test_a_prefill_that_the_dialect_cannot_describe_is_refused(shim: RunningShim) -> None:
    for pp_rank in (0, 1):
        await shim.register(pp_size=2, pp_rank=pp_rank, rank_port=17000 + pp_rank)
    for target in (TOPOLOGY_B, rank_b(0)):
        reply = await shim.call("GET", target)
        assert (reply.status, "pp_size 2" in reply.text) == (409, True)
