"""The yardstick: Redis pub/sub with MSET through redis-py, on a server process of its own.

Needs ``redis-server`` (Debian package redis-server) and ``redis`` (the ``bench`` extra).
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["RedisServer", "RedisUnavailableError", "check_redis", "run_redis"]

_START_TIMEOUT = 10.0
"""Seconds."""


class RedisUnavailableError(Exception):
    """There is no Redis here. The text says what is missing."""


@dataclass(frozen=True, slots=True)
class RedisServer:
    port: int
    pid: int


def check_redis() -> str:
    """Return the server's command, or raise RedisUnavailableError."""
    command = shutil.which("redis-server")
    if command is None:
        raise RedisUnavailableError("no redis-server (Debian package redis-server)")
    if importlib.util.find_spec("redis") is None:
        raise RedisUnavailableError("no redis-py (pip install 'bootstrap-grpc[bench]')")
    return command


@contextmanager
def run_redis() -> Iterator[RedisServer]:
    """Run a server on loopback that keeps nothing on disk."""
    command = check_redis()
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [
                *(command, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder),
                *("--save", "", "--appendonly", "no", "--daemonize", "no"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_for(port, server)
            yield RedisServer(port, server.pid)
        finally:
            server.terminate()
            server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    with socket.socket() as probe:
        while probe.connect_ex(("127.0.0.1", port)):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RedisUnavailableError("redis-server did not start")
            time.sleep(0.02)
