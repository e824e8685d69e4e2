"""Dialect D over HTTP: SGLang 0.5.8 and 0.5.9. Traps as in docs/compatibility.md."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import permutations
from typing import Any

import pytest

from bootstrap_grpc.compat.config import HttpConfig
from bootstrap_grpc.protos.model import TopologyState
from support.dialects import TOPOLOGY_C, payload_c, payload_d, rank_c
from support.http_shim import TOPOLOGY, RunningShim, running_shim


@pytest.fixture
async def shim() -> AsyncIterator[RunningShim]:
    async with running_shim() as running:
        yield running


async def put(shim: RunningShim, rank: int = 0, **changes: Any) -> None:
    reply = await shim.call("PUT", "/route", payload_d(rank, **changes))
    assert (reply.status, reply.text) == (200, "OK")


async def test_exchange(shim: RunningShim) -> None:
    await put(shim)
    topology = await shim.call("GET", TOPOLOGY_C)
    assert (topology.status, topology.text) == (
        200,
        (
            '{"prefill_attn_tp_size": 1, "prefill_dp_size": 1, "prefill_pp_size": 1, '
            '"prefill_page_size": 64}'
        ),
    )
    assert (await shim.call("GET", rank_c(0))).json == {"rank_ip": "10.0.0.1", "rank_port": 17000}


async def test_trap_5_a_page_size_that_is_known_is_a_number_in_every_dialect(
    shim: RunningShim,
) -> None:
    await put(shim, page_size="32")
    assert (await shim.call("GET", TOPOLOGY_C)).json["prefill_page_size"] == 32
    assert (await shim.call("GET", TOPOLOGY)).json["page_size"] == 32


async def test_trap_6_a_dtype_that_nobody_gave_is_null(shim: RunningShim) -> None:
    await put(shim)
    assert (await shim.call("GET", TOPOLOGY)).json["kv_cache_dtype"] is None


@pytest.mark.parametrize("value", [None, 0, "x", 1.5, True])
async def test_a_bad_page_size_is_named(shim: RunningShim, value: object) -> None:
    reply = await shim.call("PUT", "/route", payload_d(page_size=value))
    assert (reply.status, reply.text.startswith("page_size is ")) == (400, True)
    assert shim.registry.state is TopologyState.EMPTY


async def test_a_page_size_is_part_of_the_shape(shim: RunningShim) -> None:
    await put(shim, 0, attn_tp_size=2)
    reply = await shim.call("PUT", "/route", payload_d(1, attn_tp_size=2, page_size=16))
    assert (reply.status, "page_size is 16 and not 64" in reply.text) == (400, True)
    reply = await shim.call("PUT", "/route", payload_c(1, attn_tp_size=2))
    assert reply.status == 200, "a rank that says none agrees"


async def test_trap_10_another_role_is_answered_and_not_kept(shim: RunningShim) -> None:
    await put(shim, role="Decode")
    assert shim.registry.state is TopologyState.EMPTY


# --- context-parallel ranks that share a key (0.5.9) ----------------------------------


FOUR = [(tp, cp) for cp in (0, 1) for tp in (0, 1)]


@pytest.mark.parametrize("order", list(permutations(FOUR))[::5])
async def test_cp_ranks_of_one_key_are_no_restart(
    shim: RunningShim, order: list[tuple[int, int]]
) -> None:
    """READY once each key is there, and from then on; the last one of a key counts."""
    seen: set[int] = set()
    for tp, cp in order:
        await put(shim, tp, attn_tp_size=2, rank_port=17000 + 10 * cp + tp)
        seen.add(tp)
        expected = 200 if len(seen) == 2 else 503
        assert (await shim.call("GET", TOPOLOGY_C)).status == expected
    assert shim.registry.topology().generation == 1
    for tp in (0, 1):
        last = [cp for rank, cp in order if rank == tp][-1]
        reply = await shim.call("GET", rank_c(tp))
        assert reply.json["rank_port"] == 17000 + 10 * last + tp


async def test_two_live_ranks_may_take_turns_on_one_key() -> None:
    """Neither is a restart, and neither is late."""
    async with running_shim(HttpConfig(quiet=60)) as shim:
        for _ in range(3):
            for port in (17000, 17010):
                await put(shim, 0, rank_port=port)
                assert (await shim.call("GET", rank_c(0))).json["rank_port"] == port
        assert shim.registry.topology().generation == 1


async def test_a_new_address_after_the_start_is_a_restart() -> None:
    async with running_shim(HttpConfig(quiet=1e-9)) as shim:
        for tp in (0, 1):
            await put(shim, tp, attn_tp_size=2)
        await put(shim, 0, attn_tp_size=2, rank_port=18000)
        assert shim.registry.topology().generation == 2
        assert (await shim.call("GET", rank_c(1))).status == 503
        late = await shim.call("PUT", "/route", payload_d(0, attn_tp_size=2))
        assert (late.status, "replaced" in late.text) == (409, True)
        await put(shim, 1, attn_tp_size=2, rank_port=18001)
        assert (await shim.call("GET", rank_c(1))).json["rank_port"] == 18001
