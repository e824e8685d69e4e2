"""Fixtures: SGLang releases, their peers, and the servers that they talk to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.sglang_matrix import Peers
from support.sglang_peer import SglangPeer
from support.sglang_release import NEWEST, ReleaseUnavailableError, install_release
from support.sglang_servers import HttpServer, Service, run_service, run_sglang_server
from support.sglang_skips import SkippingPeers


@pytest.fixture(scope="session")
def newest_release() -> Path:
    """The folder of the newest SGLang release; skips where it cannot be had."""
    try:
        return install_release(NEWEST)
    except ReleaseUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def peer(newest_release: Path) -> Iterator[SglangPeer]:
    """SGLang's client code, in a process of its own."""
    with SglangPeer(newest_release) as peer:
        yield peer


@pytest.fixture(scope="session")
def peers() -> Iterator[Peers]:
    """The processes of all releases, each started when it is first needed."""
    with SkippingPeers() as peers:
        yield peers


@pytest.fixture
def service() -> Iterator[Service]:
    """This project's service, new and empty."""
    with run_service() as service:
        yield service


@pytest.fixture(params=["shim", "sglang"])
def server(request: pytest.FixtureRequest, newest_release: Path) -> Iterator[HttpServer]:
    """A new HTTP server: this project's, and as the control SGLang's own of the same release."""
    running = run_service() if request.param == "shim" else run_sglang_server(newest_release)
    with running as server:
        yield server
