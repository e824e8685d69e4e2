"""One scheduler process: ``scheduler.py OPTIONS``, a JSON object made by ``run.Team``.

JSON lines, first ``{"ready": true}``. Then for each run: told ``{"join": ADDRESS, "settings": {}}``
it joins the service and says ``{"joined": true}``; told ``{"start": T, "give_up": T}`` (of
``time.monotonic``) it runs the trace, says ``{"finished": N}`` now and then, and in the end
``{"report": {}}``; told ``{"leave": true}`` it lets go of the service and says ``{"left": true}``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import harness  # noqa: F401 # after the path; makes tests/support importable

from simulation.loops import Mail, Report, run_decode, run_prefill
from simulation.model import Settings, trace
from simulation.sides import DecodeSide, PrefillSide, decode_side, prefill_side

_TELL_EVERY = 0.25
"""Seconds."""


class ConnectCount:
    """Counts the connections that Python code of this process opens to one port.

    gRPC's, which its C core opens, are not among them.
    """

    def __init__(self) -> None:
        self.count = 0
        self.port = 0
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.connect" and isinstance(arguments[1], tuple):
            self.count += arguments[1][1] == self.port


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
    connects = ConnectCount()
    send({"ready": True})
    try:
        while line := sys.stdin.readline():
            order = json.loads(line)
            connects.port, connects.count = int(order["join"].rpartition(":")[2]), 0
            side.join(order["join"])
            send({"joined": True, "errors": side.errors()})
            settings = Settings(**order["settings"])
            times = json.loads(sys.stdin.readline())
            cpu = time.process_time()
            report = run(side, rank, settings, mail, times, send)
            cpu = time.process_time() - cpu
            counted = {"cpu_seconds": cpu, "connects": connects.count, "errors": side.errors()}
            send({"report": {**asdict(report), **counted}})
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
    times: dict[str, float],
    send: Callable[[dict[str, Any]], None],
) -> Report:
    """Run this scheduler's part of the trace."""
    told = 0.0

    def alive() -> bool:
        return time.monotonic() < times["give_up"]

    def on_finished(count: int) -> None:
        nonlocal told
        if time.monotonic() - told > _TELL_EVERY:
            told = time.monotonic()
            send({"finished": count})

    requests = trace(settings)
    if isinstance(side, PrefillSide):
        own = [request for request in requests if request.prefill == rank]
        return run_prefill(side, settings, own, mail, times["start"], alive)
    own = [request for request in requests if request.decode == rank]
    return run_decode(side, settings, own, mail, times["start"], alive, on_finished)


if __name__ == "__main__":
    main()
