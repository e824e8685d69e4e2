"""Traps of SGLang's protocol that belong to no one dialect, or to the newest: see
docs/compatibility.md, which numbers them. Those of the older dialects are in their own files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bootstrap_grpc.compat.config import HttpConfig
from support.dialects import TOPOLOGY_B, TOPOLOGY_C, payload_b, payload_c, payload_d, rank_c
from support.http_shim import TOPOLOGY, RunningShim, payload, rank_target, running_shim

SEVEN = {
    "attn_tp_size",
    "attn_cp_size",
    "dp_size",
    "pp_size",
    "page_size",
    "kv_cache_dtype",
    "follow_bootstrap_room",
}


@pytest.fixture
async def shim() -> AsyncIterator[RunningShim]:
    async with running_shim() as running:
        yield running


async def test_trap_1_every_dialect_is_known_by_the_names_of_its_parameters(
    shim: RunningShim,
) -> None:
    await shim.register(page_size=64)
    topologies = {
        TOPOLOGY: "attn_tp_size",
        TOPOLOGY_C: "prefill_attn_tp_size",
        TOPOLOGY_B: "tp_size_per_dp_rank",
        "/route": "0",
    }
    for target, key in topologies.items():
        for more in ("", "&unknown=1" if "?" in target else ""):
            assert key in (await shim.call("GET", target + more)).json


async def test_trap_3_and_4_a_reply_of_e_has_no_key_that_an_old_decode_rejects() -> None:
    config = HttpConfig(omit=frozenset(["prefill_http_port"]))
    async with running_shim(config) as shim:
        await shim.register()
        assert set((await shim.call("GET", TOPOLOGY)).json) == SEVEN
        assert set((await shim.call("GET", rank_target())).json) == {"rank_ip", "rank_port"}


async def test_trap_3_the_level_of_a_reply_is_that_of_the_registrations(shim: RunningShim) -> None:
    levels = ("prefill_http_port", "decode_allocation_policy", "enable_kv_cache_sharding")
    await shim.register(**dict.fromkeys(levels, ...))
    assert set((await shim.call("GET", TOPOLOGY)).json) == SEVEN


@pytest.mark.parametrize("dtype", ["auto", "fp8_e5m2", "bfloat16", "Auto ", ""])
async def test_trap_6_a_dtype_is_passed_on_as_it_came(shim: RunningShim, dtype: str) -> None:
    await shim.register(kv_cache_dtype=dtype)
    assert (await shim.call("GET", TOPOLOGY)).json["kv_cache_dtype"] == dtype


@pytest.mark.parametrize(
    ("method", "follows"),
    [("follow_bootstrap_room", True), (..., True), (None, True), ("round_robin", False)],
)
async def test_trap_7_follow_bootstrap_room_is_a_boolean(
    shim: RunningShim, method: Any, follows: object
) -> None:
    await shim.register(load_balance_method=method)
    assert (await shim.call("GET", TOPOLOGY)).json["follow_bootstrap_room"] is follows


async def test_trap_11_every_success_is_200(shim: RunningShim) -> None:
    bodies = (payload(), payload(), payload_d(page_size=64), payload_c(), payload_b())
    for body in bodies:
        assert (await shim.call("PUT", "/route", body)).status == 200
    room = {"bootstrap_room": 1, "dp_rank": 0}
    assert (await shim.call("POST", "/register_dp_rank", room)).status == 200
    assert (await shim.call("POST", "/query_dp_ranks", {"bootstrap_rooms": []})).status == 200


async def test_trap_13_and_weakness_2_a_repeated_put_counts_once(shim: RunningShim) -> None:
    for _ in range(4):
        await shim.register(attn_tp_size=2)
    assert shim.registry.registered == 1
    assert (await shim.call("GET", TOPOLOGY)).status == 503


async def test_trap_14_a_rejection_is_to_be_seen_without_the_log_of_the_prefill(
    shim: RunningShim, caplog: pytest.LogCaptureFixture
) -> None:
    """A prefill retries 5 times, then runs on unregistered."""
    await shim.register(attn_tp_size=2)
    assert (await shim.register(attn_tp_size=4, attn_tp_rank=3)).status == 400
    (refused,) = shim.registry.topology().refused
    assert "attn_tp_size" in refused.reason
    assert "attn_tp_size" in caplog.text


async def test_trap_15_health_is_there_for_every_client_and_never_flaps(shim: RunningShim) -> None:
    pooled = await shim.connect()
    for step in range(6):
        await pooled.send("GET", "/health", headers="Connection: keep-alive\r\n")
        reply = await pooled.receive()
        assert (reply.status, reply.text, reply.closes) == (200, "OK", False)
        await shim.register(attn_tp_size=1 + step % 2, rank_port=17000 + step)


async def test_trap_16_a_pooled_connection_is_kept(shim: RunningShim) -> None:
    await shim.register()
    pooled = await shim.connect()
    for _ in range(50):
        await pooled.send("GET", rank_target())
        assert (await pooled.receive()).status == 200


async def test_trap_17_rooms_up_to_the_largest_and_unknown_ones_left_out(
    shim: RunningShim,
) -> None:
    largest = 2**63 - 1
    body = {"bootstrap_room": largest, "dp_rank": 5}
    await shim.call("POST", "/register_dp_rank", body)
    reply = await shim.call("POST", "/query_dp_ranks", {"bootstrap_rooms": [largest, 1]})
    assert reply.text == f'{{"{largest}": 5}}'


async def test_trap_18_every_rank_of_a_group_says_the_same(shim: RunningShim) -> None:
    body = {"bootstrap_room": 9, "dp_rank": 2}
    said = [shim.call("POST", "/register_dp_rank", body) for _ in range(8)]
    assert {reply.status for reply in await asyncio.gather(*said)} == {200}
    assert shim.rooms.query([9]) == {9: 2}


async def test_trap_19_a_room_s_dp_rank_need_be_none_of_the_routes(shim: RunningShim) -> None:
    """Rooms carry ``attn_dp_rank``, routes are keyed by ``system_dp_rank``: nothing is checked."""
    for rank in (0, 1):
        await shim.register(system_dp_size=2, system_dp_rank=rank, rank_port=17000 + rank)
    body = {"bootstrap_room": 9, "dp_rank": 7}
    assert (await shim.call("POST", "/register_dp_rank", body)).status == 200
    assert (await shim.call("GET", rank_target(dp=1))).json["rank_port"] == 17001


async def test_trap_20_a_partial_minus_one_of_e_is_an_ordinary_rank(shim: RunningShim) -> None:
    await shim.register()
    assert (await shim.call("GET", rank_target(-1, -1, -1, 0))).status == 404
    assert (await shim.call("GET", rank_c(-1, -1, 0))).status == 404


@pytest.mark.parametrize("rank_ip", ["fd00::7", "[fd00::7]"])
async def test_trap_24_an_ipv6_address_comes_back_as_it_came(
    shim: RunningShim, rank_ip: str
) -> None:
    await shim.register(rank_ip=rank_ip)
    assert (await shim.call("GET", rank_target())).json["rank_ip"] == rank_ip


async def test_trap_25_an_http_port_that_would_mislead_can_be_left_out() -> None:
    """Decodes take it for a port of the host that answers them, which is the shim's."""
    async with running_shim(HttpConfig(omit=frozenset(["prefill_http_port"]))) as shim:
        await shim.register(prefill_http_port=30000)
        assert "prefill_http_port" not in (await shim.call("GET", TOPOLOGY)).json
