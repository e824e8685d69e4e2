"""Commands in this process, through click's runner."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from click.testing import CliRunner, Result

from bootstrap_grpc.cli.main import cli

__all__ = ["invoke"]

# click before 8.2 mixes stdout and stderr unless told not to; later releases never do.
_OPTIONS: dict[str, Any] = (
    {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
)


def invoke(*arguments: str, env: Mapping[str, str] | None = None) -> Result:
    """Runs ``bootstrap-grpc`` with ``arguments``; ``stdout`` and ``stderr`` are apart."""
    return CliRunner(**_OPTIONS).invoke(cli, arguments, env=env)
