"""The parts that SGLang's own bootstrap code plays, made from a release loaded in light mode.

SGLang builds these objects inside a serving engine. Here each is made without its ``__init__``,
which needs model and GPU, and given the attributes that the bootstrap calls read. The calls
themselves are SGLang's. Not thread-safe, as SGLang's are not.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from support.sglang_decode import CallStyle, Decode, bare, call_style
from support.sglang_light import load_light

__all__ = ["CallStyle", "Decode", "Engine", "LogCapture", "PrefillRank", "Server"]

_PREFIXES = {"mooncake": "Mooncake", "nixl": "Nixl"}
"""How the names of a backend's classes begin."""

_START_TIMEOUT = 10.0
"""Seconds that SGLang's server thread may take until it listens."""


@dataclass(frozen=True, slots=True)
class PrefillRank:
    """One rank as SGLang's prefill would register it. Sizes and ranks are (tp, cp, dp, pp)."""

    sizes: tuple[int, int, int, int] = (1, 1, 1, 1)
    ranks: tuple[int, int, int, int] = (0, 0, 0, 0)
    rank_ip: str = "10.0.0.7"
    rank_port: int = 40000
    page_size: int = 64
    kv_cache_dtype: str = "auto"
    prefill_http_port: int = 30000
    load_balance_method: str = "round_robin"


class LogCapture(logging.Handler):
    """Keeps what SGLang logs at WARNING or above: its only way to report a failed call."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: list[str] = []

    def install(self) -> LogCapture:
        """Take over SGLang's loggers and quiet the traces of its HTTP server."""
        logger = logging.getLogger("sglang")
        logger.addHandler(self)
        logger.propagate = False
        logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
        return self

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())

    def take(self) -> list[str]:
        """Return what was logged since the last call."""
        lines, self._lines = self._lines, []
        return lines


class Server:
    """SGLang's own bootstrap server, in its own thread as SGLang runs it."""

    def __init__(self, server_class: type[Any], host: str, port: int) -> None:
        takes_host = "host" in inspect.signature(server_class.__init__).parameters
        # Releases before 0.5.2 take no host and bind every interface.
        self._server = server_class(host, port) if takes_host else server_class(port)
        self.port = self._listening_port()

    def _listening_port(self) -> int:
        deadline = time.monotonic() + _START_TIMEOUT
        while time.monotonic() < deadline:
            runner = getattr(self._server, "_runner", None)
            if runner is not None and runner.addresses:
                # With port 0 and no host each address family has a port of its own.
                addresses = sorted(runner.addresses, key=len)  # IPv4's has two items
                return int(addresses[0][1])
            if not self._server.thread.is_alive():
                break
            time.sleep(0.01)
        raise RuntimeError("SGLang's bootstrap server did not start to listen")

    def close(self) -> None:
        # The cleanup task, left pending by SGLang's close(), would complain at exit.
        loop = self._server._loop
        loop.call_soon_threadsafe(_cancel_all, loop)
        self._server.close()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()


