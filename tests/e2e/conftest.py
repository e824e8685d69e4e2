"""Fixtures that start real processes of the installed command, and end them with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from support.cli_process import Process, Service, environment


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    """Processes that the test started; they end with it."""
    started: list[Process] = []
    yield started
    for process in reversed(started):
        process.end()


@pytest.fixture
def start(tmp_path: Path, processes: list[Process]) -> Callable[..., Process]:
    """Starts a command in the background."""

    def started(*arguments: str, env: Mapping[str, str] | None = None) -> Process:
        folder = tmp_path / f"process-{len(processes)}"
        folder.mkdir()
        processes.append(Process(folder, *arguments, env=environment() if env is None else env))
        return processes[-1]

    return started


@pytest.fixture
def serve(tmp_path: Path, processes: list[Process]) -> Callable[..., Service]:
    """Starts a service and waits until both its ports are bound."""

    def started(*arguments: str, env: Mapping[str, str] | None = None) -> Service:
        folder = tmp_path / f"process-{len(processes)}"
        folder.mkdir()
        service = Service(folder, *arguments, env=environment() if env is None else env)
        processes.append(service)
        return service

    return started


@pytest.fixture
def service(serve: Callable[..., Service]) -> Service:
    return serve()
