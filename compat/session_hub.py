"""What all bootstrap sessions of a process share: which server speaks gRPC, and its answers.

The rules, for each address (issue 5):

* The first call goes out as HTTP. The headers of its reply tell the gRPC port and the server id.
* gRPC answers while its stream is live and its server id is the one of the newest HTTP reply.
  Otherwise the call goes out as HTTP: the gRPC port may be closed by a network policy, or the
  server may be another one by now.
* Therefore a missed ``/health`` is always one that a real HTTP call missed.
* Whatever HTTP says counts at once: a reply without the headers is SGLang's own server, and the
  address is on HTTP until one has them again. After a loss of contact the address is looked at
  without being asked, so that a restart is noticed within a second.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import requests
from requests.adapters import HTTPAdapter

from bootstrap_grpc.client.backoff import LogBudget
from bootstrap_grpc.client.directory import PrefillDirectory
from bootstrap_grpc.client.topology_cache import TopologyCache
from bootstrap_grpc.compat.dialects.dialect import TopologyOptions
from bootstrap_grpc.compat.replies import Reply
from bootstrap_grpc.compat.session_calls import Call, Kind, UrlParts
from bootstrap_grpc.compat.session_holds import Registrations
from bootstrap_grpc.compat.session_memory import from_memory
from bootstrap_grpc.compat.session_peers import Greeting, Peer, greeting_of
from bootstrap_grpc.compat.session_report import CallCounts

__all__ = ["OverHttp", "SessionHub", "hub", "reset"]

_log = logging.getLogger("bootstrap_grpc.session")

OnRestart = Callable[[str], None]


class OverHttp(Protocol):
    """Makes one call over HTTP, for the hub."""

    def __call__(
        self, method: str, url: str, *, timeout: Any = None, json: object = None, keep: bool = True
    ) -> requests.Response: ...


_EXPECTED = 5.0
"""Seconds after an address told of its gRPC port, or was lost, for which no HTTP connection to it
is kept: it would not be used again. Past it the port is taken to be closed."""

_TICK = 0.25
"""Seconds between two looks at what needs looking after."""

_PROBE_TIMEOUT = (1.0, 2.0)
"""Seconds to connect and to wait for a reply, of a call that nobody waits for."""


class SessionHub:
    """One for each process, made by ``hub``. Thread-safe."""

    def __init__(
        self,
        *,
        limit: int = 1_024,
        idle: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``limit`` addresses are kept, each for ``idle`` seconds after its last use."""
        self._limit = limit
        self._idle = idle
        self._clock = clock
        self._lock = threading.Lock()
        self._peers: OrderedDict[str, Peer] = OrderedDict()
        self._directory = PrefillDirectory(limit=limit, idle=idle)
        self._on_restart: list[OnRestart] = []
        self._budget = LogBudget(clock)
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.intercept: Callable[[Call], Reply | None] | None = None
        """Sees each call first, and answers it where it returns a reply: the self-check's."""
        self.topology_options = TopologyOptions()
        """Which optional keys a topology reply from memory has."""
        self.counts = CallCounts()
        """The calls of this process's sessions, by the way they went."""
        self.registrations = Registrations(self._learn, self.cache, self.look_after)

    def __len__(self) -> int:
        """Addresses kept."""
        return len(self._peers)

    def on_restart(self, callback: OnRestart) -> None:
        """Call ``callback(address)``, in a thread of its own, when an engine started anew."""
        self._on_restart.append(callback)

    def speaks_grpc(self, address: str) -> bool:
        """Whether a call to the HTTP address ``host:port`` would be answered over gRPC now."""
        peer = self._peers.get(address)
        return peer is not None and self._live(peer) is not None

    # --- calls ------------------------------------------------------------------------

    def answer(self, call: Call, over_http: OverHttp) -> Reply | requests.Response:
        """Answer one call. Raises what requests raises, for a call that had to go out."""
        if self.intercept is not None and (own := self.intercept(call)) is not None:
            return own
        peer = self._peer(call.parts)
        if call.kind is Kind.REGISTER:
            registered = self.registrations.put(call, over_http)
            self._count(call, registered)
            return registered
        if call.kind is Kind.REGISTER_DP_RANK:
            call = self.registrations.corrected(call)
        cache = self._live(peer)
        if cache is not None:
            try:
                reply = from_memory(call, peer, cache, self._directory, self.topology_options)
            except ValueError:  # the address was dropped meanwhile, and its streams with it
                reply = None
            if reply is not None:
                self._count(call, reply)
                return reply
        self.counts.over_http(call.kind)
        try:
            response = over_http(
                call.method,
                call.url,
                timeout=call.timeout,
                json=call.json,
                keep=self._clock() >= peer.grpc_expected_until,
            )
        except requests.RequestException:
            self._missed(peer)
            raise
        self._learn(call.parts, response)
        return response

    def _count(self, call: Call, reply: Reply | requests.Response) -> None:
        if isinstance(reply, Reply):
            self.counts.over_grpc(call.kind)
        else:
            self.counts.over_http(call.kind)

    # --- servers ----------------------------------------------------------------------

    def cache(self, parts: UrlParts) -> tuple[str, TopologyCache | None]:
        """The gRPC address and, where it answers now, the topology of a server."""
        peer = self._peer(parts)
        return peer.grpc, self._live(peer)

    def _live(self, peer: Peer) -> TopologyCache | None:
        greeting = peer.greeting
        if not greeting:
            return None
        cache = self._directory.topology_cache(peer.grpc)
        if cache is not peer.cache:
            self._follow(peer, cache)
        if cache.age() > 0:
            return None
        topology = cache.current()
        return cache if topology is not None and topology.server_id == greeting.server_id else None

    def _follow(self, peer: Peer, cache: TopologyCache) -> None:
        with self._lock:
            if peer.cache is cache:
                return
            peer.cache = cache

        def receive(topology: Any) -> None:
            with self._lock:
                if peer.cache is not cache:
                    return
                peer.receive(topology)
                greeting = peer.greeting
                if greeting and greeting.server_id != topology.server_id:
                    self._probe_soon(peer)  # HTTP has not told of this server yet
            self.look_after()

        def lose(_error: object) -> None:
            with self._lock:
                if peer.cache is cache:
                    self._probe_soon(peer)
            self.look_after()

        cache.on_change(receive)
        cache.on_lost(lose)
        current = cache.current()
        if current is not None:
            receive(current)

    def _peer(self, parts: UrlParts) -> Peer:
        now = self._clock()
        peer = self._peers.get(parts.address)
        if peer is not None and now - peer.used_at < 1.0:
            return peer  # its place in the order is right to a second
        with self._lock:
            peer = self._peers.get(parts.address)
            if peer is None:
                peer = Peer(parts.address, parts.host, self._restarted)
                self._peers[parts.address] = peer
            peer.used_at = now
            self._peers.move_to_end(parts.address)
            while True:
                address, oldest = next(iter(self._peers.items()))
                if len(self._peers) <= self._limit and now - oldest.used_at < self._idle:
                    return peer
                del self._peers[address]
                oldest.cache = None  # what its callbacks still say is of no interest

    def _learn(self, parts: UrlParts, response: requests.Response) -> Greeting:
        peer = self._peer(parts)
        greeting = greeting_of(response.headers)
        with self._lock:
            if greeting.grpc_port:
                peer.probe_at, peer.probe_delay = None, 0.0
            if greeting != peer.greeting:
                self._expect(peer, greeting)
            peer.greet(greeting)
        self._live(peer)  # connect now: the next call is not far
        return greeting

    def _expect(self, peer: Peer, greeting: Greeting) -> None:
        peer.grpc_expected_until = self._clock() + _EXPECTED if greeting else 0.0

    def _missed(self, peer: Peer) -> None:
        with self._lock:
            if peer.greeting is not None and peer.probe_at is None:
                self._probe_soon(peer)
        self.look_after()

    def _probe_soon(self, peer: Peer) -> None:
        peer.probe_at, peer.probe_delay = self._clock(), 0.0
        if peer.greeting:
            self._expect(peer, peer.greeting)

    def _restarted(self, address: str) -> None:
        _log.info("%s: the engine started anew", address)
        for callback in tuple(self._on_restart):
            threading.Thread(
                target=callback, args=(address,), name="bootstrap-restart", daemon=True
            ).start()

    # --- what goes on without a call ------------------------------------------------------

    def look_after(self) -> None:
        """See to lost servers and registrations soon, in the background."""
        self._wake.set()
        if self._thread is None and not self._closed:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="bootstrap-session", daemon=True
                    )
                    self._thread.start()

    def _run(self) -> None:
        session = requests.Session()
        session.mount("http://", HTTPAdapter(pool_connections=8, pool_maxsize=1))

        def over_http(
            method: str, url: str, *, timeout: Any = None, json: object = None, keep: bool = False
        ) -> requests.Response:
            del keep  # there is nothing to keep one for
            timeout = timeout or _PROBE_TIMEOUT
            return session.request(
                method, url, timeout=timeout, json=json, headers={"Connection": "close"}
            )

        while not self._closed:
            self._wake.wait()
            self._wake.clear()
            while not self._closed:
                wait: float | None = _TICK
                try:
                    lost = self._probe_lost(over_http)
                    wait = self.registrations.look_after(over_http)
                    wait = _TICK if lost else wait
                except Exception as error:  # noqa: BLE001 - one fault must not end all upkeep
                    self._budget.warn(_log, f"looking after bootstrap servers failed: {error!r}")
                if wait is None:
                    break
                self._wake.wait(wait)
                self._wake.clear()
        session.close()

    def _probe_lost(self, over_http: OverHttp) -> bool:
        """Ask the lost servers that are due; true while there are any."""
        now = self._clock()
        with self._lock:
            lost = [peer for peer in self._peers.values() if peer.probe_at is not None]
        for peer in lost:
            if self._closed:
                return False
            if peer.probe_at is None or peer.probe_at > now:
                continue
            with self._lock:
                peer.probe_delay = min(max(2 * peer.probe_delay, _TICK), 5.0)
                peer.probe_at = now + peer.probe_delay
            try:
                response = over_http("GET", f"http://{peer.address}/health")
            except requests.RequestException:
                if now - peer.used_at > self._idle:
                    peer.probe_at = None
                continue
            with self._lock:
                peer.probe_at = None
                peer.greet(greeting_of(response.headers))
            self._live(peer)
        return bool(lost)

    def close(self) -> None:
        """End the holds and every stream. Idempotent."""
        self._closed = True
        self._wake.set()
        self.registrations.close()
        with self._lock:
            self._peers.clear()
        self._directory.close()


_lock = threading.Lock()
_current: SessionHub | None = None


def hub() -> SessionHub:
    """This process's hub, made at its first use."""
    global _current  # noqa: PLW0603 - one for each process is the point
    current = _current
    if current is None:
        with _lock:
            if _current is None:
                _current = SessionHub()
            current = _current
    return current


def reset(new: SessionHub | None = None) -> None:
    """Put ``new`` in the place of this process's hub, and close that one. For tests."""
    global _current
    with _lock:
        old, _current = _current, new
    if old is not None:
        old.close()


def _after_fork_in_child() -> None:
    global _lock, _current
    # Not closed: its streams, threads and holds are the parent's.
    _abandoned.append(_current)
    _lock, _current = threading.Lock(), None


_abandoned: list[object] = []

os.register_at_fork(after_in_child=_after_fork_in_child)
