"""The simulation of a prefill/decode deployment, run very small."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

_BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "pd_simulation.py"
_SMALL = ("--rate", "30", "--duration", "0.5", "--runs", "1", "--loop", "overlap")

_HEADINGS = (
    *("transport", "loop", "requests", "TTFT p50 ms", "TTFT p99 ms", "req/s", "prefill share"),
    *("decode share", "worst ms", "prefill conns", "decode conns", "TIME-WAIT", "server CPU s"),
    "sched. CPU s",
)


def simulate(*options: str) -> subprocess.CompletedProcess[str]:
    """Run it; skip where it cannot run. Status 1 is a matter of figures, which are not tested."""
    done = subprocess.run(
        [sys.executable, str(_BENCHMARK), *_SMALL, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    if done.returncode == 2:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode in {0, 1}, done.stderr
    return done


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The figures of one run, and where its picture would be."""
    picture = tmp_path_factory.mktemp("plots") / "simulation.png"
    document: dict[str, Any] = json.loads(simulate("--json", "--plot", str(picture)).stdout)
    return {**document, "picture": picture}


def row_of(found: dict[str, Any], transport: str) -> dict[str, Any]:
    (row,) = [row for row in found["rows"] if row["transport"] == transport]
    return dict(row)


@pytest.mark.parametrize("transport", ["unpooled", "pooled", "grpc"])
def test_every_request_completes(found: dict[str, Any], transport: str) -> None:
    row = row_of(found, transport)

    assert row["requests"] > 0
    assert row["completed"] == row["requests"]
    assert row["errors"] == []


def test_sockets_are_as_the_client_code_has_it(found: dict[str, Any]) -> None:
    unpooled, pooled, ours = (row_of(found, name) for name in ("unpooled", "pooled", "grpc"))

    # One for each registration of a room or rank, in every release of SGLang's.
    requests = unpooled["requests"]
    assert unpooled["prefill_connections"] == pooled["prefill_connections"] == requests + 2
    assert unpooled["decode_connections"] > 2
    assert unpooled["time_wait"] > 0
    assert ours["time_wait"] == 0
    assert 2 <= ours["decode_connections"] + ours["prefill_connections"] <= 2 * 4


def test_picture_is_drawn_where_matplotlib_is(found: dict[str, Any]) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        assert not found["picture"].exists()
        pytest.skip("matplotlib is not installed")
    assert found["picture"].read_bytes().startswith(b"\x89PNG")


def test_table_has_all_columns_and_no_process_is_left() -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}

    # cpu steps, and the sizes that differ from the defaults
    done = simulate("--step", "cpu", "--step-ms", "1", "--prefill-ms", "2", "--decode", "1")

    words = " ".join(done.stdout.replace("┃", " ").split())
    for heading in _HEADINGS:
        assert heading in words
    assert "SGLang 0.5.16" in words
    assert "bootstrap-grpc against pooled" in words
    left = {child.pid for child in psutil.Process().children(recursive=True)} - before
    left |= {p.pid for p in psutil.process_iter() if "simulation/scheduler.py" in cmdline(p)}
    assert not left


def cmdline(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has just ended
        return ""


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--prefill", "1"), "prefill is 1, must be at least 2"),
        (("--rate", "0"), "rate is 0.0, must be more than 0"),
        (("--duration", "90"), "duration is 90.0, must be at most 45"),
    ],
)
def test_sizes_that_measure_nothing_are_refused(options: tuple[str, ...], complaint: str) -> None:
    done = subprocess.run(
        [sys.executable, str(_BENCHMARK), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 2
    assert complaint in done.stderr
