"""Where streams live: one event loop in one thread for the whole process.

A caller that must not block leaves word and goes on: it appends to a queue and lets go of a lock.
It neither waits nor enters the kernel, since a system call gives up the interpreter lock, which
a stream's thread would then hold for as long as its turn takes. A second thread, the bell, waits
for that word and wakes the loop. Two threads serve any number of streams.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

__all__ = ["Background", "Host", "InLoop", "background"]


class Host(Protocol):
    """An event loop that streams live in, and a way to leave word there."""

    loop: asyncio.AbstractEventLoop

    def soon(self, call: Callable[[], object]) -> None:
        """Have ``call`` called in the loop. Never blocks."""


class InLoop:
    """The host of a caller that runs in the loop itself: word is taken at once."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()

    def soon(self, call: Callable[[], object]) -> None:
        call()


class Background:
    """An event loop in a daemon thread, for as long as the process lives. Thread-safe."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._rung = False
        self._calls: deque[Callable[[], object]] = deque()
        threads = {"bootstrap-streams": self._run_loop, "bootstrap-bell": self._run_bell}
        for name, run in threads.items():
            threading.Thread(target=run, name=name, daemon=True).start()

    def soon(self, call: Callable[[], object]) -> None:
        """Have ``call`` called in the loop. Never blocks, costs about a microsecond."""
        self._calls.append(call)
        if not self._rung:
            self._rung = True
            self._bell.put(None)

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


_lock = threading.Lock()
_current: Background | None = None
_abandoned: list[object] = []


def background() -> Background:
    """This process's background, made at its first use."""
    global _current  # noqa: PLW0603 - one for each process is the point
    with _lock:
        if _current is None:
            _current = Background()
        return _current


def _after_fork_in_child() -> None:
    global _lock, _current
    # Kept alive: the loop's clean-up would wait for threads that do not exist here.
    _abandoned.append(_current)
    _lock, _current = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork_in_child)
