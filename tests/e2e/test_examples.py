"""The examples, run as a reader would."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.cli_process import Service

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@contextmanager
def example(name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A running example, which is gone afterwards however the test ends."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def test_an_engine_on_stubs_is_found_by_a_scheduler_on_asyncio(
    serve: Callable[..., Service],
) -> None:
    service = serve()
    target = service.address
    with example("engine_with_stubs.py", target, "42", "43") as engine:
        assert engine.stdout is not None
        assert engine.stdout.readline() == "registered, generation 1\n"
        with example("asyncio_scheduler.py", target, "42", "43") as scheduler:
            said, _ = scheduler.communicate(timeout=30)
        assert scheduler.returncode == 0
        assert sorted(said.splitlines()) == [
            "room 42: DP rank 0 at 127.0.0.1:17000",
            "room 43: DP rank 0 at 127.0.0.1:17000",
        ]
        engine.send_signal(signal.SIGTERM)
        assert engine.wait(20) == 0


def test_the_launch_script_says_how_it_is_used() -> None:
    script = EXAMPLES / "sglang_two_nodes.sh"
    subprocess.run(["bash", "-n", str(script)], check=True)
    called = subprocess.run(
        ["bash", str(script)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PREFILL_HOST": "127.0.0.1"},
    )
    assert called.returncode == 2
    assert "usage:" in called.stderr
