"""The arrows of design section 3, enforced."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from support.layers import MAY_IMPORT, PACKAGE, python_files, violations

TRANSPORT_FREE = ("registry", "ranks", "refusals", "rooms", "addresses", "validation")
"""Modules of the server that must run without any transport, on a clock that they are given."""

TRANSPORT = frozenset(
    {
        "aiohttp",
        "asyncio",
        "grpc",
        "google",
        "multiprocessing",
        "select",
        "selectors",
        "socket",
        "ssl",
        "threading",
        "time",
        f"{PACKAGE}.protos.bootstrap_pb2",
        f"{PACKAGE}.protos.bootstrap_pb2_grpc",
        f"{PACKAGE}.protos.convert",
        f"{PACKAGE}.protos.status",
    }
)


def folder(layer: str) -> Path:
    (path,) = import_module(f"{PACKAGE}.{layer}").__path__
    return Path(path)


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_each_layer_imports_only_what_it_may(layer: str) -> None:
    files = python_files(folder(layer))
    assert len(files) > 1
    found = [
        line
        for path in files
        for line in violations(path.read_text(), layer, where=f"{layer}/{path.name}")
    ]
    assert found == []


@pytest.mark.parametrize("module", TRANSPORT_FREE)
def test_the_core_knows_no_transport_and_no_clock(module: str) -> None:
    source = (folder("server") / f"{module}.py").read_text()
    assert violations(source, "server", forbidden=TRANSPORT, where=module) == []


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after ``statement``."""
    code = f"import sys; {statement}; print(*sys.modules, sep=chr(10))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    return set(done.stdout.split())


def test_the_core_loads_no_transport() -> None:
    statement = "; ".join(f"import {PACKAGE}.server.{module}" for module in TRANSPORT_FREE)
    loaded = loaded_by(statement)
    assert f"{PACKAGE}.server.registry" in loaded
    for module in ("grpc", "google.protobuf", "aiohttp", "asyncio", "socket", "selectors"):
        assert module not in loaded


def test_the_client_loads_neither_server_nor_http_nor_cli() -> None:
    loaded = loaded_by(
        f"import {PACKAGE}.client; {PACKAGE}.client.BootstrapClient; "
        f"{PACKAGE}.client.AsyncBootstrapClient"
    )
    tops = {name.split(".")[0] for name in loaded}
    assert not tops & {"aiohttp", "click", "rich", "requests"}
    for layer in ("server", "compat", "cli"):
        assert f"{PACKAGE}.{layer}" not in loaded


# --- the checker itself: a check that cannot fail proves nothing ----------------------------

BROKEN = {
    "server": [
        "import bootstrap_grpc.client",
        "from bootstrap_grpc import client",
        "from bootstrap_grpc.client import BootstrapClient",
        "from bootstrap_grpc.client.target import parse_target",
        "from bootstrap_grpc.compat import http",
        "from bootstrap_grpc.cli.main import main",
        "from . import client",
        "from ..client import x",
        "import client",
        "from tests.support import clock",
        "import benchmarks",
        "from support.clock import FakeClock",
        "import pickle",
        "from pickle import loads",
        "def f():\n    import pickle",
        "if TYPE_CHECKING:\n    from bootstrap_grpc.client import BootstrapClient",
        "importlib.import_module('bootstrap_grpc.client')",
        "__import__('pickle')",
    ],
    "client": [
        "from bootstrap_grpc.server.registry import RankRegistry",
        "import bootstrap_grpc.compat.http",
        "from bootstrap_grpc import cli, protos",
    ],
    "protos": ["import bootstrap_grpc.client", "from bootstrap_grpc.server import rooms"],
    "compat": ["from bootstrap_grpc.cli import main"],
    "cli": ["import tests.unit"],
}


@pytest.mark.parametrize(
    ("layer", "source"), [(layer, source) for layer, lines in BROKEN.items() for source in lines]
)
def test_the_checker_finds(layer: str, source: str) -> None:
    assert violations(source, layer) != []


@pytest.mark.parametrize("module", ["time", "grpc.aio", "socket", "asyncio"])
def test_the_checker_finds_transport_in_the_core(module: str) -> None:
    for source in (f"import {module}", f"from {module} import x", f"def f():\n import {module}"):
        assert violations(source, "server", forbidden=TRANSPORT) != []
        assert violations(source, "server") == []


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("server", "from bootstrap_grpc.server.rooms import RoomTable"),
        ("server", "from bootstrap_grpc.protos import bootstrap_pb2 as pb"),
        ("client", "from bootstrap_grpc.protos.errors import BootstrapError"),
        ("compat", "from bootstrap_grpc.server.registry import RankRegistry"),
        ("cli", "from bootstrap_grpc.compat.http import HttpShim"),
        ("protos", "import grpc"),
        ("server", "import picklefork, clients, timeit"),
    ],
)
def test_the_checker_lets_pass(layer: str, source: str) -> None:
    assert violations(source, layer, forbidden=frozenset({"time"})) == []
