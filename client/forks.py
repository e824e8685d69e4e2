"""Which process this is, for calls that are too cheap for ``os.getpid``.

That is a system call: where it is traced or the machine virtual it costs as much as all the rest of
``publish``. The number changes in every forked child, before any other code of it runs.
"""

from __future__ import annotations

import os

__all__ = ["process_number"]

_number = 0


def process_number() -> int:
    """A number that differs from that of every ancestor of this process. Thread-safe."""
    return _number


def _after_fork_in_child() -> None:
    global _number  # noqa: PLW0603 - a fact about the process
    _number += 1


os.register_at_fork(after_in_child=_after_fork_in_child)
