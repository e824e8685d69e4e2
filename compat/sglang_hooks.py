"""What the plugin changes in SGLang: names and methods of ``common.conn``, found by looking.

Nothing here reads a version number. A part of SGLang that is not as expected is left as it is.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakSet

import requests

from bootstrap_grpc.compat import requests_session
from bootstrap_grpc.compat.dialects.dialect import TopologyOptions
from bootstrap_grpc.compat.dialects.table import OPTIONAL_KEYS
from bootstrap_grpc.compat.session_hub import hub
from bootstrap_grpc.compat.sglang_server import ServiceProcess

__all__ = ["Hooks", "RequestsName"]

_log = logging.getLogger("bootstrap_grpc.sglang")


class RequestsName(ModuleType):
    """Stands for ``requests`` in SGLang's module: bootstrap calls use our sessions.

    Whatever else is asked for is that of ``requests`` itself.
    """

    def __init__(self) -> None:
        super().__init__("requests")
        for name in requests_session.__all__:
            setattr(self, name, getattr(requests_session, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(requests, name)


class Hooks:
    """The changes made to one ``common.conn`` module, and the way back. One in a process."""

    def __init__(self, conn: ModuleType) -> None:
        self.conn: Any = conn
        self.managers: WeakSet[Any] = WeakSet()
        """The KV managers that asked for a topology."""
        self.check_host = ""
        """A server made for this host starts nothing: the self-check's."""
        self.servers_checked = 0
        self._lock = threading.Lock()
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Make every change that fits."""
        self._set(self.conn, "requests", RequestsName())
        self._hook_manager()
        self._hook_server()
        known = getattr(self.conn, "PrefillServerInfo", None)
        if known is not None and dataclasses.is_dataclass(known):
            # This release makes a dataclass of the topology: a key it does not know is an error.
            names = {field.name for field in dataclasses.fields(known)}
            hub().topology_options = TopologyOptions(omit=OPTIONAL_KEYS - names)
        hub().on_restart(self.engine_restarted)

    def undo(self) -> None:
        """Leave SGLang as it was."""
        while self._undo:
            self._undo.pop()()

    def engine_restarted(self, address: str) -> None:
        """Let this process's managers drop what they know of a prefill server that started anew."""
        with self._lock:
            managers = [
                one for one in self.managers if address in getattr(one, "prefill_info_table", ())
            ]
        for manager in managers:
            _log.warning("%s started anew: its topology and routes are asked for again", address)
            try:
                manager._handle_node_failure(address)  # noqa: SLF001 - what SGLang's heartbeat calls
            except Exception:  # noqa: BLE001 - SGLang's own heartbeat still looks after it
                _log.exception("SGLang's _handle_node_failure(%r) failed", address)

    def _set(self, owner: Any, name: str, value: Any) -> None:
        before = getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before))

    def _hook_manager(self) -> None:
        manager: Any = getattr(self.conn, "CommonKVManager", None)
        ensure = getattr(manager, "try_ensure_parallel_info", None)
        register = getattr(manager, "register_to_bootstrap", None)
        hooks = self
        if ensure is not None:

            def try_ensure_parallel_info(self: Any, *args: Any, **kwargs: Any) -> Any:
                with hooks._lock:
                    hooks.managers.add(self)
                return ensure(self, *args, **kwargs)

            self._set(manager, "try_ensure_parallel_info", try_ensure_parallel_info)
        if register is not None:

            def register_to_bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
                _end_holds_with(self)
                return register(self, *args, **kwargs)

            self._set(manager, "register_to_bootstrap", register_to_bootstrap)

    def _hook_server(self) -> None:
        base: Any = getattr(self.conn, "CommonKVBootstrapServer", None)
        if base is None:
            return
        original, original_close = base.__init__, getattr(base, "close", None)
        hooks = self

        def __init__(self: Any, host: str, port: int, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it becomes one
            if host == hooks.check_host:
                hooks.servers_checked += 1
                return
            if args or kwargs or _is_changed(self, base):
                _log.warning("%s is not SGLang's common server: left on HTTP", type(self).__name__)
                original(self, host, port, *args, **kwargs)
                return
            self.host, self.port = host, port
            self.bootstrap_grpc = ServiceProcess(host, port)
            self.thread = self.bootstrap_grpc.thread

        def close(self: Any) -> None:
            service: ServiceProcess | None = getattr(self, "bootstrap_grpc", None)
            if service is not None:
                service.close()
            elif original_close is not None:
                original_close(self)

        self._set(base, "__init__", __init__)
        if original_close is not None:
            self._set(base, "close", close)


def _is_changed(server: object, base: type[Any]) -> bool:
    """Whether a backend's server does more than the common one: it would lose that here."""
    mro = type(server).__mro__
    return any(
        callable(value) and not name.startswith("__")
        for between in mro[: mro.index(base)]
        for name, value in vars(between).items()
    )


def _end_holds_with(manager: Any) -> None:
    """Have the end of ``manager`` (a switch of roles) end what this process has registered."""
    teardown = getattr(manager, "teardown", None)
    if not callable(teardown) or "teardown" in vars(manager):
        return

    def end(*args: Any, **kwargs: Any) -> Any:
        try:
            return teardown(*args, **kwargs)
        finally:
            hub().registrations.end()

    manager.teardown = end
