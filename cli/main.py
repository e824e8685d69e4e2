"""The entry point: finds the command's module by its name and runs it."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from bootstrap_grpc.cli.exits import Failure

__all__ = ["COMMANDS", "cli", "main"]

COMMANDS = {
    "serve": "serve",
    "status": "status",
    "wait-ready": "wait_ready",
    "route": "route",
    "query": "query",
    "register": "register",
    "publish": "publish",
}
"""Each command's module in ``bootstrap_grpc.cli``, which has it as ``command``."""


class _Commands(click.Group):
    """Imports a command when it is asked for: ``query`` must not wait for ``serve``'s imports."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"bootstrap_grpc.cli.{COMMANDS[cmd_name]}")
        command: click.Command = module.command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Failure as failure:
            failure.show()
            ctx.exit(failure.exit)
        except KeyboardInterrupt:
            # As a shell reports it; click's own "Aborted!" would exit 1, which means a broken
            # service here.
            click.echo(err=True)
            ctx.exit(130)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="bootstrap-grpc", prog_name="bootstrap-grpc")
def cli() -> None:
    """Bootstrap service for prefill/decode disaggregated LLM serving.

    Exit codes: 0 ok, 1 the service broke or could not start, 2 usage, 3 not ready, 4 no contact,
    5 refused, 128+n ended by signal n. Every option also reads the environment variable that its
    help names; an option given on the command line wins.
    """


def main() -> None:
    """Runs the ``bootstrap-grpc`` command and exits with its code."""
    stdout: Any = sys.stdout
    if hasattr(stdout, "reconfigure"):
        # An id or a reason may have characters that the terminal's encoding lacks.
        stdout.reconfigure(errors="backslashreplace")
    sys.exit(cli(prog_name="bootstrap-grpc"))


if __name__ == "__main__":
    main()
