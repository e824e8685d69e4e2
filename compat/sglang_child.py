"""Run the command ``bootstrap-grpc`` for as long as the parent process lives.

``python -m bootstrap_grpc.compat.sglang_child serve ...``, with a pipe as stdin that the parent
holds open. The pipe rather than PR_SET_PDEATHSIG, which fires when the *thread* ends that made
the child. The parent's process id is looked at as well: a sibling that was forked without exec
may have inherited the pipe's other end.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from importlib.metadata import entry_points

__all__ = ["main"]

_LOOK = 0.5
"""Seconds between two looks at the parent's process id."""

_LEFT = 1.0
"""Seconds that a drain may take once the parent is gone: its port must be free within 2 s."""


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], _LOOK)
        if readable and not os.read(0, 1):
            break
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_LEFT)
    os._exit(0)


def main() -> None:
    """Watch the parent from a thread, and be the command."""
    threading.Thread(target=_watch, args=(os.getppid(),), name="parent", daemon=True).start()
    # compat must not import cli; this runs what is installed under the command's name.
    (command,) = entry_points(group="console_scripts", name="bootstrap-grpc")
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(command.load()())


if __name__ == "__main__":
    main()