class Engine:
    """One loaded release. One in a process: see ``load_light``.

    :param backend: drive the classes of this transfer backend, not the common ones.
    """

    def __init__(self, root: Path, backend: str = "") -> None:
        self.conn: ModuleType = load_light(root, backend)
        self._prefixes = (_PREFIXES[backend], "Common") if backend else ("Common", "Mooncake")
        self._modules = self._defining_modules()
        self.style = call_style(self._class("KVReceiver"))

    def serve(self, host: str, port: int = 0) -> Server:
        """Start the release's own server; port 0 picks a free one."""
        return Server(self._class("KVBootstrapServer"), host, port)

    def register(self, address: str, rank: PrefillRank) -> None:
        """Register one rank as the manager of a prefill engine does; failures are logged only."""
        tp, cp, dp, pp = rank.sizes
        tp_rank, cp_rank, dp_rank, pp_rank = rank.ranks
        host, port = _split(address)
        self._configure(rank)
        engine_rank = dp_rank * tp + tp_rank
        manager = bare(
            self._class("KVManager"),
            # Releases before 0.5.2 know the server's host only in multi-node set-ups.
            dist_init_addr=f"{host}:1" if self.style <= CallStyle.ENGINE_RANK else None,
            bootstrap_host=host,
            bootstrap_port=port,
            server_args=SimpleNamespace(
                load_balance_method=rank.load_balance_method,
                port=rank.prefill_http_port,
                kv_cache_dtype=rank.kv_cache_dtype,
                dp_size=dp,
            ),
            kv_args=SimpleNamespace(
                page_size=rank.page_size, engine_rank=engine_rank, rust_http_port=None
            ),
            attn_tp_size=tp,
            attn_tp_rank=tp_rank,
            attn_cp_size=cp,
            attn_cp_rank=cp_rank,
            attn_dp_size=dp,
            attn_dp_rank=dp_rank,
            pp_size=pp,
            pp_rank=pp_rank,
            system_dp_size=1,
            system_dp_rank=0,
            tp_size=tp * dp,
            dp_size=dp,
            local_ip=rank.rank_ip,
            rank_port=rank.rank_port,
            kv_cache_dtype_str=rank.kv_cache_dtype,
            kv_layout=None,
            dsv41_spec_layout=None,
            agent=SimpleNamespace(name=f"agent-{rank.rank_port}"),  # NIXL's
        )
        method = getattr(manager, "register_to_bootstrap", None) or manager._register_to_bootstrap
        method()

    def register_dp_rank(self, address: str, room: int, dp_rank: int) -> None:
        """Tell which DP rank took ``room``, as a sender does; failures are logged only."""
        self.dp_rank_sender(address)(room, dp_rank)

    def dp_rank_sender(self, address: str) -> Callable[[int, int], None]:
        """Return the call of ``register_dp_rank`` on one sender, for many rooms."""
        manager = SimpleNamespace(attn_dp_rank=0)
        sender = bare(self._class("KVSender"), bootstrap_server_url=address, kv_mgr=manager)

        def register(room: int, dp_rank: int) -> None:
            sender.bootstrap_room, manager.attn_dp_rank = room, dp_rank
            sender._register_prefill_dp_rank()

        return register

    def query_dp_ranks(self, address: str, rooms: Sequence[int]) -> dict[str, int]:
        """Ask for the DP ranks of ``rooms``; an empty answer may also be a logged failure."""
        answer: dict[str, int] = self._class("KVReceiver").query_prefill_dp_ranks(
            address, list(rooms)
        )
        return answer

    def decode(self, address: str, sizes: tuple[int, int, int, int] = (1, 1, 1, 1)) -> Decode:
        """Return a decode engine of the sizes (tp, cp, dp, pp) that looks at ``address``."""
        self._configure(PrefillRank(sizes=sizes))
        manager, receiver = self._class("KVManager"), self._class("KVReceiver")
        return Decode(manager, receiver, address, sizes)

    def _class(self, suffix: str) -> type[Any]:
        for prefix in self._prefixes:
            found = getattr(self.conn, prefix + suffix, None)
            if isinstance(found, type):
                return found
        raise AttributeError(f"{self.conn.__name__} has no {suffix}")

    def _defining_modules(self) -> list[ModuleType]:
        """The modules of the classes: a backend's calls may be its own or the common ones."""
        names = {
            base.__module__
            for suffix in ("KVManager", "KVSender", "KVReceiver")
            for base in self._class(suffix).__mro__
        }
        return [sys.modules[name] for name in sorted(names) if name.startswith("sglang.")]

    def _configure(self, rank: PrefillRank) -> None:
        """Stand in for the process-wide settings that the module reads through ``get_*()``."""
        settings = SimpleNamespace(
            load_balance_method=rank.load_balance_method,
            port=rank.prefill_http_port,
            num_dp_ranks=rank.sizes[2],
            enable_cp_tp_group_sharing=False,
            enable_dsa_cache_layer_split=False,
            enable_kv_cache_sharding=False,
            disaggregation_decode_allocation_policy="early",
            nnodes=1,
        )
        for module in self._modules:
            for name in ("get_parallel", "get_serving", "get_disagg"):
                if hasattr(module, name):
                    setattr(module, name, lambda: settings)
            if hasattr(module, "get_local_ip_by_remote"):  # later a manager has its local_ip
                module.get_local_ip_by_remote = lambda: rank.rank_ip


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    socket.inet_aton(host)  # test servers are addressed by number
    return host, int(port)
