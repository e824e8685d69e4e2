"""The decode side of a release loaded in light mode: topology, routes and the heartbeat."""

from __future__ import annotations

import inspect
import threading
from collections import defaultdict
from collections.abc import Callable
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import requests

__all__ = ["CallStyle", "Decode", "bare", "call_style"]

Sizes = tuple[int, int, int, int]


class CallStyle(IntEnum):
    """How a release's decode names a rank in ``_get_bootstrap_info_from_server``."""

    RANK = 0
    """Engine rank alone (0.4.5, and NIXL until 0.4.6)."""
    ENGINE_RANK = 1
    """Engine rank and DP group (0.4.6 to 0.4.10, and NIXL until 0.5.2)."""
    PIPELINE = 2
    """Engine rank, DP group and PP rank (0.5.1 to 0.5.9)."""
    NAMED = 3
    """DP, CP, TP and PP rank (0.5.10 and later)."""


def call_style(receiver: type[Any]) -> CallStyle:
    """Tell the style from the parameters of the release's own method."""
    parameters = inspect.signature(receiver._get_bootstrap_info_from_server).parameters
    for name, style in (
        ("prefill_dp_rank", CallStyle.NAMED),
        ("target_pp_rank", CallStyle.PIPELINE),
        ("target_dp_group", CallStyle.ENGINE_RANK),
    ):
        if name in parameters:
            return style
    return CallStyle.RANK


def bare(base: type[Any], **attributes: Any) -> Any:
    """Make an object of ``base`` that did not run ``__init__``, with these attributes."""
    # An own subclass: methods that only a transfer backend has may be missing.
    concrete: Any = type(base.__name__, (base,), {})
    concrete.__abstractmethods__ = frozenset()
    made = concrete.__new__(concrete)
    vars(made).update(attributes)
    return made


