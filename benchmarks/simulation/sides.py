"""What a scheduler does through the bootstrap service, in SGLang's way and in this project's.

``PrefillSide`` and ``DecodeSide`` are called from the scheduler's thread only. The time that these
calls take is the time that the scheduler loses to them.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, runtime_checkable

from simulation.model import Request, Settings

__all__ = ["DecodeSide", "PrefillSide", "decode_side", "prefill_side"]

_SETUP_TIMEOUT = 20.0
_POLL_EVERY = 0.0001
"""Seconds, where a decode waits for an answer."""


@runtime_checkable
class PrefillSide(Protocol):
    """One prefill scheduler, which is one DP rank."""

    def join(self, address: str) -> None:
        """Register the rank; before the trace starts."""

    def take(self, request: Request) -> None:
        """Tell that this rank took the request."""

    def errors(self) -> list[str]:
        """What went wrong since the last call."""

    def leave(self) -> None:
        """Let go of the service; ``join`` may follow."""


class DecodeSide(Protocol):
    """One decode scheduler."""

    def join(self, address: str) -> None:
        """Read the topology; before the trace starts."""

    def begin_pass(self) -> None:
        """The loop comes round: SGLang's call at the top of its loop."""

    def submit(self, request: Request) -> None:
        """A request came whose DP rank is unknown."""

    def resolve(self) -> list[tuple[Request, int]]:
        """Return the requests whose rank became known, each with it; its route is known too."""

    def errors(self) -> list[str]:
        """What went wrong since the last call."""

    def leave(self) -> None:
        """Let go of the service; ``join`` may follow."""


def prefill_side(release: Path | None, rank: int, settings: Settings) -> PrefillSide:
    """Return the side of an SGLang release, or this project's for ``None``."""
    return (
        _GrpcPrefill(rank, settings) if release is None else _SglangPrefill(release, rank, settings)
    )


def decode_side(release: Path | None, settings: Settings) -> DecodeSide:
    """Return the side of an SGLang release, or this project's for ``None``."""
    return _GrpcDecode(settings) if release is None else _SglangDecode(release, settings)


class _SglangPrefill:
    """SGLang's calls in a prefill: one for its rank, and one for each room."""

    def __init__(self, release: Path, rank: int, settings: Settings) -> None:
        sys.dont_write_bytecode = True  # the cache holds the release as it was published
        from support.sglang_roles import Engine, LogCapture, PrefillRank

        self._log = LogCapture().install()
        self._engine = Engine(release)
        sizes = (1, 1, settings.prefill, 1)
        self._rank = PrefillRank(
            sizes=sizes, ranks=(0, 0, rank, 0), rank_ip="127.0.0.1", rank_port=40_000 + rank
        )
        self._dp_rank = rank
        self._register: Callable[[int, int], None] = lambda _room, _rank: None

    def join(self, address: str) -> None:
        self._engine.register(address, self._rank)
        self._register = self._engine.dp_rank_sender(address)

    def take(self, request: Request) -> None:
        self._register(request.room, self._dp_rank)

    def errors(self) -> list[str]:
        return self._log.take()

    def leave(self) -> None:
        """Nothing: no connection is kept."""


