"""``sglang_worker.py`` with the plugin: each process activates it as SGLang would.

More calls than the worker's: what the plugin said, an engine's server, the swap of a manager.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bootstrap_grpc.compat.session_hub import hub  # noqa: E402 # after the path
from bootstrap_grpc.compat.sglang import activate  # noqa: E402 # after the path
from support import sglang_worker  # noqa: E402 # after the path
from support.sglang_decode import bare  # noqa: E402 # after the path


class PluginWorker(sglang_worker.Worker):
    """A process of SGLang with the plugin loaded."""

    def __init__(self, root: Path, backend: str = "") -> None:
        super().__init__(root, backend)
        _change(self._engine.conn, os.environ.get("SGLANG_CHANGED", ""))
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self._hooks = activate()
        self._said = said.getvalue()
        self._bootstrap: Any = None
        self._decodes: dict[str, Any] = {}

    def said(self) -> dict[str, Any]:
        """The line that activation wrote, and whether the plugin is in use."""
        return {"line": self._said, "active": self._hooks is not None}

    def start_server(self, host: str, port: int) -> dict[str, Any]:
        """Make SGLang's bootstrap server as the engine does."""
        server: Any = self._engine.conn.CommonKVBootstrapServer(host, port)
        self._bootstrap = server
        return self.server()

    def server(self) -> dict[str, Any]:
        """What became of it."""
        service = self._bootstrap.bootstrap_grpc
        return {
            "pid": service.pid,
            "grpc": service.grpc_port,
            "instance": service.instance_id,
            "joined": service.is_joined,
        }

    def stop_server(self) -> None:
        """SGLang's ``close()``."""
        self._bootstrap.close()

    def held(self) -> int:
        """Ranks that this process holds over gRPC."""
        return hub().registrations.held

    def live(self, address: str) -> bool:
        """Whether calls to an address go over gRPC now."""
        return hub().speaks_grpc(address)

    def register_replica(self, address: str, dp_size: int, dp_rank: int, port: int) -> None:
        """Register as one replica of plain DP does: its attention DP rank is 0."""
        host, _, number = address.rpartition(":")
        row = {f"{group}_size": 1 for group in ("attn_tp", "attn_cp", "attn_dp", "pp")}
        row |= {f"{group}_rank": 0 for group in ("attn_tp", "attn_cp", "attn_dp", "pp")}
        payload: dict[str, Any] = {
            **row,
            "system_dp_size": dp_size,
            "system_dp_rank": dp_rank,
            "rank_ip": "10.0.0.7",
            "rank_port": port,
            "page_size": 64,
            "kv_cache_dtype": "auto",
            "load_balance_method": "round_robin",
        }
        manager = bare(self._engine.conn.CommonKVManager)
        manager._register_topology_row(f"http://{host}:{number}/route", payload)

    def tear_down(self, address: str) -> None:
        """A switch of roles: a manager registers and is torn down."""
        host, _, port = address.rpartition(":")
        base = self._engine.conn.CommonKVManager
        stops: list[bool] = []
        torn = type("Torn", (base,), {"teardown": lambda _self: stops.append(True)})
        manager = bare(
            torn,
            dist_init_addr=None,
            bootstrap_host=host,
            bootstrap_port=int(port),
            server_args=SimpleNamespace(load_balance_method="round_robin", port=1),
            kv_args=SimpleNamespace(page_size=64, engine_rank=0, rust_http_port=None),
            **{f"{g}_size": 1 for g in ("attn_tp", "attn_cp", "attn_dp", "pp", "system_dp")},
            **{f"{g}_rank": 0 for g in ("attn_tp", "attn_cp", "attn_dp", "pp", "system_dp")},
            local_ip="10.0.0.7",
            rank_port=40001,
            kv_cache_dtype_str="auto",
            kv_layout=None,
            dsv41_spec_layout=None,
        )
        manager.register_to_bootstrap()
        manager.teardown()
        if stops != [True]:
            raise RuntimeError("the manager's own teardown did not run")

    def watch(self, address: str, sizes: list[int]) -> bool:
        """Read the topology and keep the manager: ``knows`` tells whether it still has it."""
        decode = self._decodes[address] = self._decode(address, sizes)
        return decode.topology() is not None

    def knows(self, address: str) -> bool:
        """Whether the manager of ``watch`` has the topology still."""
        known: bool = self._decodes[address].knows_server
        return known

    def timed_queries(self, address: str, rooms: int, count: int) -> float:
        """The median of ``count`` calls of ``query_prefill_dp_ranks``, in microseconds."""
        query = self._engine.conn.CommonKVReceiver.query_prefill_dp_ranks
        asked = list(range(1, rooms + 1))
        took: list[float] = []
        for _ in range(count):
            begun = time.perf_counter()
            query(address, asked)
            took.append(time.perf_counter() - begun)
        return sorted(took)[count // 2] * 1e6

    def pid(self) -> int:
        return os.getpid()

    def _decode(self, address: str, sizes: list[int] | None = None) -> Any:
        decode: Any = super()._decode(address, sizes)
        # The manager's __init__ makes them of SGLang's ``requests``; the harness of the real one.
        decode._manager.session_pool = defaultdict(
            lambda: decode._counting(self._engine.conn.requests.Session())
        )
        return decode


def _change(conn: Any, what: str) -> None:
    """A later release of SGLang, perhaps: something is no longer as the plugin knows it."""
    if what == "query":  # by other means than requests
        conn.CommonKVReceiver.query_prefill_dp_ranks = staticmethod(lambda _address, _rooms: {})
    elif what == "requests":
        conn.http = conn.requests
        del conn.requests
    elif what == "server":
        del conn.CommonKVBootstrapServer


if __name__ == "__main__":
    sglang_worker.Worker = PluginWorker  # type: ignore[misc] # main() makes what has that name
    sglang_worker.main()
