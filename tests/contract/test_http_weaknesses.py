"""Weaknesses of SGLang's own server that this one does not have, numbered as in
docs/compatibility.md. Those of the older dialects are in their own files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from bootstrap_grpc.compat.config import HttpConfig
from bootstrap_grpc.compat.shim import HttpShim
from bootstrap_grpc.server.service import BindError
from support.http_shim import TOPOLOGY, RunningShim, rank_target, running_shim


@pytest.fixture
async def shim() -> AsyncIterator[RunningShim]:
    async with running_shim() as running:
        yield running


async def test_weakness_1_ready_counts_ranks_and_no_calls(shim: RunningShim) -> None:
    for port in (17000, 17000, 17001):
        await shim.register(attn_tp_size=2, rank_port=port)
    for rank in (77, -5, 2):
        assert (await shim.register(attn_tp_size=2, attn_tp_rank=rank)).status == 400
    assert (await shim.call("GET", TOPOLOGY)).status == 503
    await shim.register(attn_tp_size=2, attn_tp_rank=1)
    assert (await shim.call("GET", TOPOLOGY)).status == 200


async def test_weakness_3_a_restart_may_change_everything(shim: RunningShim) -> None:
    for rank in (0, 1):
        await shim.register(attn_tp_size=2, attn_tp_rank=rank, rank_port=17000 + rank)
    changes = {"attn_tp_size": 4, "kv_cache_dtype": "fp8", "page_size": 16}
    for rank in range(4):
        reply = await shim.register(attn_tp_rank=rank, rank_port=18000 + rank, **changes)
        assert reply.status == 200
    topology = (await shim.call("GET", TOPOLOGY)).json
    assert {key: topology[key] for key in changes} == changes
    for rank in range(4):
        found = (await shim.call("GET", rank_target(tp=rank))).json
        assert found["rank_port"] == 18000 + rank


async def test_weakness_4_no_address_of_a_dead_start_is_served(shim: RunningShim) -> None:
    for rank in (0, 1):
        await shim.register(attn_tp_size=2, attn_tp_rank=rank, rank_port=17000 + rank)
    await shim.register(attn_tp_size=2, rank_port=18000)
    assert (await shim.call("GET", rank_target(tp=1))).status == 503


async def test_weakness_5_a_switch_of_roles_is_a_new_start(shim: RunningShim) -> None:
    """The engine registers again from new ports, in a service that lived on."""
    for start in (17000, 18000, 19000):
        for rank in (0, 1):
            reply = await shim.register(attn_tp_size=2, attn_tp_rank=rank, rank_port=start + rank)
            assert reply.status == 200
        for rank in (0, 1):
            found = (await shim.call("GET", rank_target(tp=rank))).json
            assert found["rank_port"] == start + rank


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"dsv41_spec_layout": {"a": 1}}, {"dsv41_spec_layout": {"a": 2}}),
        ({"decode_allocation_policy": "early"}, {"decode_allocation_policy": "late"}),
    ],
)
async def test_weakness_6_a_conflict_of_one_start_is_none_of_the_next(
    shim: RunningShim, before: dict[str, Any], after: dict[str, Any]
) -> None:
    await shim.register(attn_tp_size=2, **before)
    conflict = await shim.register(attn_tp_size=2, attn_tp_rank=1, **after)
    (name,) = before
    assert (conflict.status, name in conflict.text) == (400, True)
    await shim.register(attn_tp_size=2, attn_tp_rank=1, **before)
    for rank in (0, 1):
        reply = await shim.register(
            attn_tp_size=2, attn_tp_rank=rank, rank_port=18000 + rank, **after
        )
        assert reply.status == 200
    assert (await shim.call("GET", TOPOLOGY)).json[name] == after[name]


async def test_weakness_7_a_put_that_fails_leaves_nothing_behind(shim: RunningShim) -> None:
    for changes in ({"prefill_http_port": "bad"}, {"attn_tp_rank": []}, {"rank_ip": ""}):
        assert (await shim.register(attn_tp_size=8, **changes)).status == 400
    await shim.register()
    assert (await shim.call("GET", TOPOLOGY)).json["attn_tp_size"] == 1


async def test_weakness_8_a_port_in_use_is_no_mere_log_line(shim: RunningShim) -> None:
    """Also trap 22: a second prefill server on the host must not register at the first one's."""
    second = HttpShim(shim.registry, shim.rooms, HttpConfig(port=shim.port), grpc_port=1)
    with pytest.raises(BindError, match="in use"):
        await second.start()


@pytest.mark.parametrize(
    "changes",
    [{"attn_tp_size": "2"}, {"attn_tp_size": 0}, {"attn_dp_size": -1}, {"pp_size": 2**70}],
)
async def test_weakness_9_no_put_poisons_the_topology(
    shim: RunningShim, changes: dict[str, Any]
) -> None:
    await shim.register(**changes)
    assert (await shim.call("GET", TOPOLOGY)).status == 503
    await shim.register(attn_tp_size=2, attn_tp_rank=1)
    await shim.register(attn_tp_size=2, attn_tp_rank=0)
    assert (await shim.call("GET", TOPOLOGY)).json["attn_tp_size"] == 2


async def test_weakness_13_rooms_are_bounded_and_expire_by_a_monotonic_clock(
    shim: RunningShim,
) -> None:
    """The table itself is tested in tests/unit/test_rooms.py; here: the shim uses that one."""
    body = {"bootstrap_room": 4, "dp_rank": 1}
    await shim.call("POST", "/register_dp_rank", body)
    assert len(shim.rooms) == 1


async def test_weaknesses_16_and_17_one_host_option_says_where_to_listen() -> None:
    assert HttpConfig().host == "127.0.0.1"
    async with running_shim(HttpConfig(host="127.0.0.2")) as shim:
        connection = await shim.connect("127.0.0.2")
        await connection.send("GET", "/health")
        assert (await connection.receive()).status == 200
        with pytest.raises(ConnectionRefusedError):
            await shim.connect("127.0.0.1")


async def test_weakness_18_every_reply_says_whose_it_is() -> None:
    async with running_shim(instance_id="prefill-7") as shim:
        reply = await shim.call("GET", "/health")
        assert reply.headers["bootstrap-instance-id"] == "prefill-7"
        assert reply.headers["bootstrap-server-id"]


async def test_weakness_19_ready_says_what_health_does_not(shim: RunningShim) -> None:
    assert (await shim.call("GET", "/health")).status == 200
    reply = await shim.call("GET", "/ready")
    assert (reply.status, reply.json["state"]) == (503, "EMPTY")
