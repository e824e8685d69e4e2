"""``bootstrap-grpc wait-ready``: waits until every rank is registered, as an init step does."""

from __future__ import annotations

import time
from contextlib import ExitStack

import click
from rich.status import Status

from bootstrap_grpc.cli.contact import contact
from bootstrap_grpc.cli.exits import Exit, Failure
from bootstrap_grpc.cli.options import SECONDS, address_option, json_option, option
from bootstrap_grpc.cli.output import console, print_json, topology_json
from bootstrap_grpc.cli.status import missing_lines, summary
from bootstrap_grpc.client import BootstrapClient
from bootstrap_grpc.protos.model import Topology, TopologyState

__all__ = ["command"]

_NOTE_INTERVAL = 10.0  # seconds between two progress lines in a log

_LAST_CALL = 1.0  # seconds for a last call, which tells why nothing was heard


@click.command("wait-ready")
@option(
    "--timeout",
    type=SECONDS,
    default=600.0,
    metavar="SECONDS",
    help="How long to wait in all, for the service and for the ranks.",
)
@address_option
@json_option
def command(*, timeout: float, address: str, as_json: bool) -> None:
    """Wait until every rank is registered; the service itself may start later.

    Exits 0 when READY, 3 with the missing ranks when the time is over, 4 where the service never
    answered. With --json prints the last topology in the first two cases.
    """
    with contact(address, _LAST_CALL) as client:
        topology = _wait(client, address, timeout)
    if as_json:
        print_json(topology_json(topology))
    if topology.state is not TopologyState.READY:
        text = "\n".join((summary(topology), *missing_lines(topology)))
        raise Failure(f"not ready within {timeout:g} s: {text}", Exit.NOT_READY)
    if not as_json:
        click.echo(summary(topology))


def _wait(client: BootstrapClient, address: str, timeout: float) -> Topology:
    """The first READY topology, else the last one seen. Raises NoContact where there is none."""
    seen: Topology | None = None
    with (
        _Progress(f"waiting for {address}") as progress,
        client.watch_topology(timeout=timeout) as watch,
    ):
        for seen in watch:
            if seen.state is TopologyState.READY:
                return seen
            progress.show(seen)
    return client.get_topology() if seen is None else seen


class _Progress:
    """Tells on stderr what is waited for: a moving line on a terminal, else a line at times."""

    def __init__(self, text: str) -> None:
        self._out = console(stderr=True)
        self._open = ExitStack()
        self._status: Status | None = None
        self._text = text
        self._noted = 0.0

    def __enter__(self) -> _Progress:
        if self._out.is_terminal:
            self._status = self._open.enter_context(self._out.status(self._text))
        else:
            self._out.print(self._text)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._open.close()

    def show(self, topology: Topology) -> None:
        text = f"{self._text}: {summary(topology)}"
        if self._status is not None:
            self._status.update(text)
        elif (now := time.monotonic()) - self._noted >= _NOTE_INTERVAL:
            self._noted = now
            self._out.print(text)
