"""Whether each hook took effect in this SGLang: found out by calls, not by looking at names.

Each of SGLang's own functions is called once, for a host that no network has; the session
answers these calls itself and notes them. An object is made without its ``__init__`` and with
blanks for what the call does not need.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from bootstrap_grpc.compat.replies import OK, Reply, text_reply
from bootstrap_grpc.compat.session_calls import Call, Kind
from bootstrap_grpc.compat.session_hub import hub
from bootstrap_grpc.compat.sglang_hooks import Hooks

__all__ = ["CHECK_HOST", "Finding", "check"]

CHECK_HOST = "bootstrap-grpc-self-check.invalid"
_ADDRESS = f"{CHECK_HOST}:1"

_TIMEOUT = 3.0
"""Seconds that one call may take; where its hook has no effect SGLang would try for 15 s."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One part of SGLang's bootstrap traffic, and why it is not hooked (empty where it is)."""

    name: str
    reason: str = ""


class _Blank:
    """Has every attribute: blanks, for what a call only passes on."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Blank()


class _Check:
    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._conn = hooks.conn
        self._seen: set[Kind] = set()
        self._health = threading.Event()

    def answer(self, call: Call) -> Reply | None:
        """The session's: note a call of the check."""
        if call.parts.host != CHECK_HOST:
            return None
        self._seen.add(call.kind)
        if call.kind is Kind.HEALTH:
            self._health.set()
        # A topology or a route would be kept.
        return text_reply(503, "self-check") if call.kind is Kind.ROUTE else OK

    def run(self) -> list[Finding]:
        findings = [
            self._sees("registration", Kind.REGISTER, self._register),
            self._sees("topology", Kind.ROUTE, self._topology),
            self._sees("routes", Kind.ROUTE, self._route),
            self._sees("DP rank registration", Kind.REGISTER_DP_RANK, self._register_dp_rank),
            self._sees("DP rank queries", Kind.QUERY_DP_RANKS, self._query),
            self._sees("heartbeat", Kind.HEALTH, self._heartbeat),
        ]
        findings.append(self._restarts())
        findings.append(self._server())
        return findings

    def _sees(self, name: str, kind: Kind, call: Callable[[], None]) -> Finding:
        self._seen.clear()
        reason = _reason(call)
        # What SGLang does with the answer is of no interest, nor how it fails on a blank then.
        return Finding(name) if kind in self._seen else Finding(name, reason or "it is not called")

    def _register(self) -> None:
        manager = _bare(
            self._conn.CommonKVManager,
            dist_init_addr=None,
            bootstrap_host=CHECK_HOST,
            bootstrap_port=1,
        )
        if hasattr(self._conn.CommonKVManager, "_register_topology_row"):
            manager._register_topology_row(f"http://{_ADDRESS}/route", {})  # noqa: SLF001 - as below
        else:
            manager.register_to_bootstrap()

    def _topology(self) -> None:
        _bare(self._conn.CommonKVManager, prefill_info_table={}).try_ensure_parallel_info(_ADDRESS)

    def _route(self) -> None:
        receiver = _bare(self._conn.CommonKVReceiver, bootstrap_addr=_ADDRESS)
        receiver._get_bootstrap_info_from_server(0, 0, 0, 0)  # noqa: SLF001 - the call to check

    def _register_dp_rank(self) -> None:
        sender = _bare(
            self._conn.CommonKVSender,
            bootstrap_server_url=_ADDRESS,
            bootstrap_room=0,
            kv_mgr=SimpleNamespace(attn_dp_rank=0),
        )
        sender._register_prefill_dp_rank()  # noqa: SLF001 - the call to check

    def _query(self) -> None:
        self._conn.CommonKVReceiver.query_prefill_dp_ranks(_ADDRESS, [0])

    def _heartbeat(self) -> None:
        stop = threading.Event()
        make: Callable[[], Any] = self._conn.requests.Session
        sessions: defaultdict[str, Any] = defaultdict(make)
        manager = _bare(
            self._conn.CommonKVManager,
            prefill_info_table={_ADDRESS: None},
            connection_lock=threading.Lock(),
            session_pool=sessions,
            session_pool_lock=threading.Lock(),
            heartbeat_interval=0.001,
            heartbeat_failures={},
            max_failures=1_000_000,
            _heartbeat_shutdown=stop,
        )
        if not hasattr(self._conn.CommonKVManager, "_start_heartbeat_checker_thread"):
            # Before 0.5.13 each backend has its own, over the sessions that the manager makes.
            sessions[_ADDRESS].get(f"http://{_ADDRESS}/health", timeout=(2, 3))
            return
        try:
            thread = manager._start_heartbeat_checker_thread()  # noqa: SLF001 - the call to check
            self._health.wait(_TIMEOUT)
        finally:
            manager.prefill_info_table.clear()
            stop.set()
        if isinstance(thread, threading.Thread):
            thread.join(_TIMEOUT)

    def _restarts(self) -> Finding:
        """The manager that asked for a topology is known, and has what is called on it."""
        name = "restarts"
        base = getattr(self._conn, "CommonKVManager", None)
        if base is None:
            return Finding(name, "there is no CommonKVManager")
        manager = _bare(base, prefill_info_table={})
        reason = _reason(lambda: manager.try_ensure_parallel_info(_ADDRESS))
        if manager not in self._hooks.managers:
            return Finding(name, reason or "managers are not seen")
        self._hooks.managers.discard(manager)
        return Finding(name)

    def _server(self) -> Finding:
        name = "server"
        server = getattr(self._conn, "CommonKVBootstrapServer", None)
        if server is None:
            return Finding(name, "there is no CommonKVBootstrapServer")
        before = self._hooks.servers_checked
        self._hooks.check_host = CHECK_HOST
        try:
            reason = _reason(lambda: _bare(server).__init__(CHECK_HOST, 1))
        finally:
            self._hooks.check_host = ""
        seen = self._hooks.servers_checked > before
        return Finding(name) if seen else Finding(name, reason or "it is not made this way")


def check(hooks: Hooks) -> list[Finding]:
    """Call each hooked part of SGLang once. Takes some milliseconds where all is well."""
    running = _Check(hooks)
    log: Any = getattr(hooks.conn, "logger", None)
    silence = _Silence()
    hub().intercept = running.answer
    if isinstance(log, logging.Logger):
        log.addFilter(silence)
    try:
        return running.run()
    finally:
        if isinstance(log, logging.Logger):
            log.removeFilter(silence)
        hub().intercept = None


class _Silence(logging.Filter):
    """Keeps back what SGLang says of the check's own calls."""

    def filter(self, record: logging.LogRecord) -> bool:  # noqa: ARG002 - all are kept back
        return False


def _bare(base: Any, **attributes: Any) -> Any:
    """An object of a class like ``base`` that did not run ``__init__``."""
    concrete: Any = type(base)(base.__name__, (_Blank, base), {})
    concrete.__abstractmethods__ = frozenset()
    made = concrete.__new__(concrete)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def _reason(call: Callable[[], object]) -> str:
    """Why ``call`` failed; empty where it did not. It is given ``_TIMEOUT`` seconds."""
    failed: list[str] = []

    def run() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - whatever SGLang has become
            failed.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=run, name="bootstrap-self-check", daemon=True)
    thread.start()
    thread.join(_TIMEOUT)
    if thread.is_alive():
        return "no effect in time"
    return failed[0] if failed else ""
