"""Tables for people and for ``benchmarks/README.md``."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

__all__ = ["ReportTable", "write_section"]

_README = Path(__file__).resolve().parents[1] / "README.md"


class ReportTable:
    """Rows of text under headings. The first column is left-aligned, the others right-aligned."""

    def __init__(self, *headings: str) -> None:
        self._headings = headings
        self._rows: list[tuple[str, ...]] = []

    def add(self, *cells: str) -> None:
        """Append a row with one cell per heading."""
        if len(cells) != len(self._headings):
            raise ValueError(f"{len(cells)} cells for {len(self._headings)} headings")
        self._rows.append(cells)

    def show(self, title: str) -> None:
        """Print the table on stdout."""
        table = Table(title=title)
        for number, heading in enumerate(self._headings):
            table.add_column(heading, justify="right" if number else "left")
        for row in self._rows:
            table.add_row(*row)
        # A file or a pipe has no width, and a cut table no use.
        console = Console()
        (console if console.is_terminal else Console(width=200)).print(table)

    def markdown(self) -> str:
        """Return the table as Markdown."""
        rule = ["---", *["---:"] * (len(self._headings) - 1)]
        return "\n".join(f"| {' | '.join(row)} |" for row in (self._headings, rule, *self._rows))


def write_section(name: str, tables: Sequence[str], *, command: str) -> None:
    """Replace the section ``name`` of ``benchmarks/README.md`` by ``tables``.

    The section stands between two marker comments, which must exist.

    :param command: what was run to get the figures.
    """
    text = _README.read_text(encoding="utf-8")
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    head, found, rest = text.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"{_README} has no section {name!r}")
    machine = f"{os.cpu_count()} CPUs, Python {platform.python_version()}, {platform.system()}"
    body = "\n\n".join([*tables, f"Written by `{command}` on {machine}."])
    _README.write_text(f"{head}{begin}{body}\n{end}{tail}", encoding="utf-8")
