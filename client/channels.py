"""One channel for each (process, target, options), shared by every client that names it.

Channels are made lazily and belong to the process that made them: a forked child starts with
none. An asyncio channel also belongs to its event loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any
from weakref import WeakKeyDictionary

import grpc

from bootstrap_grpc.client.config import ClientConfig, channel_options
from bootstrap_grpc.client.errors import ForkedError

__all__ = [
    "AsyncLease",
    "Lease",
    "check_fork",
    "close_all_async",
    "forget_async_use",
    "lease",
    "lease_async",
]

_Key = tuple[str, tuple[tuple[str, Any], ...]]


class Lease:
    """A share of a channel. The channel closes when its last lease does. Thread-safe."""

    def __init__(self, pool: _Pool, key: _Key, channel: grpc.Channel) -> None:
        self._pool: _Pool | None = pool
        self._key = key
        self.channel = channel
        self.pid = os.getpid()

    def close(self) -> None:
        """Give the share back. Idempotent."""
        pool, self._pool = self._pool, None
        if pool is not None and self.pid == os.getpid():
            pool.give_back(self._key)


class _Pool:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channels: dict[_Key, tuple[grpc.Channel, int]] = {}

    def lease(self, key: _Key) -> Lease:
        with self._lock:
            channel, users = self._channels.get(key, (None, 0))
            if channel is None:
                channel = grpc.insecure_channel(key[0], options=key[1])
            self._channels[key] = channel, users + 1
        return Lease(self, key, channel)

    def give_back(self, key: _Key) -> None:
        with self._lock:
            channel, users = self._channels.pop(key)
            if users > 1:
                self._channels[key] = channel, users - 1
                return
        channel.close()


class AsyncLease:
    """A share of an asyncio channel. Belongs to one event loop."""

    def __init__(self, channels: _AsyncChannels, key: _Key) -> None:
        self._channels = channels
        self._key = key
        self._epoch = channels.epoch
        self._given_back = False

    @property
    def is_closed(self) -> bool:
        """Whether the share was given back, or the channel was closed before a fork."""
        return self._given_back or self._epoch != self._channels.epoch

    @property
    def channel(self) -> grpc.aio.Channel:
        """Not kept here: gRPC ends its threads with the last reference to its channels."""
        return self._channels.shares[self._key][0]

    async def close(self) -> None:
        """Give the share back. Idempotent."""
        if self.is_closed:
            return
        self._given_back = True
        channel, users = self._channels.shares.pop(self._key)
        if users > 1:
            self._channels.shares[self._key] = channel, users - 1
        else:
            await channel.close(None)


class _AsyncChannels:
    """The channels of one event loop."""

    def __init__(self) -> None:
        self.shares: dict[_Key, tuple[grpc.aio.Channel, int]] = {}
        self.epoch = 0


_pool = _Pool()
_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _AsyncChannels] = WeakKeyDictionary()
_abandoned: list[object] = []
_aio_used = False
_forked_from_aio = False


def lease(target: str, config: ClientConfig) -> Lease:
    """A share of this process's channel to ``target``. Thread-safe; connects lazily.

    Raises ``ForkedError`` in a child that was forked while asyncio's gRPC was live.
    """
    check_fork()
    return _pool.lease((target, channel_options(config)))


def lease_async(target: str, config: ClientConfig) -> AsyncLease:
    """A share of the running loop's channel to ``target``; connects lazily.

    Raises as ``lease``.
    """
    global _aio_used  # noqa: PLW0603 - a fact about the process
    check_fork()
    _aio_used = True
    channels = _loops.setdefault(asyncio.get_running_loop(), _AsyncChannels())
    key = (target, channel_options(config))
    channel, users = channels.shares.get(key, (None, 0))
    if channel is None:
        channel = grpc.aio.insecure_channel(target, options=key[1])
    channels.shares[key] = channel, users + 1
    return AsyncLease(channels, key)


async def close_all_async() -> None:
    """Close the running loop's channels, however many share them."""
    channels = _loops.get(asyncio.get_running_loop())
    if channels is None:
        return
    channels.epoch += 1
    while channels.shares:
        _, (channel, _users) = channels.shares.popitem()
        await channel.close(None)


def forget_async_use() -> None:
    """Nothing of asyncio's gRPC is left: a child that is forked now may use gRPC."""
    global _aio_used  # noqa: PLW0603 - a fact about the process
    _aio_used = False


def check_fork() -> None:
    """Raise ``ForkedError`` in a child that was forked while asyncio's gRPC was live."""
    if _forked_from_aio:
        raise ForkedError(
            "this process was forked while gRPC streams of asyncio were live in its parent: start "
            "it with multiprocessing's spawn, or fork before the first resolver, publisher or "
            "asyncio client is made"
        )


def _after_fork_in_child() -> None:
    global _pool, _loops, _forked_from_aio  # noqa: PLW0603 - not the parent's channels here
    _forked_from_aio = _aio_used
    # Their threads do not exist here: dropping the last reference would wait for them for ever.
    _abandoned.extend((_pool, _loops))
    _pool = _Pool()
    _loops = WeakKeyDictionary()


os.register_at_fork(after_in_child=_after_fork_in_child)
