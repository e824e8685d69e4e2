"""What an operator sees: ranks and rooms over the command line and over HTTP, on one registry."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

from bootstrap_grpc.protos.model import TopologyState
from support.cli_process import Process, Service, environment, run, until

TP2 = ["--tp-size", "2", "--page-size", "64", "--kv-cache-dtype", "auto"]
DP2_TP2 = ["--dp-size", "2", "--tp-size", "2"]


def rank(port: int, *arguments: str) -> list[str]:
    return ["register", "--rank-ip", "127.0.0.1", "--rank-port", str(port), *arguments]


def sglang_rank(tp_rank: int, port: int) -> dict[str, Any]:
    """What SGLang 0.5.23 puts to ``/route``."""
    return {
        "attn_tp_size": 2,
        "attn_tp_rank": tp_rank,
        "attn_cp_size": 1,
        "attn_cp_rank": 0,
        "attn_dp_size": 1,
        "attn_dp_rank": 0,
        "pp_size": 1,
        "pp_rank": 0,
        "system_dp_size": 1,
        "system_dp_rank": 0,
        "rank_ip": "127.0.0.1",
        "rank_port": port,
        "page_size": 64,
        "kv_cache_dtype": "auto",
        "load_balance_method": "round_robin",
        "enable_dsa_cache_layer_split": False,
        "prefill_http_port": 30_000,
        "dsv41_spec_layout": None,
        "decode_allocation_policy": "early",
        "kv_layout": None,
        "enable_kv_cache_sharding": False,
    }


ROUTE = "/route?prefill_dp_rank={}&prefill_cp_rank={}&target_tp_rank={}&target_pp_rank={}"


def test_two_ranks_one_over_each_protocol(service: Service) -> None:
    assert service.run(*rank(17_001, *TP2)).returncode == 0
    status, text = service.http("GET", ROUTE.format(-1, -1, -1, -1))
    assert status == 503, text
    assert service.http("PUT", "/route", sglang_rank(1, 17_002)) == (200, "OK")

    topology = service.json("status")
    assert (topology["state"], topology["registered"], topology["missing"]) == ("READY", 2, [])
    status, text = service.http("GET", ROUTE.format(-1, -1, -1, -1))
    assert (status, json.loads(text)["attn_tp_size"]) == (200, 2)

    over_http = json.loads(service.http("GET", ROUTE.format(0, 0, 0, 0))[1])
    assert over_http == {"rank_ip": "127.0.0.1", "rank_port": 17_001}
    over_grpc = service.json("route", "--tp", "1")
    assert (over_grpc["rank_port"], over_grpc["held"]) == (17_002, False)
    assert over_grpc["attributes"]["prefill_http_port"] == 30_000
    shown = service.run("route", "--tp", "1")
    assert "127.0.0.1:17002" in shown.stdout
    assert "prefill_http_port" in shown.stdout


def test_rooms_cross_the_protocols(service: Service) -> None:
    largest = 2**64 - 1
    assert service.run("publish", "101=1", f"{largest}=0").stdout == "2 rooms registered\n"
    status, text = service.http("POST", "/query_dp_ranks", {"bootstrap_rooms": [101, 5]})
    assert (status, json.loads(text)) == (200, {"101": 1})

    body = {"bootstrap_room": 0, "dp_rank": 3}
    assert service.http("POST", "/register_dp_rank", body) == (200, "OK")
    known = service.run("query", "0", "101", str(largest))
    assert known.returncode == 0
    assert [line.split() for line in known.stdout.splitlines()] == [
        ["room", "dp", "rank"],
        ["0", "3"],
        ["101", "1"],
        [str(largest), "0"],
    ]


def test_an_unknown_room_is_shown_and_left_out_of_json(service: Service) -> None:
    service.run("publish", "1=0")
    shown = service.run("query", "1", "2")
    assert shown.returncode == 3
    assert shown.stdout.splitlines()[2].split() == ["2", "unknown"]
    scripted = service.run("query", "2", "1", "--json")
    assert (scripted.returncode, json.loads(scripted.stdout), scripted.stderr) == (3, {"1": 0}, "")


def test_rooms_from_stdin_may_be_more_than_one_message_takes(service: Service) -> None:
    count = 70_000
    pairs = "\n".join(f"{room}={room % 8}" for room in range(count))
    assert service.run("publish", "-", stdin=pairs).stdout == "70,000 rooms registered\n"
    asked = service.run("query", "-", "--json", stdin="\n".join(map(str, range(count))))
    assert asked.returncode == 0
    assert json.loads(asked.stdout) == {str(room): room % 8 for room in range(count)}


def test_status_draws_held_loose_missing_and_refused_ranks(
    service: Service, start: Callable[..., Process]
) -> None:
    assert service.run("status").stdout.startswith("EMPTY: no rank is registered\n")
    hold = start(*rank(17_001, *DP2_TP2, "--hold"), env=environment(service.address))
    until(lambda: service.topology().registered == 1, "the held rank")
    assert service.run(*rank(17_002, "--dp", "1", "--tp", "1", *DP2_TP2)).returncode == 0
    refused = service.run(*rank(17_003, "--tp", "1", "--tp-size", "4", "--dp-size", "2"))
    assert refused.returncode == 5
    assert "attn_tp_size is 4 and not 2" in refused.stderr

    shown = service.run("status", "--routes")
    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    assert lines[0] == "PARTIAL: 2 of 4 ranks registered"
    grid = lines.index("tp   0 1")
    assert lines[grid + 1 : grid + 3] == ["dp 0 ● ✗", "dp 1 · ○"]
    assert "Missing (2):" in lines
    assert [line for line in lines if "SHAPE_MISMATCH" in line and "dp0 cp0 tp1 pp0" in line]
    assert [line.split()[5] for line in lines if line.startswith("dp1 cp0 tp1 pp0")] == ["no"]
    assert service.run("status", "--check").returncode == 3

    hold.signal(signal.SIGINT)
    assert hold.wait() == 0
    assert hold.out.read_text().startswith("registered   dp0 cp0 tp0 pp0 at 127.0.0.1:17001\n")
    left = service.topology()  # at once, without the grace
    assert [route.rank_port for route in left.routes] == [17_002]


def test_status_falls_back_to_ascii(service: Service) -> None:
    env = environment(service.address, PYTHONIOENCODING="ascii")
    service.run(*rank(17_001, "--attribute", 'größe="ü"'))
    shown = run("status", env=env)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "dp 0 o\n" in shown.stdout
    attributes = run("route", env=env)
    assert (attributes.returncode, attributes.stderr) == (0, "")


def test_a_hold_outlives_a_restart_of_the_service(
    serve: Callable[..., Service], start: Callable[..., Process]
) -> None:
    first = serve()
    hold = start(*rank(17_001, "--hold", "--json"), env=environment(first.address))
    until(lambda: first.topology().registered == 1, "the held rank")
    assert json.loads(hold.out.read_text())["server_id"] == first.topology().server_id
    first.signal(signal.SIGKILL)
    first.wait()
    second = serve("--port", str(first.ports["grpc"]))
    until(lambda: second.topology().registered == 1, "the held rank again")
    hold.signal(signal.SIGTERM)
    assert hold.wait() == 0
    assert second.topology().registered == 0
    assert "Traceback" not in hold.log


def test_a_hold_that_another_owner_has_is_refused(
    service: Service, start: Callable[..., Process]
) -> None:
    start(*rank(17_001, "--hold"), env=environment(service.address))
    until(lambda: service.topology().registered == 1, "the held rank")
    second = service.run(*rank(17_009, "--hold", "--call-timeout", "1"))
    assert (second.returncode, second.stdout) == (5, "")
    assert "17001" in second.stderr


def test_a_rank_that_is_not_there_exits_3(service: Service) -> None:
    missing = service.run("route", "--dp", "7", "--json")
    assert (missing.returncode, missing.stdout) == (3, "")
    assert "dp7 cp0 tp0 pp0" in missing.stderr


def test_an_address_that_nobody_can_dial_is_refused(service: Service) -> None:
    ip = "0.0.0.0"
    refused = service.run("register", "--rank-ip", ip, "--rank-port", "17001")
    assert (refused.returncode, refused.stdout) == (5, "")
    assert refused.stderr.startswith(f"Error: rank_ip is '{ip}'")
    assert service.topology().state is TopologyState.EMPTY
