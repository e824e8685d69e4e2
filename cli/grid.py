"""Draws the ranks of a prefill server: a dp rank is a row, its cp, tp and pp ranks are columns.

A server that does not fit is summarised instead, one row of counts for a range of dp ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import product

from rich.console import RenderableType
from rich.text import Text

from bootstrap_grpc.cli.output import table
from bootstrap_grpc.protos.model import RankKey, Shape, Topology

__all__ = ["ASCII", "UNICODE", "Cell", "Symbols", "cells", "grid", "legend"]

_MOST_CELLS = 1024
"""More ranks than this are summarised on any terminal: nobody reads such a grid."""

_MOST_ROWS = 64
"""Most rows of a grid."""

_SUMMARY_ROWS = 32
"""Most rows of a summary."""


class Cell(Enum):
    """How one declared rank stands. The value is the words of the legend."""

    HELD = "held"
    REGISTERED = "registered, not held: a restart of the service forgets it"
    MISSING = "missing"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Symbols:
    """One character and one style for each cell."""

    held: str
    registered: str
    missing: str
    refused: str

    def text(self, cell: Cell) -> Text:
        return Text(getattr(self, cell.name.lower()), style=_STYLES[cell])


UNICODE = Symbols(held="●", registered="○", missing="·", refused="✗")
ASCII = Symbols(held="#", registered="o", missing=".", refused="x")
"""For an output encoding that lacks the Unicode symbols."""

_STYLES = {
    Cell.HELD: "green",
    Cell.REGISTERED: "yellow",
    Cell.MISSING: "dim",
    Cell.REFUSED: "bold red",
}


def cells(topology: Topology) -> dict[RankKey, Cell]:
    """Every declared rank in key order; empty while no shape is known.

    A rank that is served counts as such even where a later registration of its key was refused.
    """
    if topology.shape is None:
        return {}
    served = {route.key: Cell.HELD if route.held else Cell.REGISTERED for route in topology.routes}
    refused = {rank.key for rank in topology.refused}
    return {
        key: served.get(key) or (Cell.REFUSED if key in refused else Cell.MISSING)
        for key in topology.shape.keys()  # noqa: SIM118 - a method of Shape, which is no mapping
    }


def grid(topology: Topology, symbols: Symbols, width: int) -> list[RenderableType]:
    """Grid and legend; a summary for more than 1,024 cells, 64 rows or ``width`` columns."""
    if topology.shape is None:
        return []
    ranks = cells(topology)
    shape = topology.shape
    if len(ranks) <= _MOST_CELLS and shape.dp_size <= _MOST_ROWS:
        lines = _drawn(ranks, shape, symbols)
        if max(line.cell_len for line in lines) <= width:
            return [*lines, Text(), legend(ranks, symbols)]
    return [_summary(ranks, shape)]


def legend(ranks: Mapping[RankKey, Cell], symbols: Symbols) -> Text:
    """The symbols that occur in a grid of ``ranks``, with their meaning."""
    present = set(ranks.values())
    return Text("   ").join(
        Text.assemble(symbols.text(cell), f" {cell.value}") for cell in Cell if cell in present
    )


def _drawn(ranks: Mapping[RankKey, Cell], shape: Shape, symbols: Symbols) -> list[Text]:
    sizes = (("cp", shape.attn_cp_size), ("tp", shape.attn_tp_size), ("pp", shape.pp_size))
    columns = list(product(*(range(size) for _, size in sizes)))
    cell_width = max(len(str(size - 1)) for _, size in sizes)
    label_width = len(f"dp {shape.dp_size - 1}")
    lines: list[Text] = []
    for axis, (name, size) in enumerate(sizes):
        if size > 1:
            numbers = (str(column[axis]).rjust(cell_width) for column in columns)
            lines.append(Text(" ".join((name.ljust(label_width), *numbers)), style="dim"))
    for dp_rank in range(shape.dp_size):
        line = Text(f"dp {dp_rank}".ljust(label_width))
        for column in columns:
            line.append(" " * cell_width)
            line.append_text(symbols.text(ranks[RankKey(dp_rank, *column)]))
        lines.append(line)
    return lines


def _summary(ranks: Mapping[RankKey, Cell], shape: Shape) -> RenderableType:
    step = -(-shape.dp_size // _SUMMARY_ROWS)
    counts: dict[int, Counter[Cell]] = {}
    for key, cell in ranks.items():
        counts.setdefault(key.dp_rank // step, Counter())[cell] += 1
    return table(
        ("dp", "ranks", "held", "not held", "missing", "refused"),
        (
            (
                _span(band * step, min((band + 1) * step, shape.dp_size) - 1),
                count.total(),
                *(count[cell] for cell in Cell),
            )
            for band, count in counts.items()
        ),
    )


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
