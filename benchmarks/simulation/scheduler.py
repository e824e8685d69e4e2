"""One scheduler process: ``scheduler.py OPTIONS``, a JSON object made by ``run.Team``.

JSON lines, first ``{"ready": true}``. Then for each run: told ``{"join": ADDRESS, "settings": {}}``
it joins the service and says ``{"joined": true}``; told ``{"start": T, "give_up": T}`` (of
``time.monotonic``) it runs the trace, says ``{"finished": N}`` now and then, and in the end
``{"report": {}}``; told ``{"leave": true}`` it lets go of the service and says ``{"left": true}``.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import harness  # noqa: F401 # after the path; makes tests/support importable

from simulation.loops import Mail, Report, run_decode, run_prefill
from simulation.model import Settings, trace
from simulation.sides import DecodeSide, PrefillSide, decode_side, prefill_side

_TELL_EVERY = 0.25
"""Seconds."""


class Connections:
    """Counts the connections that this process opens to one port.

    Python's at each ``connect``. gRPC's, which its C core opens without a word to Python, are
    those that are there when ``count`` is called.
    """

    def __init__(self) -> None:
        self._port = 0
        self._connects = 0
        sys.addaudithook(self._hear)

    def watch(self, port: int) -> None:
        """Count from now on."""
        self._port, self._connects = port, 0

    def count(self) -> int:
        open_now = psutil.Process().net_connections(kind="tcp")
        return self._connects or sum(
            bool(each.raddr) and each.raddr.port == self._port for each in open_now
        )

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.connect" and isinstance(arguments[1], tuple):
            self._connects += arguments[1][1] == self._port


def main() -> None:
    options = json.loads(sys.argv[1])
    answers, sys.stdout = sys.stdout, sys.stderr

    def send(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    rank, is_prefill = options["rank"], options["role"] == "prefill"
    release = Path(options["release"]) if options["release"] else None
    settings = Settings(**options["settings"])
    side: PrefillSide | DecodeSide
    if is_prefill:
        side = prefill_side(release, rank, settings)
        others = [f"decode-{n}" for n in range(settings.decode)]
    else:
        side = decode_side(release, settings)
        others = [f"prefill-{n}" for n in range(settings.prefill)]
    mail = Mail(options["folder"], f"{options['role']}-{rank}", others)
    connections = Connections()
    send({"ready": True})
    try:
        while line := sys.stdin.readline():
            order = json.loads(line)
            connections.watch(int(order["join"].rpartition(":")[2]))
            side.join(order["join"])
            send({"joined": True, "errors": side.errors()})
            settings = Settings(**order["settings"])
            times = json.loads(sys.stdin.readline())
            cpu = time.process_time()
            report = run(side, rank, settings, mail, times=times, send=send)
            cpu = time.process_time() - cpu
            counted = {"cpu_seconds": cpu, "connections": connections.count()}
            send({"report": {**asdict(report), **counted, "errors": side.errors()}})
            sys.stdin.readline()
            side.leave()
            send({"left": True})
    finally:
        side.leave()
        mail.close()


def run(
    side: PrefillSide | DecodeSide,
    rank: int,
    settings: Settings,
    mail: Mail,
    *,
    times: dict[str, float],
    send: Callable[[dict[str, Any]], None],
) -> Report:
    """Run this scheduler's part of the trace."""
    told = 0.0

    def alive() -> bool:
        # Nothing is written to stdin during a run: what can be read is its end.
        ended, _, _ = select.select([sys.stdin], [], [], 0)
        return not ended and time.monotonic() < times["give_up"]

    def on_finished(count: int) -> None:
        nonlocal told
        if time.monotonic() - told > _TELL_EVERY:
            told = time.monotonic()
            send({"finished": count})

    requests = trace(settings)
    if isinstance(side, PrefillSide):
        own = [request for request in requests if request.prefill == rank]
        return run_prefill(side, settings, own, mail, start=times["start"], alive=alive)
    own = [request for request in requests if request.decode == rank]
    start = times["start"]
    return run_decode(side, settings, own, mail, start=start, alive=alive, on_finished=on_finished)


if __name__ == "__main__":
    main()
