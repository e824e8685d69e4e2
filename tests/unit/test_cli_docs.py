"""``docs/cli.md`` says what the commands have."""

from __future__ import annotations

import re
from pathlib import Path

from bootstrap_grpc.cli.exits import Exit
from bootstrap_grpc.cli.main import COMMANDS
from bootstrap_grpc.cli.reference import refreshed

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_option_tables_are_those_of_the_commands() -> None:
    page = PAGE.read_text("utf-8")
    assert page == refreshed(page), f"run: python -m bootstrap_grpc.cli.reference {PAGE}"


def test_every_command_has_its_section_and_table() -> None:
    page = PAGE.read_text("utf-8")
    assert re.findall(r"^## `(.+)`$", page, re.MULTILINE) == list(COMMANDS)
    assert re.findall(r"<!-- options: (\S+) -->", page) == list(COMMANDS)


def test_the_exit_codes_are_those_of_the_table() -> None:
    rows = re.findall(r"^\| (\d) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert [int(row) for row in rows] == [code.value for code in Exit]
