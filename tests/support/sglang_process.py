"""A child process that answers JSON lines: how tests and benchmarks run their peers."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

__all__ = ["ChildError", "ChildProcess"]

_STOP_TIMEOUT = 5.0
"""Seconds from the end of its stdin until a child that stays is killed."""


class ChildError(Exception):
    """The child ended, answered too late, or could not do what was asked."""


class ChildProcess:
    """Runs a Python script that speaks JSON lines. Use as a context manager. Not thread-safe.

    :param script: the script, run by this interpreter.
    :param prefix: a command to run it under, such as ``ip netns exec NAME``.
    :param timeout: seconds for the first line and the default for each answer.
    """

    def __init__(
        self,
        script: Path,
        arguments: Sequence[str] = (),
        *,
        prefix: Sequence[str] = (),
        timeout: float = 30.0,
    ) -> None:
        self._name = script.name
        self._timeout = timeout
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 # closed in close()
        self._process = subprocess.Popen(
            [*prefix, sys.executable, str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.ready: dict[str, Any] = {}
        """The child's first line."""

    def start(self) -> dict[str, Any]:
        """Wait for the first line. Several children start in parallel when made before this."""
        self.ready = self.receive()
        return self.ready

    def __enter__(self) -> ChildProcess:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id of the script itself: the commands used as prefix replace themselves."""
        return self._process.pid

    def send(self, message: dict[str, Any]) -> None:
        """Write one line."""
        stdin = self._process.stdin
        try:
            if stdin:
                stdin.write(json.dumps(message) + "\n")
                stdin.flush()
        except OSError as error:
            raise ChildError(f"{self._name} does not listen: {error}\n{self.errors()}") from error

    def receive(self, timeout: float | None = None) -> dict[str, Any]:
        """Return the next line.

        :raises ChildError: the child ended, or said nothing for ``timeout`` seconds.
        """
        timeout = self._timeout if timeout is None else timeout
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise ChildError(f"{self._name}: no answer for {timeout} s\n{self.errors()}") from None
        if not line:
            raise ChildError(f"{self._name} ended\n{self.errors()}")
        message: dict[str, Any] = json.loads(line)
        return message

    def errors(self) -> str:
        """Return the end of what the child wrote to stderr."""
        self._errors.seek(0)
        return self._errors.read()[-4000:]

    def kill(self) -> None:
        """End the child at once, as a crash would."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the child: the end of its stdin, then SIGKILL. Idempotent."""
        process = self._process
        if process.stdin and not process.stdin.closed:
            with contextlib.suppress(OSError):  # it ended with a line unread
                process.stdin.close()
        try:
            process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join()
        if process.stdout:
            process.stdout.close()
        self._errors.close()

    def _read(self) -> None:
        if self._process.stdout:
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put("")
