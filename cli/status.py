"""``bootstrap-grpc status``: how complete the topology is, drawn as a grid of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import click
from rich.console import Console, RenderableType
from rich.text import Text

from bootstrap_grpc.cli.contact import contact
from bootstrap_grpc.cli.exits import Exit
from bootstrap_grpc.cli.grid import ASCII, UNICODE, grid
from bootstrap_grpc.cli.options import address_option, call_timeout_option, json_option, option
from bootstrap_grpc.cli.output import (
    console,
    facts,
    host_port,
    print_json,
    printable,
    table,
    topology_json,
    utc,
)
from bootstrap_grpc.protos.model import RankKey, Shape, Topology, TopologyState

__all__ = ["command", "missing_lines", "summary"]

_STATE_STYLES = {
    TopologyState.EMPTY: "bold red",
    TopologyState.PARTIAL: "bold yellow",
    TopologyState.READY: "bold green",
}
_KEYS_A_LINE = 4


@click.command("status")
@address_option
@call_timeout_option
@json_option
@option("--routes", is_flag=True, help="Also list the address of each rank.")
@option("--check", is_flag=True, help="Exit 3 unless every rank is registered.")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    address: str,
    call_timeout: float,
    as_json: bool,
    routes: bool,
    check: bool,
) -> None:
    """Show which ranks are registered, missing and refused.

    Exits 0 where the service answers, complete or not; with --check 3 unless it is READY.
    """
    with contact(address, call_timeout) as client:
        topology = client.get_topology()
    if as_json:
        print_json(topology_json(topology))
    else:
        out = console()
        for part in _report(topology, address, out, routes=routes):
            out.print(part, soft_wrap=isinstance(part, Text))
    if check and topology.state is not TopologyState.READY:
        ctx.exit(Exit.NOT_READY)


def summary(topology: Topology) -> str:
    """The state in one line: ``PARTIAL: 3 of 4 ranks registered``."""
    if topology.state is TopologyState.EMPTY:
        return "EMPTY: no rank is registered"
    return (
        f"{topology.state.name}: {topology.registered:,} of {topology.expected:,} ranks registered"
    )


def missing_lines(topology: Topology) -> Iterator[str]:
    """Names the missing ranks, as far as the service names them (64)."""
    if not topology.missing_total:
        return
    yield f"Missing ({topology.missing_total:,}):"
    keys = [_padded(key) for key in topology.missing]
    for start in range(0, len(keys), _KEYS_A_LINE):
        yield ("  " + "  ".join(keys[start : start + _KEYS_A_LINE])).rstrip()
    if more := topology.missing_total - len(keys):
        yield f"  and {more:,} more"


def _report(
    topology: Topology, address: str, out: Console, *, routes: bool
) -> Iterator[RenderableType]:
    style = _STATE_STYLES[topology.state]
    state, _, counts = summary(topology).partition(":")
    yield Text.assemble((state, style), f":{counts}")
    yield Text(facts(_facts(topology, address)))
    symbols = UNICODE if out.encoding.startswith("utf") else ASCII
    if drawn := grid(topology, symbols, out.width):
        yield Text()
        yield from drawn
    for line in missing_lines(topology):
        yield Text(line)
    if topology.refused:
        yield Text()
        yield Text(f"Refused ({len(topology.refused):,}):")
        for rank in topology.refused:
            yield Text(
                f"  {rank.key} at {host_port(rank.rank_ip, rank.rank_port)},"
                f" {utc(rank.refused_at_unix_ms)}, {rank.code.name}: {printable(rank.reason)}"
            )
    if routes and topology.routes:
        yield Text()
        yield table(
            ("rank", "address", "held", "generation"),
            (
                (
                    route.key,
                    host_port(route.rank_ip, route.rank_port),
                    "yes" if route.held else "no",
                    route.generation,
                )
                for route in topology.routes
            ),
        )


def _facts(topology: Topology, address: str) -> Iterator[tuple[str, object]]:
    yield "address", address
    yield "server id", topology.server_id
    yield "instance id", topology.instance_id or "-"
    yield "generation", topology.generation
    yield "version", topology.version
    if topology.shape is not None:
        yield "shape", _shape(topology.shape)


def _shape(shape: Shape) -> str:
    """The sizes, then whatever else was declared."""
    sizes = (
        f"dp {shape.dp_size}, cp {shape.attn_cp_size}, tp {shape.attn_tp_size}, pp {shape.pp_size}"
    )
    rest = (
        f"{field.name} {value}"
        for field in fields(shape)
        if not field.name.endswith("_size") or field.name == "page_size"
        if (value := getattr(shape, field.name)) is not None
    )
    return ", ".join((sizes, *rest))


def _padded(key: RankKey) -> str:
    return str(key).ljust(len("dp00 cp00 tp00 pp00"))
