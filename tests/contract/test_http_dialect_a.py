"""Dialect A over HTTP: SGLang 0.4.5, NIXL to 0.4.6.post5. Traps as in docs/compatibility.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bootstrap_grpc.compat.config import HttpConfig
from bootstrap_grpc.protos.model import Shape, TopologyState
from support.dialects import payload_a, rank_a
from support.http_shim import RunningShim, running_shim

QUIET = 0.2
JSON = "application/json; charset=utf-8"


@pytest.fixture
async def shim() -> AsyncIterator[RunningShim]:
    async with running_shim(HttpConfig(quiet=QUIET)) as running:
        yield running


@pytest.fixture
async def shim_of_two() -> AsyncIterator[RunningShim]:
    async with running_shim(HttpConfig(expected_ranks=2)) as running:
        yield running


async def put(shim: RunningShim, *ranks: int, base: int = 17000) -> None:
    for rank in ranks:
        body = payload_a(rank, rank_port=base + rank)
        assert (await shim.call("PUT", "/route", body)).status == 200


async def ports(shim: RunningShim) -> dict[str, int]:
    """The whole table, once it is READY."""
    reply = await shim.call("GET", "/route")
    assert (reply.status, reply.headers["content-type"]) == (200, JSON)
    return {rank: entry["rank_port"] for rank, entry in reply.json.items()}


async def test_exchange_of_a1(shim_of_two: RunningShim) -> None:
    await put(shim_of_two, 0, 1)
    reply = await shim_of_two.call("GET", rank_a(1))
    assert (reply.status, reply.text) == (200, '{"rank_ip": "10.0.0.1", "rank_port": 17001}')
    missing = await shim_of_two.call("GET", rank_a(7))
    assert (missing.status, missing.text) == (404, "Not Found")
    assert (await shim_of_two.call("GET", rank_a(-1))).status == 404


async def test_exchange_of_a2_and_a3_with_agent_names(shim_of_two: RunningShim) -> None:
    for rank in (0, 1):
        body = payload_a(rank, agent_name=f"u-{rank}")
        assert (await shim_of_two.call("PUT", "/route", body)).status == 200
    reply = await shim_of_two.call("GET", rank_a(0))
    entry = {"rank_ip": "10.0.0.1", "rank_port": 17000, "agent_name": "u-0"}
    assert reply.json == entry
    dump = await shim_of_two.call("GET", "/route")
    assert dump.json == {"0": entry, "1": entry | {"rank_port": 17001, "agent_name": "u-1"}}
    (first, _) = shim_of_two.registry.topology().routes
    assert first.attributes.agent_name == "u-0"


@pytest.mark.parametrize("target", ["/route", "/route?", "/route?engine_rank="])
async def test_trap_1_no_or_an_empty_parameter_asks_for_the_whole_table(
    shim_of_two: RunningShim, target: str
) -> None:
    await put(shim_of_two, 1, 0)
    assert set((await shim_of_two.call("GET", target)).json) == {"0", "1"}


async def test_trap_9_the_table_has_every_rank_and_nothing_else(shim: RunningShim) -> None:
    """Its length is taken for the TP size, so a partial one would be wrong."""
    asked = asyncio.create_task(ports(shim))
    await put(shim, 2, 0, 3, 1)
    assert await asked == {"0": 17000, "1": 17001, "2": 17002, "3": 17003}
    assert shim.registry.topology().shape == Shape(attn_tp_size=4)


async def test_trap_12_a_request_is_held_until_the_ranks_are_in(shim_of_two: RunningShim) -> None:
    asked = [
        asyncio.create_task(shim_of_two.call("GET", target)) for target in ("/route", rank_a(1))
    ]
    await put(shim_of_two, 0)
    assert (await shim_of_two.call("GET", "/ready")).status == 503
    assert not any(task.done() for task in asked)
    await put(shim_of_two, 1)
    assert [reply.status for reply in await asyncio.gather(*asked)] == [200, 200]


async def test_a_number_of_the_expected_ranks_must_be_below_them(shim_of_two: RunningShim) -> None:
    reply = await shim_of_two.call("PUT", "/route", payload_a(2))
    assert (reply.status, "tp_rank" in reply.text) == (400, True)


async def test_the_ranks_of_an_undeclared_size_are_not_served_before_they_are_whole(
    shim: RunningShim,
) -> None:
    await put(shim, 0)
    assert shim.registry.state is TopologyState.EMPTY
    assert await ports(shim) == {"0": 17000}


async def test_a_rank_that_comes_late_makes_the_server_grow(shim: RunningShim) -> None:
    await put(shim, 0)
    assert len(await ports(shim)) == 1
    await put(shim, 2, 1)
    assert await ports(shim) == {"0": 17000, "1": 17001, "2": 17002}


async def test_a_gap_is_waited_for(shim: RunningShim, caplog: pytest.LogCaptureFixture) -> None:
    await put(shim, 0, 2)
    await warned(caplog, "gaps")
    assert shim.registry.state is TopologyState.EMPTY
    await put(shim, 1)
    assert len(await ports(shim)) == 3


@pytest.mark.parametrize("size", [1, 2, 4])
async def test_a_restart_may_change_the_number_of_ranks(shim: RunningShim, size: int) -> None:
    """Weakness 3: SGLang's server keeps the first size, and the ranks above the new one."""
    await put(shim, 0, 1)
    assert len(await ports(shim)) == 2
    generation = shim.registry.topology().generation
    await put(shim, *range(size), base=18000)
    assert await ports(shim) == {str(rank): 18000 + rank for rank in range(size)}
    assert shim.registry.topology().generation > generation


