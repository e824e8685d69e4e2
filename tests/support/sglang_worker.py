"""A process that plays SGLang's parts on request: JSON lines on stdin and stdout.

Usage: ``sglang_worker.py RELEASE_FOLDER [BACKEND]``. Its first line is ``{"ready": true}``. Then
each line ``{"call": NAME, "with": {...}}`` is answered by ``{"value": ..., "log": [...]}`` or
``{"error": TEXT, "log": [...]}``, where ``log`` is what SGLang logged meanwhile. The end of stdin
ends the process. ``support.sglang_peer`` is the other end.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True  # the cache holds the release as it was published
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.sglang_roles import Decode, Engine, LogCapture, PrefillRank, Server  # noqa: E402 # after the path


class Worker:
    """The calls that a request may name: its public methods."""

    def __init__(self, root: Path, backend: str = "") -> None:
        self._engine = Engine(root, backend)
        self._server: Server | None = None
        self._heart: Decode | None = None

    def serve(self, host: str, port: int = 0) -> int:
        """Start SGLang's own server; return its port."""
        self._server = self._engine.serve(host, port)
        return self._server.port

    def close_server(self) -> None:
        """Stop the server as SGLang does, its ``close()``."""
        if self._server:
            self._server.close()

    def register(self, address: str, rank: dict[str, Any]) -> None:
        """Register one rank; ``rank`` holds the fields of ``PrefillRank``."""
        rank = {**rank, "sizes": tuple(rank["sizes"]), "ranks": tuple(rank["ranks"])}
        self._engine.register(address, PrefillRank(**rank))

    def asks_topology(self) -> bool:
        """Whether the release asks for the topology at all."""
        return self._decode("").asks_topology

    def topology(self, address: str, sizes: list[int]) -> dict[str, Any] | None:
        """Ask as a decode engine of the same sizes (tp, cp, dp, pp)."""
        return self._decode(address, sizes).topology()

    def route(self, address: str, rank: list[int], sizes: list[int]) -> dict[str, Any] | None:
        """Ask for the rank (dp, cp, tp, pp)."""
        dp_rank, cp_rank, tp_rank, pp_rank = rank
        return self._decode(address, sizes).route(dp_rank, cp_rank, tp_rank, pp_rank)

    def register_dp_rank(self, address: str, room: int, dp_rank: int) -> None:
        """Tell which DP rank took a room."""
        self._engine.register_dp_rank(address, room, dp_rank)

    def query_dp_ranks(self, address: str, rooms: list[int]) -> dict[str, int]:
        """Ask for the DP ranks of rooms."""
        return self._engine.query_dp_ranks(address, rooms)

    def start_heartbeat(self, address: str, sizes: list[int], interval: float) -> bool:
        """Read the topology and watch the server from then on; false where it cannot be read."""
        self._heart = self._decode(address, sizes)
        if self._heart.topology() is None:
            return False
        self._heart.start_heartbeat(interval)
        return True

    def heartbeat(self) -> dict[str, Any]:
        """Return how the watched server looks to SGLang now."""
        heart = self._heart
        if heart is None:
            raise RuntimeError("no heartbeat was started")
        return {"beats": heart.beats, "misses": heart.misses, "known": heart.knows_server}

    def stop_heartbeat(self) -> None:
        """Stop watching."""
        if self._heart:
            self._heart.stop_heartbeat()

    def _decode(self, address: str, sizes: list[int] | None = None) -> Decode:
        tp, cp, dp, pp = sizes or (1, 1, 1, 1)
        return self._engine.decode(address, (tp, cp, dp, pp))


def main() -> None:
    # SGLang and what it imports must not write into the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    log = LogCapture().install()
    worker = Worker(Path(sys.argv[1]), *sys.argv[2:3])

    def send(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    send({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            name: str = request["call"]
            method: Callable[..., Any] | None = getattr(worker, name, None)
            if name.startswith("_") or method is None:
                raise LookupError(f"no such call: {name}")
            value = method(**request["with"])
        except Exception as error:  # some releases raise out of these calls
            traceback.print_exc()
            send({"error": f"{type(error).__name__}: {error}", "log": log.take()})
        else:
            send({"value": value, "log": log.take()})
    os._exit(0)  # the heartbeat threads of some releases never end


if __name__ == "__main__":
    main()
