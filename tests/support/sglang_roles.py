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
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from support.sglang_light import load_light

__all__ = ["CallStyle", "Decode", "Engine", "LogCapture", "PrefillRank", "Server"]

_START_TIMEOUT = 10.0
"""Seconds that SGLang's server thread may take until it listens."""


class CallStyle(IntEnum):
    """How a release's decode names a rank in ``_get_bootstrap_info_from_server``."""

    ENGINE_RANK = 1
    """Engine rank and DP group (0.4.6 to 0.4.10)."""
    PIPELINE = 2
    """Engine rank, DP group and PP rank (0.5.1 to 0.5.9)."""
    NAMED = 3
    """DP, CP, TP and PP rank (0.5.10 and later)."""


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
                return int(runner.addresses[0][1])
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
    """One loaded release. One in a process: see ``load_light``."""

    def __init__(self, root: Path) -> None:
        self.conn: ModuleType = load_light(root)
        self.style = self._call_style()

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
        manager = _bare(
            self._class("KVManager"),
            # Releases before 0.5.2 know the server's host only in multi-node set-ups.
            dist_init_addr=f"{host}:1" if self.style is CallStyle.ENGINE_RANK else None,
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
        )
        method = getattr(manager, "register_to_bootstrap", None) or manager._register_to_bootstrap
        method()

    def register_dp_rank(self, address: str, room: int, dp_rank: int) -> None:
        """Tell which DP rank took ``room``, as a sender does; failures are logged only."""
        self.dp_rank_sender(address)(room, dp_rank)

    def dp_rank_sender(self, address: str) -> Callable[[int, int], None]:
        """Return the call of ``register_dp_rank`` on one sender, for many rooms."""
        manager = SimpleNamespace(attn_dp_rank=0)
        sender = _bare(self._class("KVSender"), bootstrap_server_url=address, kv_mgr=manager)

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
        return Decode(self, address, sizes)

    def _class(self, suffix: str) -> type[Any]:
        for prefix in ("Common", "Mooncake"):
            found = getattr(self.conn, prefix + suffix, None)
            if isinstance(found, type):
                return found
        raise AttributeError(f"{self.conn.__name__} has no {suffix}")

    def _call_style(self) -> CallStyle:
        route = self._class("KVReceiver")._get_bootstrap_info_from_server
        parameters = inspect.signature(route).parameters
        if "prefill_dp_rank" in parameters:
            return CallStyle.NAMED
        return CallStyle.PIPELINE if "target_pp_rank" in parameters else CallStyle.ENGINE_RANK

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
        for name in ("get_parallel", "get_serving", "get_disagg"):
            if hasattr(self.conn, name):
                setattr(self.conn, name, lambda: settings)


class Decode:
    """The decode side: topology, routes and the heartbeat."""

    def __init__(self, engine: Engine, address: str, sizes: tuple[int, int, int, int]) -> None:
        self.address = address
        self.beats = 0
        """Heartbeats that the server answered with 200."""
        self._style = engine.style
        tp, _, dp, pp = sizes
        requests = engine.conn.requests  # the library as the release imported it
        self._manager = _bare(
            engine._class("KVManager"),
            kv_args=SimpleNamespace(engine_rank=0, page_size=64, state_types=[]),
            server_args=SimpleNamespace(kv_cache_dtype="auto", dp_size=dp, enable_hisparse=False),
            kv_cache_dtype_str="auto",
            kv_layout=None,
            dsv41_spec_layout=None,
            is_mla_backend=False,
            is_hybrid_mla_backend=False,
            attn_tp_size=tp,
            attn_cp_size=1,
            attn_cp_rank=0,
            dcp_size=1,
            pp_size=pp,
            pp_rank=0,
            enable_all_cp_ranks_for_transfer=False,
            prefill_info_table={},
            prefill_dp_size_table={},
            prefill_attn_tp_size_table={},
            prefill_pp_size_table={},
            connection_pool={},
            connection_lock=threading.Lock(),
            session_pool=defaultdict(requests.Session),
            session_pool_lock=threading.Lock(),
            heartbeat_failures={},
            heartbeat_interval=0.1,
            max_failures=2,
            _heartbeat_shutdown=threading.Event(),
            addr_to_rooms_tracker=defaultdict(set),
            request_status={},
            failure_records={},
            failure_lock=threading.Lock(),
            _on_heartbeat_success=self._count_beat,
        )
        self._receiver = _bare(
            engine._class("KVReceiver"),
            bootstrap_addr=address,
            bootstrap_room=0,
            kv_mgr=self._manager,
        )

    def _count_beat(self, _address: str) -> None:
        self.beats += 1

    def topology(self) -> dict[str, Any] | None:
        """Ask the server anew; ``None`` where SGLang could not use the answer (it logs why)."""
        if self._style is CallStyle.NAMED:
            self._manager.prefill_info_table.clear()
            if not self._manager.try_ensure_parallel_info(self.address):
                return None
            info = self._manager.prefill_info_table[self.address]
            return dict(vars(info))  # a flat dataclass
        # Older clients return a tuple of sizes, in an order of their own; all None where failed.
        name = {
            CallStyle.PIPELINE: "_get_prefill_parallel_info_from_server",
            CallStyle.ENGINE_RANK: "_get_prefill_dp_size_from_server",
        }[self._style]
        answer = getattr(self._receiver, name)()
        values = answer if isinstance(answer, tuple) else (answer,)
        return None if None in values else {str(i): value for i, value in enumerate(values)}

    def route(
        self, dp_rank: int, cp_rank: int, tp_rank: int, pp_rank: int
    ) -> dict[str, Any] | None:
        """Ask for one rank's address; ``None`` where the server has none (SGLang logs why)."""
        arguments = {
            CallStyle.NAMED: (dp_rank, cp_rank, tp_rank, pp_rank),
            CallStyle.PIPELINE: (tp_rank, dp_rank, pp_rank),
            CallStyle.ENGINE_RANK: (tp_rank, dp_rank),
        }[self._style]
        answer: dict[str, Any] | None = self._receiver._get_bootstrap_info_from_server(*arguments)
        return answer

    def start_heartbeat(self) -> None:
        """Start SGLang's heartbeat thread on a server whose topology was read, with one miss."""
        if not hasattr(self._manager, "_start_heartbeat_checker_thread"):
            raise AttributeError("this release's common manager has no heartbeat thread")
        self._manager.heartbeat_failures[self.address] = 1
        self._manager._start_heartbeat_checker_thread()

    def stop_heartbeat(self) -> None:
        """Let the heartbeat thread end."""
        self._manager._heartbeat_shutdown.set()

    @property
    def misses(self) -> int:
        """Heartbeats missed in a row; SGLang gives the server up at two."""
        return int(self._manager.heartbeat_failures.get(self.address, 0))

    @property
    def knows_server(self) -> bool:
        """Whether the server's topology is still cached; the heartbeat drops that of a dead one."""
        return self.address in self._manager.prefill_info_table


def _bare(base: type[Any], **attributes: Any) -> Any:
    """Make an object of ``base`` that did not run ``__init__``, with these attributes."""
    # An own subclass: methods that only a transfer backend has may be missing.
    concrete: Any = type(base.__name__, (base,), {})
    concrete.__abstractmethods__ = frozenset()
    made = concrete.__new__(concrete)
    vars(made).update(attributes)
    return made


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    socket.inet_aton(host)  # test servers are addressed by number
    return host, int(port)
