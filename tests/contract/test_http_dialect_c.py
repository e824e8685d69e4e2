"""Dialect C over HTTP: SGLang 0.5.1 to 0.5.7. Traps as in docs/compatibility.md."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from bootstrap_grpc.protos.model import RankKey, Shape, TopologyState
from support.dialects import TOPOLOGY_C, payload_c, rank_c
from support.http_shim import RunningShim, running_shim


@pytest.fixture
async def shim() -> AsyncIterator[RunningShim]:
    async with running_shim() as running:
        yield running


async def put(shim: RunningShim, rank: int = 0, **changes: Any) -> None:
    reply = await shim.call("PUT", "/route", payload_c(rank, **changes))
    assert (reply.status, reply.text) == (200, "OK")


async def test_exchange(shim: RunningShim) -> None:
    await put(shim, 0, attn_tp_size=2)
    await put(shim, 1, attn_tp_size=2)
    topology = await shim.call("GET", TOPOLOGY_C)
    assert (topology.status, topology.text) == (
        200,
        (
            '{"prefill_attn_tp_size": 2, "prefill_dp_size": 1, "prefill_pp_size": 1, '
            '"prefill_page_size": null}'
        ),
    )
    reply = await shim.call("GET", rank_c(1))
    assert (reply.status, reply.text) == (200, '{"rank_ip": "10.0.0.1", "rank_port": 17001}')


async def test_weakness_11_not_ready_is_503_and_never_null(shim: RunningShim) -> None:
    """SGLang's own server answers 200 with nulls, and 500 for a rank that is missing."""
    for target in (TOPOLOGY_C, rank_c(0)):
        assert (await shim.call("GET", target)).status == 503
    await put(shim, 0, attn_tp_size=2)
    for target in (TOPOLOGY_C, rank_c(0), rank_c(1)):
        reply = await shim.call("GET", target)
        text = "Prefill server not fully registered yet (1 workers registered)."
        assert (reply.status, reply.text) == (503, text)


async def test_all_parallel_groups(shim: RunningShim) -> None:
    sizes = {"attn_tp_size": 2, "attn_dp_size": 2, "pp_size": 2}
    for dp in (0, 1):
        for tp in (0, 1):
            for pp in (0, 1):
                port = 17000 + 100 * dp + 10 * tp + pp
                await put(shim, tp, attn_dp_rank=dp, pp_rank=pp, rank_port=port, **sizes)
    assert shim.registry.topology().shape == Shape(attn_tp_size=2, dp_size=2, pp_size=2)
    topology = (await shim.call("GET", TOPOLOGY_C)).json
    assert list(topology.values()) == [2, 2, 2, None]
    assert (await shim.call("GET", rank_c(1, 0, 1))).json["rank_port"] == 17011
    assert (await shim.call("GET", rank_c(0, 1, 0))).json["rank_port"] == 17100


async def test_which_dp_group_counts(shim: RunningShim) -> None:
    """Without DP attention each system DP rank is one."""
    for dp in (0, 1):
        await put(shim, system_dp_size=2, system_dp_rank=dp, rank_port=17000 + dp)
    assert (await shim.call("GET", TOPOLOGY_C)).json["prefill_dp_size"] == 2
    assert (await shim.call("GET", rank_c(0, 1))).json["rank_port"] == 17001


async def test_trap_20_a_partial_minus_one_is_an_ordinary_rank(shim: RunningShim) -> None:
    await put(shim)
    for ranks in ((-1, 0, 0), (-1, -1, 0), (0, -1, -1)):
        reply = await shim.call("GET", rank_c(*ranks))
        assert (reply.status, reply.text.startswith("Bootstrap info not found")) == (404, True)


@pytest.mark.parametrize("missing", ["engine_rank", "target_dp_group"])
async def test_trap_1_a_missing_or_empty_parameter(shim: RunningShim, missing: str) -> None:
    names = {"engine_rank": "0", "target_dp_group": "0", "target_pp_rank": "0"}
    for query in (names | {missing: ""}, {n: v for n, v in names.items() if n != missing}):
        target = "/route?" + "&".join(f"{name}={value}" for name, value in query.items())
        reply = await shim.call("GET", target)
        assert (reply.status, reply.text) == (400, "Missing inputs for bootstrap server.")


async def test_a_parameter_that_is_no_number(shim: RunningShim) -> None:
    reply = await shim.call("GET", rank_c("x"))
    assert (reply.status, reply.text) == (400, "engine_rank is 'x', must be an integer")


async def test_trap_10_another_role_is_answered_and_not_kept(shim: RunningShim) -> None:
    await put(shim, role="Decode", attn_tp_size=8)
    assert shim.registry.state is TopologyState.EMPTY
    await put(shim)
    assert (await shim.call("GET", TOPOLOGY_C)).json["prefill_attn_tp_size"] == 1


@pytest.mark.parametrize("name", sorted(payload_c()))
async def test_weakness_10_a_missing_key_is_named(shim: RunningShim, name: str) -> None:
    reply = await shim.call("PUT", "/route", payload_c(**{name: ...}))
    assert (reply.status, reply.text) == (400, f"{name} is missing")


@pytest.mark.parametrize(
    ("name", "value"),
    [("attn_tp_size", "x"), ("attn_tp_size", None), ("pp_rank", 1), ("attn_dp_rank", -1)],
)
async def test_weakness_9_a_bad_registration_changes_nothing(
    shim: RunningShim, name: str, value: object
) -> None:
    reply = await shim.call("PUT", "/route", payload_c(**{name: value}))
    assert (reply.status, reply.text.startswith(f"{name} is ")) == (400, True)
    assert shim.registry.state is TopologyState.EMPTY


async def test_a_restart_is_one_from_its_first_rank_on(shim: RunningShim) -> None:
    """Weakness 4: SGLang's server serves the addresses of the dead ranks until each is replaced."""
    for rank in (0, 1):
        await put(shim, rank, attn_tp_size=2)
    generation = shim.registry.topology().generation
    await put(shim, 0, attn_tp_size=2, rank_port=18000)
    assert (await shim.call("GET", rank_c(1))).status == 503
    await put(shim, 1, attn_tp_size=2, rank_port=18001)
    assert (await shim.call("GET", rank_c(1))).json["rank_port"] == 18001
    assert shim.registry.topology().generation == generation + 1


async def test_one_registry_for_all_dialects(shim: RunningShim) -> None:
    await put(shim, rank_ip="10.0.0.7")
    (route,) = shim.registry.topology().routes
    assert (route.key, route.rank_ip) == (RankKey(), "10.0.0.7")


async def test_a_prefill_that_the_dialect_cannot_describe_is_refused(shim: RunningShim) -> None:
    for cp_rank in (0, 1):
        await shim.register(attn_cp_size=2, attn_cp_rank=cp_rank, rank_port=17000 + cp_rank)
    for target in (TOPOLOGY_C, rank_c(0)):
        reply = await shim.call("GET", target)
        assert (reply.status, "attn_cp_size 2" in reply.text) == (409, True)
