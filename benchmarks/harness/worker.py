"""A child process that runs named calls: one JSON line each way per call."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from support.sglang_process import ChildError, ChildProcess

__all__ = ["Worker", "serve_calls", "share_cores"]


class Worker(ChildProcess):
    """The other end of ``serve_calls``.

    :param script: a script of this folder, by its name without ``.py``.
    """

    def __init__(self, script: str, *arguments: str) -> None:
        path = Path(__file__).resolve().with_name(f"{script}.py")
        super().__init__(path, arguments, timeout=60.0)

    def begin(self, name: str, **arguments: Any) -> None:
        """Let it make the call ``name``, and go on."""
        self.send({"call": name, "with": arguments})

    def finish(self, timeout: float = 120.0) -> Any:
        """Return what that call gave."""
        answer = self.receive(timeout)
        if "error" in answer:
            raise ChildError(f"{self._name}: {answer['error']}\n{self.errors()}")
        return answer["value"]

    def call(self, name: str, **arguments: Any) -> Any:
        """Make a call and wait for it."""
        self.begin(name, **arguments)
        return self.finish()


def serve_calls(calls: Mapping[str, Callable[..., Any]]) -> None:
    """Answer ``{"call": NAME, "with": {...}}`` lines on stdin until its end."""
    answers, sys.stdout = sys.stdout, sys.stderr

    def send(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    send({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            send({"value": calls[request["call"]](**request["with"])})
        except Exception as error:
            send({"error": f"{type(error).__name__}: {error}"})


def share_cores(count: int) -> None:
    """Keep this process and all it starts from now on to ``count`` cores, where there are more."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
