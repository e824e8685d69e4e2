"""``BootstrapClient.hold_rank``: a thread that keeps one rank registered."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from bootstrap_grpc.client.config import STREAM_DEADLINE
from bootstrap_grpc.client.errors import BootstrapError, NoContact, from_rpc
from bootstrap_grpc.client.holding import HoldLogic
from bootstrap_grpc.protos.model import Deregistration, Registered

__all__ = ["RankHold"]


class RankHold:
    """Keeps a rank registered until ``close``, through restarts of the service.

    Made by ``BootstrapClient.hold_rank``. Thread-safe. The rank is deregistered by ``close``
    and at the interpreter's exit; a killed process's rank goes after the server's grace. In a
    forked child every method is harmless, and the parent goes on holding.
    """

    def __init__(
        self,
        logic: HoldLogic,
        open_stream: Callable[..., Any],
        deregister: Callable[[Deregistration], None],
        target: str,
    ) -> None:
        self._logic = logic
        self._open_stream = open_stream
        self._deregister = deregister
        self._target = target
        self._changed = threading.Condition()
        self._closing = False
        self._over = False
        self._call: Any = None
        self._pid = os.getpid()
        self._thread = threading.Thread(
            target=self._run, name=f"bootstrap-hold-{target}", daemon=True
        )
        atexit.register(self.close)
        self._thread.start()

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
        return self._over

    def wait_registered(self, timeout: float | None = 30.0) -> Registered:
        """Wait until the rank is held.

        Raises
        ------
        BootstrapError
            The last refusal: at once where it is final, else when ``timeout`` seconds are over.
        NoContact
            No answer within ``timeout`` seconds, or closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.registered is not None or self._over, timeout)
            registered, error = self.registered, self.error
        if registered is not None:
            return registered
        raise error or NoContact(self._target, "closed" if self._over else "no answer in time")

    def close(self) -> None:
        """Deregister the rank and end. Idempotent; waits at most about 2 s for the service."""
        if self._pid != os.getpid():
            return
        with self._changed:
            if self._closing:
                return
            self._closing = True
            call, registered = self._call, self.registered
            self._changed.notify_all()
        atexit.unregister(self.close)
        if registered is not None:
            # The server cannot tell a cancel from a crash, and would keep the rank for its
            # grace. Where it is out of reach the rank goes by that grace.
            with contextlib.suppress(BootstrapError, NoContact):
                self._deregister(self._logic.deregistration())
        if call is not None:
            call.cancel()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=2.0)

    def __enter__(self) -> RankHold:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._over:
            error = self._hold_once()
            with self._changed:
                self._call = None
                delay = None if self._closing else self._logic.on_end(error)
            self._over = delay is None or self._wait(delay)
        with self._changed:
            self._changed.notify_all()

    def _wait(self, delay: float) -> bool:
        """Wait for ``delay`` seconds; true where the hold is to end."""
        deadline = time.monotonic() + delay
        with self._changed:
            while not self._closing and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            return self._closing

    def _hold_once(self) -> BootstrapError | NoContact:
        try:
            call = self._open_stream(
                self._logic.request(), timeout=STREAM_DEADLINE, wait_for_ready=True
            )
            with self._changed:
                if self._closing:
                    call.cancel()
                self._call = call
            try:
                for response in call:
                    with self._changed:
                        self._logic.on_response(response)
                        self._changed.notify_all()
            finally:
                call.cancel()
        except grpc.RpcError as error:
            return from_rpc(error, self._target)
        except BootstrapError as error:
            return error
        except ValueError as error:  # the client was closed meanwhile
            self._closing = True
            return NoContact(self._target, str(error))
        return NoContact(self._target, "the service ended the stream")
