"""What commands print: tables for people, one JSON document for scripts.

Values go to stdout, progress and errors to stderr. Text that a peer chose (addresses, ids,
reasons) is printed with its control characters escaped, so that it cannot drive a terminal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bootstrap_grpc.protos.model import Registered, Route, Topology

__all__ = [
    "console",
    "facts",
    "host_port",
    "print_json",
    "printable",
    "registered_json",
    "route_json",
    "table",
    "topology_json",
    "utc",
]

_PIPE_WIDTH = 160
"""Columns where stdout is no terminal and COLUMNS is unset: wide enough that tables keep whole."""


def console(*, stderr: bool = False) -> Console:
    """A console on the stdout or stderr of this moment; prints text as it is, without markup."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _PIPE_WIDTH
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


def printable(text: object) -> str:
    """``text`` with control characters escaped as in a Python literal."""
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in str(text)
    )


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A plain table; cells are never cut."""
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for header in headers:
        drawn.add_column(header, overflow="fold")
    for row in rows:
        drawn.add_row(*(cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row))
    return drawn


def host_port(host: str, port: int) -> str:
    """``host:port``, an IPv6 address in brackets."""
    return printable(f"[{host}]:{port}" if ":" in host and host[0] != "[" else f"{host}:{port}")


def facts(rows: Iterable[tuple[str, object]]) -> str:
    """One line for each name and value, the values below each other."""
    pairs = list(rows)
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name.ljust(width)}  {printable(value)}" for name, value in pairs)


def print_json(document: Any) -> None:
    click.echo(json.dumps(document, indent=2))


def utc(unix_ms: int) -> str:
    """A moment in milliseconds since the Unix epoch, as ISO 8601 in UTC."""
    try:
        moment = datetime.fromtimestamp(unix_ms // 1000, timezone.utc)
    except (ValueError, OverflowError, OSError):  # no date that the calendar knows
        return f"{unix_ms} ms"
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def registered_json(registered: Registered) -> dict[str, Any]:
    return asdict(registered)


def route_json(route: Route) -> dict[str, Any]:
    """The fields of ``Route`` in ``bootstrap.proto``."""
    return asdict(route)


def topology_json(topology: Topology) -> dict[str, Any]:
    """The fields of ``Topology`` in ``bootstrap.proto``; enums by name."""
    document = asdict(topology)
    document["state"] = topology.state.name
    for entry, rank in zip(document["refused"], topology.refused, strict=True):
        entry["code"] = rank.code.name
    return document
