"""The README tells the truth: its tour and its Python run as they stand there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.serve import ServeProcess, child_environment, serving

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServeProcess]:
    with serving(tmp_path) as service:
        yield service


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


def at(service: ServeProcess, text: str) -> str:
    """The README's default addresses are this service's."""
    return text.replace("127.0.0.1:18998", service.grpc).replace("127.0.0.1:8998", service.http)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the tour uses curl, which is not here")
def test_the_tour_says_what_it_says_there(service: ServeProcess) -> None:
    (tour,) = blocks("console")
    commands = re.findall(r"^\$ (.*?)(?=^\$ |\Z)", tour, re.DOTALL | re.MULTILINE)
    environment = child_environment() | {
        "BOOTSTRAP_GRPC_ADDRESS": service.grpc,
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    }
    ran = 0
    for entry in commands:
        lines = entry.rstrip("\n").split("\n")
        # A command goes on over indented lines; what follows is what it prints.
        more = [line for line in lines[1:] if line.startswith("    ")]
        expected = "\n".join(lines[1 + len(more) :])
        command = at(service, "\n".join([lines[0], *more]))
        if command.startswith(". "):
            continue  # the tests' own environment is active
        done = subprocess.run(
            command, shell=True, env=environment, capture_output=True, text=True, check=False
        )
        said = (done.stdout + done.stderr).strip()
        ran += 1
        if expected:
            assert said.strip() == at(service, expected).strip(), command
        else:
            assert done.returncode == 0, said
    assert ran >= 8


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_the_python_runs(service: ServeProcess, number: int) -> None:
    code = at(service, blocks("python")[number])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=40,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
