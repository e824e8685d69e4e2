"""``BootstrapClient.watch_topology``: an iterator over the states of the topology."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import grpc

from bootstrap_grpc.client.backoff import Backoff, LogBudget
from bootstrap_grpc.client.config import STREAM_DEADLINE
from bootstrap_grpc.client.errors import BootstrapError, NoContact, from_rpc
from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos.convert import topology_from_proto
from bootstrap_grpc.protos.model import Topology

__all__ = ["TopologyWatch", "WatchLogic"]

_log = logging.getLogger("bootstrap_grpc.client")


class WatchLogic:
    """When a watch is opened again; shared by the sync and the asyncio watch."""

    def __init__(
        self, timeout: float | None, *, clock: Callable[[], float], log: LogBudget
    ) -> None:
        self._clock = clock
        self._ends = None if timeout is None else clock() + timeout
        self._backoff = Backoff()
        self._log = log

    def time_left(self) -> float:
        """Deadline of the next stream, in seconds; 0 or less when the watch is over."""
        if self._ends is None:
            return STREAM_DEADLINE
        return min(STREAM_DEADLINE, self._ends - self._clock())

    def on_response(self, response: pb.WatchTopologyResponse) -> Topology:
        self._backoff.reset()
        return topology_from_proto(response.topology)

    def on_end(self, error: BootstrapError | NoContact) -> float:
        """Seconds until the stream is opened again; raises what no waiting cures."""
        if isinstance(error, BootstrapError):
            raise error
        if self.time_left() > 0:
            self._log.warn(_log, f"topology watch: {error}; trying again")
        return max(0.0, min(self._backoff.next_delay(), self.time_left()))


class TopologyWatch:
    """Iterates over whole states: the one now, then one after every change.

    Survives restarts of the service (the first state after one has a new ``server_id``). Ends
    after ``timeout`` seconds, where one was given, or with ``close``. One thread iterates; any
    thread may close.
    """

    def __init__(self, logic: WatchLogic, open_stream: Callable[..., Any], target: str) -> None:
        self._logic = logic
        self._open_stream = open_stream
        self._target = target
        self._closed = threading.Event()
        self._call: Any = None

    def __iter__(self) -> TopologyWatch:
        return self

    def __next__(self) -> Topology:
        """The next state.

        Raises
        ------
        BootstrapError
            The service refuses for good, such as an older one without this call.
        """
        while not self._closed.is_set() and (left := self._logic.time_left()) > 0:
            try:
                if self._call is None:
                    self._call = self._open_stream(
                        pb.WatchTopologyRequest(), timeout=left, wait_for_ready=True
                    )
                    if self._closed.is_set():  # closed while it was being opened
                        self._call.cancel()
                return self._logic.on_response(next(self._call))
            except StopIteration:
                error: BootstrapError | NoContact = NoContact(self._target, "the stream ended")
            except grpc.RpcError as rpc_error:
                error = from_rpc(rpc_error, self._target)
            except ValueError as closed:  # the client was closed meanwhile
                self._closed.set()
                error = NoContact(self._target, str(closed))
            self._call = None
            if not self._closed.is_set():
                self._closed.wait(self._logic.on_end(error))
        raise StopIteration

    def close(self) -> None:
        """End the iteration, also one that waits in another thread. Idempotent."""
        self._closed.set()
        call = self._call
        if call is not None:
            call.cancel()

    def __enter__(self) -> TopologyWatch:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