class Decode:
    """One decode engine's view of one prefill address. Made by ``Engine.decode``."""

    def __init__(
        self,
        manager: type[Any],
        receiver: type[Any],
        address: str,
        sizes: Sizes,
    ) -> None:
        """Sizes are (tp, cp, dp, pp)."""
        self.address = address
        self.beats = 0
        """Heartbeats that the server answered with 200."""
        self._style = call_style(receiver)
        self._sizes = sizes
        tp, _, dp, pp = sizes
        self._manager = bare(
            manager,
            kv_args=SimpleNamespace(engine_rank=0, page_size=64, state_types=[]),
            server_args=SimpleNamespace(kv_cache_dtype="auto", dp_size=dp, enable_hisparse=False),
            kv_cache_dtype_str="auto",
            kv_layout=None,
            dsv41_spec_layout=None,
            is_mla_backend=False,
            is_hybrid_mla_backend=False,
            # NIXL of 0.4.6.post3 to post5 reads the table of all ranks with DP attention only.
            enable_dp_attention=False,
            tp_size_of_dp=1,
            attn_tp_size=tp,
            attn_tp_rank=0,
            attn_cp_size=1,
            attn_cp_rank=0,
            dcp_size=1,
            pp_size=pp,
            pp_rank=0,
            enable_all_cp_ranks_for_transfer=False,
            prefill_info_table={},
            prefill_dp_size_table={},
            prefill_tp_size_table={},
            prefill_attn_tp_size_table={},
            prefill_pp_size_table={},
            connection_pool={},
            connection_lock=threading.Lock(),
            session_pool=defaultdict(lambda: self._counting(requests.Session())),
            session_pool_lock=threading.Lock(),
            heartbeat_failures={},
            heartbeat_interval=0.1,
            max_failures=2,
            _heartbeat_shutdown=threading.Event(),
            addr_to_rooms_tracker=defaultdict(set),
            request_status={},
            failure_records={},
            failure_lock=threading.Lock(),
            transfer_statuses={},
            # What Mooncake's start_decode_thread() opens and listens on besides.
            server_socket=_SilentSocket(),
            _bind_server_socket=lambda: None,
        )
        self._receiver = bare(
            receiver, bootstrap_addr=address, bootstrap_room=0, kv_mgr=self._manager
        )

    def _counting(self, session: Any) -> Any:
        def count(response: Any, *_: Any, **__: Any) -> None:
            self.beats += response.status_code == 200

        session.hooks["response"].append(count)
        return session

    @property
    def asks_topology(self) -> bool:
        """Whether this release asks for the topology at all."""
        return self._style is not CallStyle.RANK or self._dumps

    @property
    def _dumps(self) -> bool:
        route = self._receiver._get_bootstrap_info_from_server
        return "enable_dp_attention" in route.__code__.co_names

    def topology(self) -> dict[str, Any] | None:
        """Ask the server anew; ``None`` where SGLang could not use the answer (it logs why)."""
        if self._style is CallStyle.NAMED:
            self._manager.prefill_info_table.clear()
            if not self._manager.try_ensure_parallel_info(self.address):
                return None
            info = self._manager.prefill_info_table[self.address]
            return dict(vars(info))  # a flat dataclass
        if self._style is CallStyle.RANK:
            return self._dump()
        answer = self._topology_call()()
        if answer is None or None in answer:
            return None
        if self._style is CallStyle.PIPELINE:
            # Releases before 0.5.8 return no page size.
            names = ("attn_tp_size", "dp_size", "pp_size", "page_size")
            return dict(zip(names, answer, strict=False))
        if self._counts_by_group():
            dp_size, tp_size = answer
        else:
            total, dp_size = answer
            tp_size = total // dp_size
        return {"attn_tp_size": tp_size, "dp_size": dp_size}

    def _dump(self) -> dict[str, Any] | None:
        """The table of all ranks, whose length the client takes for the TP size."""
        self._manager.enable_dp_attention = True
        try:
            answer = self._receiver._get_bootstrap_info_from_server(0)
        finally:
            self._manager.enable_dp_attention = False
        return None if answer is None else {"tp_size": len(answer[0])}

    def route(
        self, dp_rank: int, cp_rank: int, tp_rank: int, pp_rank: int
    ) -> dict[str, Any] | None:
        """Ask for one rank's address; ``None`` where the server has none (SGLang logs why)."""
        engine_rank = dp_rank * self._sizes[0] + tp_rank
        ask = self._receiver._get_bootstrap_info_from_server
        if self._style is CallStyle.NAMED:
            answer = ask(dp_rank, cp_rank, tp_rank, pp_rank)
        elif self._style is CallStyle.PIPELINE:
            answer = ask(tp_rank, dp_rank, pp_rank)
        elif self._style is CallStyle.RANK:
            answer = ask(engine_rank)
        else:  # 0.4.6 sends its engine rank, later releases the rank inside the DP group
            answer = ask(engine_rank if self._counts_by_group() else tp_rank, dp_rank)
        # NIXL of 0.4.6.post3 to post5 wraps the answer: a list of one table of one rank.
        found: dict[str, Any] | None = (
            answer[0][engine_rank] if isinstance(answer, list) else answer
        )
        return found

    def _topology_call(self) -> Callable[[], Any]:
        name = "_get_prefill_parallel_info_from_server"
        if not hasattr(self._receiver, name):
            name = "_get_prefill_dp_size_from_server"
        call: Callable[[], Any] = getattr(self._receiver, name)
        return call

    def _counts_by_group(self) -> bool:
        """Whether this is 0.4.6, whose topology has the TP size of a DP group."""
        return "tp_size_per_dp_rank" in self._topology_call().__code__.co_consts

    def start_heartbeat(self, interval: float = 0.1) -> None:
        """Start SGLang's heartbeat thread on a server whose topology was read, with one miss.

        :param interval: seconds between two heartbeats; SGLang's default is 5.
        """
        manager = self._manager
        # What the receiver's __init__ does after it read the topology.
        manager.prefill_dp_size_table[self.address] = self._sizes[2]
        manager.heartbeat_interval = interval
        manager.heartbeat_failures[self.address] = 1
        if hasattr(manager, "_start_heartbeat_checker_thread"):
            manager._start_heartbeat_checker_thread()
        elif "heartbeat_failures" in inspect.getsource(type(manager).start_decode_thread):
            manager.start_decode_thread()
        else:
            raise AttributeError("this release has no heartbeat thread")

    def stop_heartbeat(self) -> None:
        """Let the heartbeat thread end; one that cannot end has nothing to watch any more."""
        self._manager._heartbeat_shutdown.set()
        with self._manager.connection_lock:
            self._manager.prefill_dp_size_table.clear()
            self._manager.prefill_info_table.clear()

    @property
    def misses(self) -> int:
        """Heartbeats missed in a row; SGLang gives the server up at two."""
        return int(self._manager.heartbeat_failures.get(self.address, 0))

    @property
    def knows_server(self) -> bool:
        """Whether the server's topology is still cached; the heartbeat drops that of a dead one."""
        manager = self._manager
        named = self._style is CallStyle.NAMED
        return self.address in (
            manager.prefill_info_table if named else manager.prefill_dp_size_table
        )


class _SilentSocket:
    """In place of the ZMQ socket on which a prefill would report: nothing ever comes."""

    def recv_multipart(self) -> list[bytes]:
        threading.Event().wait()
        raise AssertionError("unreachable")
