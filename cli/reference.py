"""The options of every command as Markdown tables, which ``docs/cli.md`` shows.

``python -m bootstrap_grpc.cli.reference docs/cli.md`` writes them anew into the page, between
``<!-- options: NAME -->`` and ``<!-- end -->``. A test fails where the page is behind.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from bootstrap_grpc.cli.main import COMMANDS, cli

__all__ = ["options_table", "refreshed"]

_BLOCK = re.compile(r"(<!-- options: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def refreshed(page: str) -> str:
    """``page`` with each table as the commands have it now."""
    return _BLOCK.sub(lambda block: f"{block[1]}{options_table(block[2])}{block[3]}", page)


def options_table(name: str) -> str:
    """One row for each option of the command ``name``."""
    context = click.Context(cli, info_name="bootstrap-grpc")
    command = cli.get_command(context, name)
    if command is None:
        raise ValueError(f"no command is named {name!r}, there are {', '.join(COMMANDS)}")
    rows = ["| option | environment | default | meaning |", "|---|---|---|---|"]
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            spelled = ", ".join(sorted(parameter.opts, key=len))
            if not parameter.is_flag:
                spelled += f" {parameter.metavar or parameter.type.name.upper()}"
            rows.append(
                f"| `{spelled}` | `{parameter.envvar}` | {_default(parameter)} | {parameter.help} |"
            )
    return "\n".join((*rows, ""))


def _default(option: click.Option) -> str:
    if option.required:
        return "required"
    if isinstance(option.show_default, str):
        return option.show_default
    known = not option.is_flag and isinstance(option.default, str | int | float)
    return f"`{option.default}`" if known else ""


def _main() -> None:
    path = Path(sys.argv[1])
    path.write_text(refreshed(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    _main()
