"""``wait-ready`` as an init step."""

from __future__ import annotations

import json
from collections.abc import Callable

from bootstrap_grpc.protos.model import RankKey, Shape
from support.cli_process import Process, Service, environment, run, until

TP2 = Shape(attn_tp_size=2)


def test_it_exits_0_as_soon_as_the_last_rank_is_there(
    service: Service, start: Callable[..., Process]
) -> None:
    waiting = start("wait-ready", env=environment(service.address))
    waiting.wait_for_log("EMPTY: no rank is registered")
    service.register(17_001, shape=TP2)
    assert waiting.popen.poll() is None
    service.register(17_002, RankKey(tp_rank=1), TP2)
    assert waiting.wait() == 0
    assert waiting.out.read_text() == "READY: 2 of 2 ranks registered\n"


def test_it_exits_3_and_names_the_missing_ranks(service: Service) -> None:
    service.register(17_001, shape=TP2)
    late = service.run("wait-ready", "--timeout", "0.5")
    assert (late.returncode, late.stdout) == (3, "")
    assert "Error: not ready within 0.5 s: PARTIAL: 1 of 2 ranks registered" in late.stderr
    assert "dp0 cp0 tp1 pp0" in late.stderr
    scripted = service.run("wait-ready", "--timeout", "0.5", "--json")
    assert scripted.returncode == 3
    assert json.loads(scripted.stdout)["missing_total"] == 1


def test_it_exits_4_where_nothing_answered() -> None:
    silent = run("wait-ready", "--timeout", "0.5", env=environment("127.0.0.1:1"))
    assert (silent.returncode, silent.stdout) == (4, "")
    assert "Error: no contact with 127.0.0.1:1: " in silent.stderr
    assert "Traceback" not in silent.stderr


def test_it_waits_for_a_service_that_starts_later(
    serve: Callable[..., Service], start: Callable[..., Process]
) -> None:
    before = serve()
    port = str(before.ports["grpc"])
    before.end()
    waiting = start("wait-ready", "--json", env=environment(before.address))
    waiting.wait_for_log("waiting for")
    service = serve("--port", port)
    service.register(17_001)
    assert waiting.wait() == 0
    assert json.loads(waiting.out.read_text())["state"] == "READY"


def test_it_survives_a_restart_of_the_service(
    serve: Callable[..., Service], start: Callable[..., Process]
) -> None:
    first = serve()
    waiting = start("wait-ready", env=environment(first.address))
    waiting.wait_for_log("EMPTY")
    first.end()
    second = serve("--port", str(first.ports["grpc"]))
    second.register(17_001)
    assert waiting.wait() == 0
    until(lambda: "READY: 1 of 1" in waiting.out.read_text(), "the summary")
