"""The port file of ``bootstrap-grpc serve``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bootstrap_grpc.cli.portfile import PortFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ports.json"


@pytest.fixture
def dead_pid() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def test_it_has_the_ports_and_the_pid_and_leaves_nothing_beside_it(path: Path) -> None:
    file = PortFile(path)
    file.write(grpc=18_998, http=None)
    assert json.loads(path.read_text()) == {"grpc": 18_998, "http": None, "pid": os.getpid()}
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(path.parent.iterdir()) == [path]
    file.remove()
    assert list(path.parent.iterdir()) == []


def test_a_file_that_a_killed_service_left_is_cleared(path: Path, dead_pid: int) -> None:
    path.write_text(json.dumps({"grpc": 1, "http": 2, "pid": dead_pid}))
    PortFile(path).clear_stale()
    assert not path.exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "notes", '{"pid": 0}', '{"pid": "1"}', '{"pid": true}', "\xff"]
)
def test_what_is_no_port_file_is_not_removed(path: Path, text: str) -> None:
    path.write_bytes(text.encode("latin-1"))
    file = PortFile(path)
    file.clear_stale()
    file.remove()
    assert path.exists()


def test_the_file_of_a_living_service_is_not_removed(path: Path) -> None:
    path.write_text(json.dumps({"grpc": 1, "http": 2, "pid": os.getppid()}))
    file = PortFile(path)
    file.clear_stale()
    file.remove()
    assert path.exists()


def test_a_folder_that_takes_no_file_is_an_error_and_leaves_nothing(path: Path) -> None:
    path.mkdir()
    with pytest.raises(OSError, match=r"ports\.json"):
        PortFile(path).write(grpc=1, http=2)
    assert list(path.parent.iterdir()) == [path]
