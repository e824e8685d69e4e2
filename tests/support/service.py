"""The whole service in this process: an event loop in a thread, for tests that call it blocking."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from bootstrap_grpc.compat.config import HttpConfig
from bootstrap_grpc.compat.shim import HttpShim
from bootstrap_grpc.server.service import BootstrapService, ServiceConfig

__all__ = ["RunningService", "eventually", "running_service"]

_T = TypeVar("_T")


class RunningService:
    """A service that answers on free ports of loopback. Made by ``running_service``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        service: BootstrapService,
        shim: HttpShim,
    ) -> None:
        self._loop = loop
        self.service = service
        self.shim = shim

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.service.port}"

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.shim.port}"

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run in the service's loop and wait."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    def call(self, function: Callable[..., _T], *args: Any) -> _T:
        """Call in the service's loop and wait: the registry knows no other thread."""

        async def call() -> _T:
            return function(*args)

        return self.run(call())


@contextmanager
def running_service(
    config: ServiceConfig | None = None,
    http: HttpConfig | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[RunningService]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="service under test")
    thread.start()

    async def start() -> RunningService:
        service = BootstrapService(config or ServiceConfig(grpc_port=0), clock=clock)
        await service.start()
        shim = HttpShim(
            service.registry, service.rooms, http or HttpConfig(port=0), grpc_port=service.port
        )
        try:
            await shim.start()
        except BaseException:
            await service.drain(0)
            raise
        return RunningService(loop, service, shim)

    async def stop(running: RunningService) -> None:
        await running.shim.stop(1)
        await running.service.drain(1)

    try:
        running = asyncio.run_coroutine_threadsafe(start(), loop).result(20)
        try:
            yield running
        finally:
            asyncio.run_coroutine_threadsafe(stop(running), loop).result(20)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


def eventually(condition: Callable[[], object], what: str, timeout: float = 20.0) -> None:
    """Poll until ``condition()`` is true; fail naming ``what`` where it never is."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.005)
