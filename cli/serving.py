"""The life of the service process: bind, say so, serve, drain on the first signal."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import Generator
from importlib.metadata import version
from types import FrameType
from typing import Any

from bootstrap_grpc.cli.output import host_port, printable
from bootstrap_grpc.cli.portfile import PortFile
from bootstrap_grpc.compat.config import HttpConfig
from bootstrap_grpc.compat.shim import HttpShim
from bootstrap_grpc.server.service import BootstrapService, ServiceConfig

__all__ = ["BackgroundFault", "serve_until_stopped"]

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_log = logging.getLogger("bootstrap_grpc.cli.serve")


class BackgroundFault(Exception):  # noqa: N818 - the log calls it a fault, too
    """A part of the service that no caller waits for broke; the log has its traceback."""


async def serve_until_stopped(
    service_config: ServiceConfig, http_config: HttpConfig | None, port_file: PortFile | None
) -> None:
    """Serves until SIGTERM or SIGINT, then drains. ``http_config=None`` serves gRPC only.

    Raises BindError where a port cannot be bound, OSError where the port file cannot be written
    and BackgroundFault where a part of the service broke: half a service is never left running.
    """
    loop = asyncio.get_running_loop()
    end: asyncio.Future[None] = loop.create_future()
    if port_file is not None:
        port_file.clear_stale()
    with _signals(loop, end):
        service = BootstrapService(service_config)
        await service.start()
        shim: HttpShim | None = None
        grace = 0.0  # nobody was told of a service that did not start whole
        try:
            if http_config is not None:
                shim = HttpShim(
                    service.registry, service.rooms, http_config, grpc_port=service.port
                )
                await shim.start()
            if port_file is not None:
                port_file.write(grpc=service.port, http=None if shim is None else shim.port)
            grace = service_config.drain_timeout
            _log_start(service, service_config, shim)
            # All that is there by now stays. Not frozen, the table of a million rooms would be
            # walked whole by a collection, which holds up the loop for 250 ms.
            gc.collect()
            gc.freeze()
            ends: list[asyncio.Future[Any]] = [end, service.failure]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if service.failure.done():
                raise BackgroundFault(f"a part of the service failed: {service.failure.result()!r}")
        finally:
            if port_file is not None:
                port_file.remove()
            await _drain(service, shim, grace)
        _log.info("drained, exiting")


async def _drain(service: BootstrapService, shim: HttpShim | None, timeout: float) -> None:
    """Both within one ``timeout``; the service first, so that its health turns before all else."""
    parts = [service.drain(timeout)]
    if shim is not None:
        parts.append(shim.stop(timeout))
    for outcome in await asyncio.gather(*parts, return_exceptions=True):
        if outcome is not None:
            raise outcome


def _log_start(service: BootstrapService, config: ServiceConfig, shim: HttpShim | None) -> None:
    http = "no HTTP" if shim is None else f"HTTP on {host_port(config.host, shim.port)}"
    _log.info(
        "bootstrap-grpc %s serves gRPC on %s, %s; server id %s, instance id %s",
        version("bootstrap-grpc"),
        host_port(config.host, service.port),
        http,
        service.server_id,
        printable(config.instance_id) or "-",
    )


@contextlib.contextmanager
def _signals(
    loop: asyncio.AbstractEventLoop, end: asyncio.Future[None]
) -> Generator[None, None, None]:
    """The first SIGTERM or SIGINT resolves ``end``; a second one exits with 128 + its number.

    Plain handlers rather than the loop's: a second signal must work where the loop is stuck.
    """
    seen = False

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        if seen:
            os._exit(128 + number)
        seen = True
        loop.call_soon_threadsafe(begin_drain, number)

    def begin_drain(number: int) -> None:
        _log.info("%s: draining", signal.Signals(number).name)
        if not end.done():
            end.set_result(None)

    before = {number: signal.signal(number, on_signal) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
