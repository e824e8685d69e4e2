"""``AsyncBootstrapClient.hold_rank``: a task that keeps one rank registered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from bootstrap_grpc.client.config import STREAM_DEADLINE
from bootstrap_grpc.client.errors import BootstrapError, NoContact, from_rpc
from bootstrap_grpc.client.holding import HoldLogic
from bootstrap_grpc.protos.model import Deregistration, Registered

__all__ = ["AsyncRankHold"]


class AsyncRankHold:
    """Keeps a rank registered until ``close``, through restarts of the service.

    Made by ``AsyncBootstrapClient.hold_rank``; belongs to its event loop. The asyncio twin of
    ``RankHold``, but without its deregistration at the interpreter's exit.
    """

    def __init__(
        self,
        logic: HoldLogic,
        open_stream: Callable[..., Any],
        deregister: Callable[[Deregistration], Awaitable[None]],
        target: str,
    ) -> None:
        self._logic = logic
        self._open_stream = open_stream
        self._deregister = deregister
        self._target = target
        self._changed = asyncio.Condition()
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"bootstrap-hold-{target}"
        )

    @property
    def registered(self) -> Registered | None:
        """The service's answer while the rank is held; ``None`` while it is not."""
        return self._logic.registered

    @property
    def error(self) -> BootstrapError | NoContact | None:
        """Why the rank is not held now; ``None`` while it is, or nothing was tried yet."""
        return self._logic.error

    @property
    def is_over(self) -> bool:
        """Whether nothing is tried any more: closed, or refused for good."""
        return self._task.done()

    async def wait_registered(self, timeout: float | None = 30.0) -> Registered:
        """Wait until the rank is held. Raises as ``RankHold.wait_registered``."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._until_settled(), timeout)
        if self.registered is not None:
            return self.registered
        reason = "closed" if self.is_over else "no answer in time"
        raise self.error or NoContact(self._target, reason)

    async def close(self) -> None:
        """Deregister the rank and end. Idempotent; waits at most about 1 s for the service."""
        if not self._task.done():
            if self.registered is not None:
                with contextlib.suppress(BootstrapError, NoContact):
                    await self._deregister(self._logic.deregistration())
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def __aenter__(self) -> AsyncRankHold:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def _until_settled(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.registered is not None or self.is_over)

    async def _run(self) -> None:
        delay: float | None = 0.0
        try:
            while delay is not None:
                await asyncio.sleep(delay)
                delay = self._logic.on_end(await self._hold_once())
        finally:
            # Whoever waits must see a task that is done, not one about to be.
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        asyncio.get_running_loop().create_task(self._notify())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _hold_once(self) -> BootstrapError | NoContact:
        try:
            call = self._open_stream(
                self._logic.request(), timeout=STREAM_DEADLINE, wait_for_ready=True
            )
            try:
                async for response in call:
                    self._logic.on_response(response)
                    await self._notify()
            finally:
                call.cancel()
        except grpc.RpcError as error:
            return from_rpc(error, self._target)
        except BootstrapError as error:
            return error
        return NoContact(self._target, "the service ended the stream")
