"""Logging of the service: one line an event, on stderr."""

from __future__ import annotations

import logging
import time

__all__ = ["LEVELS", "set_up_logging"]

LEVELS = ("debug", "info", "warning", "error")


def set_up_logging(level: str) -> None:
    """Sends the log to stderr, times in UTC. Other packages log warnings and above only."""
    formatter = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("bootstrap_grpc").setLevel(level.upper())
