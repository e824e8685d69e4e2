"""Where streams live: one event loop in one thread for the whole process.

A caller that must not block leaves word and goes on: it appends to a queue and rings a bell, an
eventfd that the loop watches. Neither waits, and the interpreter's lock is kept over both: a
caller that gave it up would get it back only after the stream's turn. For the same reason the
loop looks for news of the kernel less often than asyncio's own. One thread serves any number of
streams.

A fork pauses them: gRPC's own fork handlers do nothing while asyncio's gRPC is live, and a child
would then crash one time in five (grpcio 1.85.3, measured).
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import select
import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from bootstrap_grpc.client.channels import close_all_async, forget_async_use
from bootstrap_grpc.client.starts import PacedStarts

__all__ = ["Background", "Host", "InLoop", "Stream", "background"]

Run = Callable[[], Coroutine[Any, Any, None]]


class Stream:
    """A coroutine that is kept running in a loop until it is cancelled."""

    def __init__(self, run: Run, on_cancel: Callable[[Stream], None] | None = None) -> None:
        self._run = run
        self._on_cancel = on_cancel
        self._task: asyncio.Task[None] | None = None
        self.is_over = False
        """Whether it was cancelled: it will not run again."""

    def start(self) -> None:
        """Run it, unless it runs or is over. Called in its loop."""
        if self._task is None and not self.is_over:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End it for now. Called in its loop."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def cancel(self) -> None:
        """End it for good. Called in its loop."""
        self.is_over = True
        if self._on_cancel is not None:
            self._on_cancel(self)
        if self._task is not None:
            self._task.cancel()


class Host(Protocol):
    """An event loop that streams live in, and a way to leave word there."""

    def soon(self, call: Callable[[], object]) -> None:
        """Have ``call`` called in the loop. Never blocks."""

    def keep(self, run: Run) -> Stream:
        """Run ``run()`` until it is cancelled. Called in the loop."""
        ...


class InLoop:
    """The host of a caller that runs in the loop itself: word is taken at once."""

    def soon(self, call: Callable[[], object]) -> None:
        call()

    def keep(self, run: Run) -> Stream:
        stream = Stream(run)
        stream.start()
        return stream


class _Selector(selectors.EpollSelector):
    """A selector for a loop that lives beside a busy host.

    It looks for news only once in a while where the loop has other work to do. asyncio looks
    before each round of callbacks, a message takes several, and each look gives up the
    interpreter's lock, which a busy host then keeps for 5 ms. And it waits for fractions of a
    millisecond, which epoll rounds up: a stream gathers rooms for as long.
    """

    _SKIPS = 8
    """Looks left out in a row."""

    _FINE = 0.002
    """Seconds below which a wait is not left to epoll."""

    _FD_SETSIZE = 1024
    """select(2) takes descriptors below this. Past it waits are rounded up."""

    def __init__(self) -> None:
        super().__init__()
        self._skipped = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0 and self._skipped < self._SKIPS:
            self._skipped += 1
            return []
        self._skipped = 0
        if timeout is not None and 0 < timeout < self._FINE:
            descriptor = self.fileno()
            if descriptor < self._FD_SETSIZE:
                select.select([descriptor], [], [], timeout)
                timeout = 0
        return super().select(timeout)


class _Bell:
    """Wakes an event loop from any thread. Unlike asyncio's own way, which writes to a socket,
    ringing keeps the interpreter's lock: it enters the kernel for a microsecond at most."""

    _RING = (1).to_bytes(8, sys.byteorder)

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # ctypes.PyDLL, other than os.write and ctypes.CDLL, does not let go of the lock.
        self._write = ctypes.PyDLL(None).write
        self._write.argtypes = ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t
        self._rung = False

    def ring(self) -> None:
        if not self._rung:
            self._rung = True
            self._write(self.fd, self._RING, 8)

    def silence(self) -> None:
        """Before one looks at what was left: what is left from now on rings again."""
        os.eventfd_read(self.fd)
        self._rung = False


class Background:
    """An event loop in a daemon thread, for as long as the process lives. Thread-safe."""

    def __init__(self) -> None:
        self.loop = asyncio.SelectorEventLoop(_Selector())
        self._bell = _Bell()
        self.loop.add_reader(self._bell.fd, self._answer)
        self._calls: deque[Callable[[], object]] = deque()
        self._kept: set[Stream] = set()
        self._starts = PacedStarts(self.loop)
        self._paused = False
        self._thread = threading.Thread(
            target=self._run_loop, name="bootstrap-streams", daemon=True
        )
        self._thread.start()

    def soon(self, call: Callable[[], object]) -> None:
        """Have ``call`` called in the loop. Never blocks, costs about a microsecond."""
        self._calls.append(call)
        self._bell.ring()

    def keep(self, run: Run) -> Stream:
        """Run ``run()`` until it is cancelled, anew after each pause.

        Not at once where very many are begun: see ``PacedStarts``.
        """
        stream = Stream(run, self._kept.discard)
        self._kept.add(stream)
        if not self._paused:
            self._starts.start(stream)
        return stream

    def pause(self, timeout: float) -> bool:
        """Before a fork: end every stream and the threads that gRPC runs for them.

        True where nothing of asyncio's gRPC is left in this process: a child then starts
        afresh. Where the host runs some of its own, or ``timeout`` seconds were not enough, gRPC
        is of no use in the child.
        """
        if threading.current_thread() is self._thread:
            return False  # forked from a callback: the loop cannot wait for itself
        deadline = time.monotonic() + timeout
        asyncio.run_coroutine_threadsafe(self._pause(), self.loop).result(timeout)
        while _grpc_polls():
            gc.collect()  # gRPC ends its poller with the last of its objects
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        # The poller is gone before the thread that ended it lets go of gRPC's lock, which the
        # child would inherit: its turn must be over, too.
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.loop).result(timeout)
        return True

    def resume(self) -> None:
        """After the fork, in the parent: open the streams again."""
        self.soon(self._resume)

    async def _pause(self) -> None:
        self._paused = True
        self._starts.clear()
        await asyncio.gather(*(stream.stop() for stream in self._kept))
        await close_all_async()

    def _resume(self) -> None:
        self._paused = False
        for stream in self._kept:
            stream.start()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def _answer(self) -> None:
        self._bell.silence()
        while self._calls:
            self._calls.popleft()()


def _grpc_polls() -> bool:
    """Whether the thread that polls for asyncio's gRPC runs in this process."""
    return any("_poll_wrapper" in thread.name for thread in threading.enumerate())


_lock = threading.Lock()
_current: Background | None = None
_abandoned: list[object] = []

_PAUSE_TIMEOUT = 2.0
"""Most seconds that a fork waits for the streams to end; it takes a few milliseconds."""


def background() -> Background:
    """This process's background, made at its first use."""
    global _current  # noqa: PLW0603 - one for each process is the point
    with _lock:
        if _current is None:
            _current = Background()
        return _current


def _before_fork() -> None:
    if _current is not None and _current.pause(_PAUSE_TIMEOUT):
        forget_async_use()


def _after_fork_in_parent() -> None:
    if _current is not None:
        _current.resume()


def _after_fork_in_child() -> None:
    global _lock, _current
    # Kept alive: the loop's clean-up would wait for threads that do not exist here.
    _abandoned.append(_current)
    _lock, _current = threading.Lock(), None


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
