"""Where streams live: one event loop in one thread for the whole process.

A caller that must not block leaves word and goes on: it appends to a queue and lets go of a lock.
It neither waits nor enters the kernel, since a system call gives up the interpreter lock, which
a stream's thread would then hold for as long as its turn takes. A second thread, the bell, waits
for that word and wakes the loop. Two threads serve any number of streams.

A fork pauses them: gRPC's own fork handlers do nothing while asyncio's gRPC is live, and a child
would then crash one time in five (grpcio 1.85.3, measured).
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any, Protocol

from bootstrap_grpc.client.channels import close_all_async, forget_async_use

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


class Background:
    """An event loop in a daemon thread, for as long as the process lives. Thread-safe."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._rung = False
        self._calls: deque[Callable[[], object]] = deque()
        self._kept: set[Stream] = set()
        self._paused = False
        threads = {"bootstrap-streams": self._run_loop, "bootstrap-bell": self._run_bell}
        self._threads = [
            threading.Thread(target=run, name=name, daemon=True) for name, run in threads.items()
        ]
        for thread in self._threads:
            thread.start()

    def soon(self, call: Callable[[], object]) -> None:
        """Have ``call`` called in the loop. Never blocks, costs about a microsecond."""
        self._calls.append(call)
        if not self._rung:
            self._rung = True
            self._bell.put(None)

    def keep(self, run: Run) -> Stream:
        """Run ``run()`` until it is cancelled, anew after each pause."""
        stream = Stream(run, self._kept.discard)
        self._kept.add(stream)
        if not self._paused:
            stream.start()
        return stream

    def pause(self, timeout: float) -> bool:
        """Before a fork: end every stream and the threads that gRPC runs for them.

        True where nothing of asyncio's gRPC is left in this process: a child then starts
        afresh. Where the host runs some of its own, or ``timeout`` seconds were not enough, gRPC
        is of no use in the child.
        """
        if threading.current_thread() in self._threads:
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
        await asyncio.gather(*(stream.stop() for stream in self._kept))
        await close_all_async()

    def _resume(self) -> None:
        self._paused = False
        for stream in self._kept:
            stream.start()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def _run_bell(self) -> None:
        while True:
            self._bell.get()
            # In this order: what is left from now on rings again, and what was left before is
            # there when the loop looks.
            self._rung = False
            self.loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
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
