"""``serve`` never leaves half a service: a part that breaks ends it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bootstrap_grpc.cli import serving
from bootstrap_grpc.cli.portfile import PortFile
from bootstrap_grpc.cli.serving import BackgroundFault, serve_until_stopped
from bootstrap_grpc.client import AsyncBootstrapClient, NoContact
from bootstrap_grpc.compat.config import HttpConfig
from bootstrap_grpc.server.service import BindError, BootstrapService, ServiceConfig


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> list[BootstrapService]:
    """The services that ``serve_until_stopped`` made."""
    made: list[BootstrapService] = []

    class Noted(BootstrapService):
        def __init__(self, config: ServiceConfig) -> None:
            super().__init__(config)
            made.append(self)

    monkeypatch.setattr(serving, "BootstrapService", Noted)
    return made


class NotedPorts(PortFile):
    """Says when the file was written, and that it went."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.grpc: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.removed = False

    def write(self, *, grpc: int, http: int | None) -> None:
        super().write(grpc=grpc, http=http)
        self.grpc.set_result(grpc)

    def remove(self) -> None:
        super().remove()
        self.removed = True


async def test_a_fault_in_a_background_part_ends_the_service(
    services: list[BootstrapService], tmp_path: Path
) -> None:
    ports = NotedPorts(tmp_path / "ports.json")
    before = signal.getsignal(signal.SIGTERM)
    life = asyncio.ensure_future(
        serve_until_stopped(ServiceConfig(grpc_port=0), HttpConfig(port=0), ports)
    )
    port = await asyncio.wait_for(ports.grpc, 10)
    services[0].failure.set_result(RuntimeError("broken"))
    with pytest.raises(BackgroundFault, match="broken"):
        await asyncio.wait_for(life, 10)
    assert ports.removed
    assert signal.getsignal(signal.SIGTERM) is before
    async with AsyncBootstrapClient(f"127.0.0.1:{port}") as client:
        with pytest.raises(NoContact):
            await client.get_topology()


async def test_a_port_file_that_cannot_be_written_ends_the_service(
    services: list[BootstrapService], tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="ports"):
        await serve_until_stopped(
            ServiceConfig(grpc_port=0), None, PortFile(tmp_path / "none" / "ports")
        )
    async with AsyncBootstrapClient(f"127.0.0.1:{services[0].port}") as client:
        with pytest.raises(NoContact):
            await client.get_topology()


async def test_an_http_port_in_use_takes_the_grpc_port_down_with_it(
    services: list[BootstrapService],
) -> None:
    listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        with pytest.raises(BindError, match=f"HTTP to 127.0.0.1:{port}"):
            await serve_until_stopped(ServiceConfig(grpc_port=0), HttpConfig(port=port), None)
    async with AsyncBootstrapClient(f"127.0.0.1:{services[0].port}") as client:
        with pytest.raises(NoContact):
            await client.get_topology()


@pytest.mark.parametrize("command", ["status", "wait_ready", "route", "query", "register"])
def test_a_client_command_does_not_load_the_server(command: str) -> None:
    code = f"import sys, bootstrap_grpc.cli.{command}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert {"aiohttp", "bootstrap_grpc.server"}.isdisjoint(loaded.stdout.split())
