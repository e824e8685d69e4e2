"""The bounds that the system sets a process of the benchmarks."""

from __future__ import annotations

import resource

__all__ = ["raise_file_limit"]


def raise_file_limit() -> None:
    """Allow as many open files as this user may have: a stream is one on either side."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
