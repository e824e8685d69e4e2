"""``TopologyCache``: the topology of a prefill server from memory, kept fresh by a watch."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable

import grpc

from bootstrap_grpc.client.background import Stream
from bootstrap_grpc.client.connection import Connection
from bootstrap_grpc.client.errors import BootstrapError, NoContact, from_rpc
from bootstrap_grpc.client.watch import WatchLogic
from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos.model import Topology, TopologyState

__all__ = ["KnownTopology", "TopologyCache", "is_restart"]

_log = logging.getLogger("bootstrap_grpc.client")

OnRestart = Callable[[Topology, Topology], None]
OnLost = Callable[[NoContact], None]
OnChange = Callable[[Topology], None]


class KnownTopology:
    """The newest topology, without a call: what ``TopologyCache`` and its asyncio twin share.

    Thread-safe. Callbacks run in the loop's thread: they must not block, and what they
    raise is logged.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._target = str(connection.target)
        self._pid = os.getpid()
        self._current: Topology | None = None
        self._known_ranks: Topology | None = None
        self._confirmed_at: float | None = None
        self._live = False
        self._on_change: list[OnChange] = []
        self._on_restart: list[OnRestart] = []
        self._on_lost: list[OnLost] = []
        self._stream: Stream | None = None
        connection.host.soon(self._start)

    def current(self) -> Topology | None:
        """The newest state that the service sent; ``None`` before the first. See ``age``."""
        return self._current

    def age(self) -> float:
        """Seconds since the state was last known to be the newest; infinite before the first.

        0 while the watch is live: a change would have been sent. A service that froze is noticed
        within 15 s.
        """
        if self._live and self._pid == os.getpid():
            return 0.0
        confirmed_at = self._confirmed_at
        return float("inf") if confirmed_at is None else time.monotonic() - confirmed_at

    def ready(self) -> Topology | None:
        """The state where it is READY and the watch is live, else ``None``."""
        current = self._current
        live = self._live and current is not None and current.state is TopologyState.READY
        return current if live else None

    def on_change(self, callback: OnChange) -> None:
        """Call ``callback(topology)`` with every state that arrives."""
        self._on_change.append(callback)

    def on_restart(self, callback: OnRestart) -> None:
        """Call ``callback(before, after)`` when the engine started anew.

        That is where ``instance_id`` changed, or ``generation`` rose within one ``server_id``, or
        a service that started anew shows another address for a rank.
        """
        self._on_restart.append(callback)

    def on_lost(self, callback: OnLost) -> None:
        """Call ``callback(error)`` when contact is lost; ``age`` counts from then."""
        self._on_lost.append(callback)

    def close(self) -> None:
        """End the watch. Idempotent, never waits."""
        if self._pid == os.getpid():
            self._connection.host.soon(self._close)

    def _first(self, known: Topology | None) -> Topology:
        """What waiting for the first state gave, which is ``None`` where none came in time."""
        if known is None:
            raise NoContact(self._target, "no topology in time")
        return known

    # --- in the host's loop -----------------------------------------------------------

    def _start(self) -> None:
        self._stream = self._connection.keep(self._watch)

    def _close(self) -> None:
        self._live = False
        if self._stream is not None:
            self._stream.cancel()

    async def _watch(self) -> None:
        logic = WatchLogic(None, clock=time.monotonic, log=self._connection.budget)
        while True:
            call = self._connection.stub().WatchTopology(
                pb.WatchTopologyRequest(), timeout=logic.time_left(), wait_for_ready=True
            )
            error: BootstrapError | NoContact = NoContact(self._target, "the stream ended")
            try:
                while (response := await call.read()) is not grpc.aio.EOF:
                    self._receive(logic.on_response(response))
            except grpc.RpcError as rpc_error:
                error = from_rpc(rpc_error, self._target)
            finally:
                call.cancel()
                if self._live:  # as of now; whoever is told of a loss is told below
                    self._confirmed_at = time.monotonic()
            if isinstance(error, BootstrapError):  # an older service: nothing else is to be had
                error = NoContact(self._target, str(error))
            self._lose(error)
            await asyncio.sleep(logic.on_end(error))

    def _receive(self, after: Topology) -> None:
        before, self._current = self._known_ranks, after
        self._confirmed_at, self._live = time.monotonic(), True
        self._wake()
        restarted = before is not None and is_restart(before, after)
        if before is None or restarted or after.routes:
            # A service that started anew is empty at first: what is compared is the newest
            # state with ranks in it.
            self._known_ranks = after
        if before is not None and restarted:
            for on_restart in self._on_restart:
                _guarded(on_restart, before, after)
        for on_change in self._on_change:
            _guarded(on_change, after)

    def _wake(self) -> None:
        """Wake whoever waits for a state: one has come."""

    def _lose(self, error: NoContact) -> None:
        if self._live:
            self._live = False
            for on_lost in self._on_lost:
                _guarded(on_lost, error)


class TopologyCache(KnownTopology):
    """The newest topology, without a call. Made by ``BootstrapClient.topology_cache``.

    Thread-safe. Callbacks run in a thread of the background: they must not block, and what they
    raise is logged.
    """

    def __init__(self, connection: Connection) -> None:
        self._news = threading.Condition()
        super().__init__(connection)

    def wait(self, timeout: float | None = 10.0) -> Topology:
        """The newest state, waiting for the first. Raises ``NoContact``. For start-up code."""
        return self._first(self._wait_for(self.current, timeout))

    def wait_ready(self, timeout: float | None = 10.0) -> Topology | None:
        """What ``ready`` gives, waiting for it; ``None`` after ``timeout`` s. For start-up code."""
        return self._wait_for(self.ready, timeout)

    def __enter__(self) -> TopologyCache:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _wait_for(
        self, ask: Callable[[], Topology | None], timeout: float | None
    ) -> Topology | None:
        with self._news:
            return self._news.wait_for(ask, timeout)

    def _wake(self) -> None:
        with self._news:
            self._news.notify_all()


def is_restart(before: Topology, after: Topology) -> bool:
    """Whether ``after`` tells that the engine started anew since ``before``, which had ranks."""
    if before.instance_id and after.instance_id and before.instance_id != after.instance_id:
        return True
    if before.server_id == after.server_id:
        return after.generation > before.generation > 0
    known = {route.key: (route.rank_ip, route.rank_port) for route in before.routes}
    return any(
        known.get(route.key, (route.rank_ip, route.rank_port)) != (route.rank_ip, route.rank_port)
        for route in after.routes
    )


def _guarded(callback: Callable[..., None], *args: object) -> None:
    try:
        callback(*args)
    except Exception:  # noqa: BLE001 - the callback's fault must not end the watch
        _log.exception("a callback of the topology cache failed")