async def test_trap_13_a_repetition_changes_nothing(shim: RunningShim) -> None:
    await put(shim, 0, 1)
    assert len(await ports(shim)) == 2
    version = shim.registry.version
    await put(shim, 1, 1, 0)
    assert len(await ports(shim)) == 2, "asking is not held up by what is known"
    assert shim.registry.version == version


async def test_trap_10_another_role_is_answered_and_not_kept(shim_of_two: RunningShim) -> None:
    body = payload_a(0, role="Decode")
    reply = await shim_of_two.call("PUT", "/route", body)
    assert (reply.status, reply.text) == (200, "OK")
    assert shim_of_two.registry.state is TopologyState.EMPTY


@pytest.mark.parametrize("name", ["role", "rank_ip", "rank_port"])
async def test_a_missing_key_is_named(shim: RunningShim, name: str) -> None:
    reply = await shim.call("PUT", "/route", payload_a(**{name: ...}))
    assert (reply.status, reply.text) == (400, f"{name} is missing")


async def test_a_bad_registration_is_refused_at_once(shim: RunningShim) -> None:
    for changes in ({"rank_ip": "0.0.0.0"}, {"engine_rank": 1_024}, {"agent_name": 7}):
        assert (await shim.call("PUT", "/route", payload_a(**changes))).status == 400


async def test_what_the_registry_refuses_later_is_tried_again(
    shim: RunningShim, caplog: pytest.LogCaptureFixture
) -> None:
    """A living group of another shape that lacks a rank is not replaced before it has settled."""
    await shim.register(attn_tp_size=2, attn_tp_rank=1, rank_port=16001)
    await put(shim, 0)
    await warned(caplog, "attn_tp_size is 1 and not 2")
    await shim.register(attn_tp_size=2, rank_port=16000)  # whole: another start may follow it
    assert await ports(shim) == {"0": 17000}


async def test_weakness_20_metadata_is_off_unless_asked_for(shim: RunningShim) -> None:
    for method in ("GET", "PUT", "DELETE"):
        assert (await shim.call(method, "/metadata?key=a", b"x")).status == 404


async def test_metadata() -> None:
    async with running_shim(HttpConfig(metadata=True)) as shim:
        steps = [
            ("GET", 404, "metadata not found"),
            ("PUT", 200, "metadata updated"),
            ("GET", 200, "\x01raw"),
            ("DELETE", 200, "metadata deleted"),
            ("DELETE", 404, "metadata not found"),
            ("POST", 405, "Method not allowed"),
        ]
        for method, status, text in steps:
            body = b"\x01raw" if method == "PUT" else None
            reply = await shim.call(method, "/metadata?key=k%20", body)
            assert (reply.status, reply.text) == (status, text)
            assert reply.headers["bootstrap-server-id"]


async def test_weakness_20_metadata_is_bounded() -> None:
    async with running_shim(HttpConfig(metadata=True)) as shim:
        reply = await shim.call("PUT", "/metadata?key=k", b"x" * (1024 * 1024 + 1))
        assert (reply.status, "1,048,576" in reply.text) == (413, True)
        assert (await shim.call("PUT", f"/metadata?key={'k' * 1_025}", b"x")).status == 413
        assert (await shim.call("GET", "/metadata?key=k")).status == 404


async def warned(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Return once a warning names ``text``."""
    for _ in range(2_000):
        if text in caplog.text:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"no warning names {text!r}")