class _SglangDecode:
    """SGLang's own queue of requests without a DP rank, with its resolution once a pass.

    ``DecodePreallocQueue._resolve_pending_reqs``, and from 0.5.2x on the query that is started
    ahead in a thread, run unmodified. What stands in is the receiver of a request: ``init`` asks
    for the route of the rank with SGLang's call, once for each rank as SGLang's cache does, and
    passes the request on.
    """

    def __init__(self, release: Path, settings: Settings) -> None:
        sys.dont_write_bytecode = True  # the cache holds the release as it was published
        from support.sglang_roles import Engine, LogCapture

        self._log = LogCapture().install()
        self._engine = Engine(release)
        self._sizes = (1, 1, settings.prefill, 1)
        self._module: Any = importlib.import_module("sglang.srt.disaggregation.decode")
        policy = SimpleNamespace(disaggregation_decode_allocation_policy="early")
        vars(self._module)["get_disagg"] = lambda: policy
        self._routes: set[int] = set()
        self._resolved: list[tuple[Request, int]] = []
        self._queue: Any = None
        self._decode: Any = None
        self.begin_pass = lambda: None

    def join(self, address: str) -> None:
        self._routes, self._resolved = set(), []
        self._decode = self._engine.decode(address, self._sizes)
        manager: Any = self._decode._manager
        manager._prefill_recompute_executor = None
        manager._prefill_recompute_executor_lock = threading.Lock()
        if self._decode.topology() is None:
            raise RuntimeError(f"no topology: {self._log.take()}")
        queue_class: Any = self._module.DecodePreallocQueue
        self._queue = queue_class.__new__(queue_class)
        vars(self._queue).update(
            pending_reqs=[],
            kv_manager=manager,
            _ensure_retry_count={},
            _max_ensure_retries=15,
            _ensure_last_attempt_time={},
            _ensure_retry_interval=1.0,
            _prefill_dp_rank_queries={},
        )
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        ahead = getattr(self._queue, "prefetch_prefill_dp_rank_queries", None)
        if ahead is not None:
            self.begin_pass = ahead

    def submit(self, request: Request) -> None:
        def init(dp_rank: int) -> None:
            if dp_rank not in self._routes and self._decode.route(dp_rank, 0, 0, 0) is not None:
                self._routes.add(dp_rank)
            self._resolved.append((request, dp_rank))

        sglang_request = SimpleNamespace(
            bootstrap_host=self._host,
            bootstrap_port=self._port,
            bootstrap_room=request.room,
            disagg_prefill_dp_rank=None,
        )
        receiver = SimpleNamespace(init=init, conclude_state=None)
        self._queue.pending_reqs.append(SimpleNamespace(req=sglang_request, kv_receiver=receiver))

    def resolve(self) -> list[tuple[Request, int]]:
        self._queue._resolve_pending_reqs()
        resolved, self._resolved = self._resolved, []
        return resolved

    def errors(self) -> list[str]:
        return self._log.take()

    def leave(self) -> None:
        """End the threads of SGLang's executor and, with them, their sessions; drop the own one."""
        if self._queue is None:
            return
        executor = self._queue.kv_manager._prefill_recompute_executor
        if executor:
            executor.shutdown(cancel_futures=True)
        sessions = getattr(self._engine.conn, "_bootstrap_sessions", None)
        for session in getattr(sessions, "by_addr", {}).values():
            session.close()
        self._queue = None


class _GrpcPrefill:
    """This project's publisher."""

    def __init__(self, rank: int, settings: Settings) -> None:
        from bootstrap_grpc.client import BootstrapClient
        from bootstrap_grpc.protos.model import RankKey, Registration, Shape

        self._client_class = BootstrapClient
        self._registration = Registration(
            key=RankKey(dp_rank=rank),
            rank_ip="127.0.0.1",
            rank_port=40_000 + rank,
            shape=Shape(dp_size=settings.prefill, load_balance_method="round_robin"),
        )
        self._dp_rank = rank
        self._client: Any = None
        self._publisher: Any = None

    def join(self, address: str) -> None:
        self._client = self._client_class(address)
        self._client.hold_rank(self._registration).wait_registered(_SETUP_TIMEOUT)
        self._publisher = self._client.publisher()

    def take(self, request: Request) -> None:
        self._publisher.publish(request.room, self._dp_rank)

    def errors(self) -> list[str]:
        lost = self._publisher.dropped if self._publisher else 0
        return [f"{lost} rooms dropped"] if lost else []

    def leave(self) -> None:
        if self._client:
            self._client.close()
            self._client = None


class _GrpcDecode:
    """This project's resolver and topology cache."""

    def __init__(self, settings: Settings) -> None:
        from bootstrap_grpc.client import BootstrapClient

        self._client_class = BootstrapClient
        self._client: Any = None
        self._resolver: Any = None
        self._topology: Any = None
        self._wait = settings.wait
        self._waiting: dict[int, Request] = {}
        self._new: list[int] = []
        self._errors: list[str] = []

    def join(self, address: str) -> None:
        self._waiting, self._new = {}, []
        self._client = self._client_class(address)
        self._topology = self._client.topology_cache()
        self._topology.wait(_SETUP_TIMEOUT)
        self._resolver = self._client.resolver()

    def begin_pass(self) -> None:
        """Nothing: there is nothing to be started ahead."""

    def submit(self, request: Request) -> None:
        self._waiting[request.room] = request
        self._new.append(request.room)

    def resolve(self) -> list[tuple[Request, int]]:
        new, self._new = self._new, []
        if new:
            self._resolver.submit(new)
        known: dict[int, int] = self._resolver.poll()
        until = time.monotonic() + self._wait
        while not known.keys() >= set(new) and time.monotonic() < until:
            time.sleep(_POLL_EVERY)
            known.update(self._resolver.poll())
        if not known:
            return []
        dp_ranks = {route.key.dp_rank for route in self._topology.current().routes}
        self._errors += [f"no route of {rank}" for rank in known.values() if rank not in dp_ranks]
        return [(self._waiting.pop(room), dp_rank) for room, dp_rank in known.items()]

    def errors(self) -> list[str]:
        errors, self._errors = self._errors, []
        return errors

    def leave(self) -> None:
        if self._client:
            self._client.close()
            self._client = None
