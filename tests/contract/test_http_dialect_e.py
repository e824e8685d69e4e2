"""The shim's statuses, texts and bodies, as the newest SGLang release has them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from bootstrap_grpc.compat.config import HttpConfig
from bootstrap_grpc.protos.model import MAX_ROOM, Registration, Shape
from bootstrap_grpc.server.peers import peer_from_ip
from support.http_shim import (
    GRPC_PORT,
    SERVER_ID,
    TOPOLOGY,
    Reply,
    RunningShim,
    payload,
    rank_target,
    running_shim,
)

TEXT = "text/plain; charset=utf-8"
JSON = "application/json; charset=utf-8"


@pytest.fixture
async def shim() -> AsyncIterator[RunningShim]:
    async with running_shim() as running:
        yield running


def not_ready(registered: int) -> str:
    return f"Prefill server not fully registered yet ({registered} workers registered)."


def shown(reply: Reply) -> tuple[int, str, str]:
    return reply.status, reply.text, reply.headers["content-type"]


async def test_from_nothing_to_ready(shim: RunningShim) -> None:
    assert shown(await shim.call("GET", TOPOLOGY)) == (503, not_ready(0), TEXT)
    assert shown(await shim.call("GET", rank_target())) == (503, not_ready(0), TEXT)
    first = await shim.register(attn_tp_size=2)
    assert shown(first) == (200, "OK", TEXT)
    for _ in range(3):  # a retried PUT counts once
        await shim.register(attn_tp_size=2)
    assert shown(await shim.call("GET", TOPOLOGY)) == (503, not_ready(1), TEXT)
    assert shown(await shim.call("GET", rank_target())) == (503, not_ready(1), TEXT)
    await shim.register(attn_tp_size=2, attn_tp_rank=1, rank_ip="10.0.0.2", rank_port="17001")
    topology = await shim.call("GET", TOPOLOGY)
    assert shown(topology) == (
        200,
        (
            '{"attn_tp_size": 2, "attn_cp_size": 1, "dp_size": 1, "pp_size": 1, "page_size": 64, '
            '"kv_cache_dtype": "auto", "follow_bootstrap_room": true, "prefill_http_port": 30000}'
        ),
        JSON,
    )
    assert shown(await shim.call("GET", rank_target(tp=1))) == (
        200,
        '{"rank_ip": "10.0.0.2", "rank_port": 17001}',
        JSON,
    )
    assert shown(await shim.call("GET", rank_target(tp=2))) == (
        404,
        "Bootstrap info not found for dp_rank=0 cp_rank=0 tp_rank=2 pp_rank=0",
        TEXT,
    )
    assert (await shim.call("GET", rank_target(dp=0, cp=-1))).status == 404


async def test_one_registry_for_both_protocols(shim: RunningShim) -> None:
    await shim.register(attn_tp_size=2, newer=[1])
    (route,) = shim.registry.topology().routes
    assert (route.rank_ip, route.rank_port, route.held) == ("10.0.0.1", 17000, False)
    assert route.attributes.extra_json == {"newer": "[1]"}
    second = Registration(
        key=type(route.key)(tp_rank=1),
        rank_ip="10.0.0.9",
        rank_port=1,
        shape=Shape(attn_tp_size=2),
    )
    shim.registry.register(second, peer_from_ip("127.0.0.1"))
    assert (await shim.call("GET", rank_target(tp=1))).json == {
        "rank_ip": "10.0.0.9",
        "rank_port": 1,
    }


async def test_an_answer_is_never_older_than_the_registry(shim: RunningShim) -> None:
    await shim.register()
    assert (await shim.call("GET", rank_target())).json["rank_port"] == 17000
    await shim.register(rank_port=17005)
    assert (await shim.call("GET", rank_target())).json["rank_port"] == 17005
    # The shape of a started server may change with a new start; the old answer is gone.
    await shim.register(attn_tp_size=2, rank_port=17010)
    assert (await shim.call("GET", TOPOLOGY)).text == not_ready(1)


async def test_omitted_and_passed_keys() -> None:
    config = HttpConfig(
        omit=frozenset(["prefill_http_port"]), pass_keys=frozenset(["newer", "other"])
    )
    async with running_shim(config) as shim:
        await shim.register(newer={"a": 1}, unasked=1)
        topology = (await shim.call("GET", TOPOLOGY)).json
        assert topology["newer"] == {"a": 1}
        assert not {"prefill_http_port", "other", "unasked"} & set(topology)


async def test_dp_ranks_of_rooms(shim: RunningShim) -> None:
    for room, dp_rank in ((0, 0), (101, 1), ("42", "3"), (2**63 - 1, 2), (MAX_ROOM, 65_535)):
        body = {"bootstrap_room": room, "dp_rank": dp_rank}
        assert shown(await shim.call("POST", "/register_dp_rank", body)) == (200, "OK", TEXT)
    asked = [0, 101, " 42", 2**63 - 1, MAX_ROOM, 7, 101]
    reply = await shim.call("POST", "/query_dp_ranks", {"bootstrap_rooms": asked})
    assert shown(reply) == (
        200,
        '{"0": 0, "101": 1, "42": 3, "9223372036854775807": 2, "18446744073709551615": 65535}',
        JSON,
    )
    for rooms in ([], [9]):
        reply = await shim.call("POST", "/query_dp_ranks", {"bootstrap_rooms": rooms})
        assert shown(reply) == (200, "{}", JSON)
    assert shim.rooms.query([101]) == {101: 1}


async def test_the_last_dp_rank_of_a_room_counts(shim: RunningShim) -> None:
    for dp_rank in (1, 2):
        body = {"bootstrap_room": 5, "dp_rank": dp_rank, "unknown": "key"}
        await shim.call("POST", "/register_dp_rank", body)
    assert (await shim.call("POST", "/query_dp_ranks", {"bootstrap_rooms": [5]})).json == {"5": 2}


@pytest.mark.parametrize(
    "content_type", ["", "Content-Type: text/plain\r\n", "Content-Type: x\r\n"]
)
async def test_no_content_type_matters(shim: RunningShim, content_type: str) -> None:
    reply = await shim.call("PUT", "/route", payload(), headers=content_type)
    assert reply.status == 200


async def test_health_is_always_ok(shim: RunningShim) -> None:
    assert shown(await shim.call("GET", "/health")) == (200, "OK", TEXT)
    head = await shim.call("HEAD", "/health")
    assert (head.status, head.headers["content-length"]) == (200, "2")


async def test_ready_names_what_is_missing(shim: RunningShim) -> None:
    assert (await shim.call("GET", "/ready")).json["state"] == "EMPTY"
    await shim.register(attn_tp_size=2)
    reply = await shim.call("GET", "/ready")
    assert reply.status == 503
    assert reply.json == {
        "state": "PARTIAL",
        "registered": 1,
        "expected": 2,
        "missing_total": 1,
        "missing": [{"dp_rank": 0, "cp_rank": 0, "tp_rank": 1, "pp_rank": 0}],
    }
    await shim.register(attn_tp_size=2, attn_tp_rank=1)
    assert (await shim.call("GET", "/ready")).status == 200


@pytest.mark.parametrize(
    "target",
    [
        "/route?prefill_dp_rank=0",
        rank_target(tp=""),
        "/route?a=b&c",
    ],
)
async def test_missing_parameters(shim: RunningShim, target: str) -> None:
    expected = (400, "Missing inputs for bootstrap server.", TEXT)
    assert shown(await shim.call("GET", target)) == expected


async def test_parameters_are_read_as_sglang_reads_them(shim: RunningShim) -> None:
    await shim.register()
    for target in (
        rank_target("%20" + "0"),
        rank_target("+0"),  # a space in a query
        rank_target("0_0"),
        rank_target() + "&target_tp_rank=9",  # the first one counts
        rank_target() + "&more=1",
        "/%72oute" + rank_target()[len("/route") :],
        f"http://127.0.0.1:{shim.port}{rank_target()}",
    ):
        assert (await shim.call("GET", target)).status == 200, target
    reply = await shim.call("GET", rank_target(tp="x"))
    assert shown(reply) == (400, "target_tp_rank is 'x', must be an integer", TEXT)


@pytest.mark.parametrize("method", ["POST", "DELETE", "HEAD", "OPTIONS", "PATCH"])
async def test_other_methods_on_route(shim: RunningShim, method: str) -> None:
    reply = await shim.call(method, "/route")
    text = "" if method == "HEAD" else "Method not allowed"
    assert shown(reply) == (405, text, JSON)


@pytest.mark.parametrize(
    ("method", "target", "allow"),
    [
        ("GET", "/register_dp_rank", "POST"),
        ("PUT", "/query_dp_ranks", "POST"),
        ("POST", "/health", "GET,HEAD"),
    ],
)
async def test_other_methods_elsewhere(
    shim: RunningShim, method: str, target: str, allow: str
) -> None:
    reply = await shim.call(method, target)
    assert shown(reply) == (405, "405: Method Not Allowed", TEXT)
    assert reply.headers["allow"] == allow


@pytest.mark.parametrize("target", ["/", "/route/", "/metadata?key=a", "/Route", "*", "/%00"])
async def test_other_paths(shim: RunningShim, target: str) -> None:
    method = "OPTIONS" if target == "*" else "GET"
    assert shown(await shim.call(method, target)) == (404, "404: Not Found", TEXT)


async def test_a_target_that_is_no_url(shim: RunningShim) -> None:
    for target in ("http://a:99999/route", "http://[::1/", "http://a:b/route"):
        assert (await shim.call("GET", target)).status in (400, 404)


async def test_every_reply_names_the_grpc_port_and_the_server() -> None:
    async with running_shim(instance_id="prefill 7/ä") as shim:
        calls: list[tuple[str, str, Any]] = [
            ("GET", "/health", None),
            ("GET", TOPOLOGY, None),
            ("PUT", "/route", payload()),
            ("GET", "/route", None),
            ("PUT", "/route", []),
            ("POST", "/route", None),
            ("POST", "/query_dp_ranks", {"bootstrap_rooms": []}),
            ("GET", "/nowhere", None),
            ("B?D", "/", None),
        ]
        for method, target, body in calls:
            headers = (await shim.call(method, target, body)).headers
            assert headers["bootstrap-grpc-port"] == str(GRPC_PORT)
            assert headers["bootstrap-server-id"] == SERVER_ID
            assert headers["bootstrap-instance-id"] == "prefill%207/%C3%A4"
    async with running_shim() as shim:
        assert "bootstrap-instance-id" not in (await shim.call("GET", "/health")).headers


async def test_a_refusal_of_the_registry_says_why(
    shim: RunningShim, caplog: pytest.LogCaptureFixture
) -> None:
    await shim.register(attn_tp_size=2)
    reply = await shim.register(attn_tp_size=4, attn_tp_rank=3)
    assert reply.status == 400
    assert "attn_tp_size is 4 and not 2" in reply.text
    assert reply.text in caplog.text, "SGLang's prefill logs no text: ours must"
    await shim.register(attn_tp_size=2, rank_port=17001)
    late = await shim.register(attn_tp_size=2)
    assert (late.status, "replaced" in late.text) == (409, True)


async def test_loopback_may_be_registered_from_this_host(shim: RunningShim) -> None:
    assert (await shim.register(rank_ip="127.0.0.1")).status == 200
    reply = await shim.register(rank_ip="0.0.0.0", rank_port=1)
    assert (reply.status, "rank_ip" in reply.text) == (400, True)
