"""The port exhaustion that this project is about, reproduced small, and its absence here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.netns, pytest.mark.sglang, pytest.mark.timeout(400)]

PORTS = 40
PROCESSES = 2
_BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "port_exhaustion.py"


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """The rows of a small run; skips where it may not run, with its own words."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the ip command")
    done = subprocess.run(
        [
            *(sys.executable, str(_BENCHMARK), "--json", "--ports", str(PORTS)),
            *("--processes", str(PROCESSES), "--queries", "60", "--grpc-queries", "400"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=380,
    )
    if done.returncode == 2:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def select(rows: list[dict[str, Any]], client: str, server: str) -> list[dict[str, Any]]:
    found = [row for row in rows if client in row["client"] and row["server"].startswith(server)]
    assert found
    return found


def test_sglang_runs_out_of_ports_on_its_own_server(rows: list[dict[str, Any]]) -> None:
    (row,) = select(rows, "0.5.16", "SGLang")

    assert row["errno_99"] > 0
    assert row["failures"] >= row["errno_99"]
    assert row["time_wait"] == PORTS  # all there are


def test_newest_sglang_pools_its_queries_only(rows: list[dict[str, Any]]) -> None:
    (pooled,) = select(rows, "0.5.23, pooled", "SGLang")
    (rest,) = select(rows, "0.5.23, its unpooled calls", "SGLang")

    assert (pooled["failures"], pooled["established"]) == (0, PROCESSES)
    assert rest["errno_99"] > 0


@pytest.mark.parametrize("server", ["bootstrap-grpc", "bootstrap-grpc, busy loop"])
def test_unmodified_sglang_does_not_on_this_service(
    rows: list[dict[str, Any]], server: str
) -> None:
    served = [row for row in select(rows, "SGLang", server) if row["server"] == server]

    assert {row["client"].partition(", ")[2] for row in served} == {
        "unpooled",
        "pooled",
        "its unpooled calls",
    }
    for row in served:
        assert row["failures"] == 0
        assert row["time_wait"] <= 2
        assert row["established"] == (row["processes"] if row["pools"] else 0)


def test_grpc_clients_use_one_connection_each(rows: list[dict[str, Any]]) -> None:
    (row,) = select(rows, "bootstrap-grpc", "bootstrap-grpc")

    assert row["queries"] == PROCESSES * 400
    assert (row["failures"], row["errno_99"], row["time_wait"]) == (0, 0, 0)
    assert row["established"] == PROCESSES
