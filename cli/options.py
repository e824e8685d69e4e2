"""Options that several commands share, and the rule that names their environment variables.

The variable of ``--some-option`` is ``BOOTSTRAP_GRPC_SOME_OPTION``, in every command that has the
option, and an option of one name means the same everywhere (tested). ``--help`` shows both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from bootstrap_grpc.client.target import parse_target
from bootstrap_grpc.protos.model import MAX_RANKS

__all__ = [
    "PORT",
    "SECONDS",
    "SECONDS_OR_NONE",
    "SIZE",
    "address_option",
    "call_timeout_option",
    "environment_variable",
    "instance_id_option",
    "json_option",
    "key_options",
    "option",
]

_Command = TypeVar("_Command", bound=Callable[..., Any])

PORT = click.IntRange(1, 65_535)
SIZE = click.IntRange(1, MAX_RANKS)
_LONGEST = 1e8  # seconds, three years
_RANK = click.IntRange(0, MAX_RANKS - 1)


class _Seconds(click.FloatRange):
    """A time in seconds; neither infinite nor "nan", which no comparison refuses."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value} is no time in seconds", param, ctx)
        return seconds


SECONDS = _Seconds(min=0, min_open=True, max=_LONGEST)
SECONDS_OR_NONE = _Seconds(min=0, max=_LONGEST)


def _checked_address(_ctx: click.Context, param: click.Parameter, value: str) -> str:
    try:
        parse_target(value)
    except ValueError as error:
        raise click.BadParameter(str(error), param=param) from None
    return value


def environment_variable(name: str) -> str:
    """The environment variable of the option ``name`` (``--hold-grace``)."""
    return f"BOOTSTRAP_GRPC_{name.removeprefix('--').replace('-', '_').upper()}"


def option(*names: str, **attributes: Any) -> Callable[[_Command], _Command]:
    """``click.option`` that also reads its environment variable and shows it in ``--help``."""
    long = next(name for name in names if name.startswith("--"))
    attributes.setdefault("show_default", True)
    return click.option(*names, envvar=environment_variable(long), show_envvar=True, **attributes)


def address_option(command: _Command) -> _Command:
    return option(
        "--address",
        "-a",
        default="127.0.0.1:18998",
        metavar="HOST[:PORT]",
        callback=_checked_address,
        help="gRPC address of the service.",
    )(command)


def call_timeout_option(command: _Command) -> _Command:
    return option(
        "--call-timeout",
        type=SECONDS,
        default=5.0,
        metavar="SECONDS",
        help="How long one call may take.",
    )(command)


def json_option(command: _Command) -> _Command:
    return option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")(
        command
    )


def instance_id_option(command: _Command) -> _Command:
    return option(
        "--instance-id",
        default="",
        show_default="none",
        metavar="TEXT",
        help="Names one start of the prefill engine; a rank that names another one is refused.",
    )(command)


def key_options(command: _Command) -> _Command:
    """``--dp --cp --tp --pp``: the key of one rank."""
    for dimension, group in (
        ("pp", "pipeline-parallel"),
        ("tp", "attention tensor-parallel"),
        ("cp", "attention context-parallel"),
        ("dp", "data-parallel"),
    ):
        command = option(
            f"--{dimension}",
            type=_RANK,
            default=0,
            metavar="RANK",
            help=f"Rank in the {group} group.",
        )(command)
    return command
