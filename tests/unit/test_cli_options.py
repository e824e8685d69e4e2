"""Options: their environment variables, and what counts as a usage error."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from bootstrap_grpc.cli.main import COMMANDS, cli
from bootstrap_grpc.cli.options import environment_variable
from support.cli_invoke import invoke

ADDRESS = ["--address", "127.0.0.1:1"]
RANK = ["--rank-ip", "127.0.0.1", "--rank-port", "17001"]


def command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


def options(name: str) -> Iterator[click.Option]:
    return (param for param in command(name).params if isinstance(param, click.Option))


def long_name(option: click.Option) -> str:
    return next(name for name in option.opts if name.startswith("--"))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_reads_the_variable_that_its_name_tells(name: str) -> None:
    shown = invoke(name, "-h")
    assert shown.exit_code == 0
    text = " ".join(shown.stdout.split())
    for option in options(name):
        assert option.envvar == environment_variable(long_name(option))
        assert option.help
        assert f"env var: {option.envvar}" in text


def test_an_option_of_one_name_means_the_same_in_every_command() -> None:
    meanings: dict[str, set[tuple[object, ...]]] = {}
    for name in COMMANDS:
        for option in options(name):
            meaning = option.help, str(option.type), option.default, option.multiple
            meanings.setdefault(long_name(option), set()).add(meaning)
    assert {name: len(found) for name, found in meanings.items() if len(found) != 1} == {}
    assert "BOOTSTRAP_GRPC_ADDRESS" in map(environment_variable, meanings)
    assert "BOOTSTRAP_GRPC_HTTP_PORT" in map(environment_variable, meanings)


@pytest.mark.parametrize("name", COMMANDS)
def test_long_help_is_short_help(name: str) -> None:
    assert invoke(name, "-h").stdout == invoke(name, "--help").stdout


def test_help_lists_the_commands_and_the_exit_codes() -> None:
    shown = invoke("--help")
    assert shown.exit_code == 0
    assert [name for name in COMMANDS if name not in shown.stdout] == []
    assert "3 not ready, 4 no contact, 5 refused" in " ".join(shown.stdout.split())


def test_version() -> None:
    shown = invoke("--version")
    assert shown.exit_code == 0
    assert shown.stdout.startswith("bootstrap-grpc, version ")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["unknown"], "unknown"),
        (["status", "--address", "http://127.0.0.1:18998"], "without a scheme"),
        (["status", "--address", "127.0.0.1:0"], "from 1 to 65535"),
        (["status", "--call-timeout", "nan"], "--call-timeout"),
        (["status", "--call-timeout", "inf"], "--call-timeout"),
        (["status", "--call-timeout", "0"], "--call-timeout"),
        (["wait-ready", "--timeout", "-1"], "--timeout"),
        (["route", "--dp", "-1"], "--dp"),
        (["route", "--tp", "65536"], "--tp"),
        (["query"], "ROOM"),
        (["query", *ADDRESS, "--", "-1"], "room is '-1'"),
        (["query", *ADDRESS, "18446744073709551616"], "room is '18446744073709551616'"),
        (["query", *ADDRESS, "9" * 5000], "room is '999"),
        (["query", *ADDRESS, "1e3"], "room is '1e3'"),
        (["query", *ADDRESS, "²"], "room is '²'"),
        (["publish", *ADDRESS, "1"], "'1' is not ROOM=DP_RANK"),
        (["publish", *ADDRESS, "1=65536"], "dp rank is '65536'"),
        (["publish", *ADDRESS, "=0"], "room is ''"),
        (["register"], "--rank-ip"),
        (["register", *RANK, "--rank-port", "0"], "--rank-port"),
        (["register", *RANK, "--tp-size", "0"], "--tp-size"),
        (["register", *RANK, "--attribute", "key"], "'key' is not KEY=JSON"),
        (["register", *RANK, "--attribute", "key=text"], "'text' is not JSON"),
        (["serve", "--port", "65536"], "--port"),
        (["serve", "--http-omit", "no_such_key"], "no_such_key"),
        (["serve", "--log-level", "loud"], "--log-level"),
        (["serve", "--drain-timeout", "nan"], "--drain-timeout"),
        (["serve", "--port-file", "/no/such/folder/ports"], "/no/such/folder"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_a_bad_value_exits_2_and_names_itself(arguments: list[str], names: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert names in " ".join(result.stderr.split())


def test_a_bad_value_of_the_environment_names_its_option() -> None:
    result = invoke("serve", env={"BOOTSTRAP_GRPC_PORT": "many"})
    assert result.exit_code == 2
    assert "'--port'" in result.stderr
    assert "many" in result.stderr


def test_a_service_that_is_not_there_exits_4() -> None:
    result = invoke("status", env={"BOOTSTRAP_GRPC_ADDRESS": "127.0.0.1:1"})
    assert result.exit_code == 4
    assert result.stderr.startswith("Error: no contact with 127.0.0.1:1: ")
