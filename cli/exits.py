"""What the exit code of a command means: one table, the same for every command."""

from __future__ import annotations

from enum import IntEnum

import click

from bootstrap_grpc.cli.output import printable
from bootstrap_grpc.protos.errors import BootstrapError, ErrorCode

__all__ = ["EXIT_OF_ERROR", "Exit", "Failure", "failure_of"]


class Exit(IntEnum):
    """Exit codes. A command that a signal ended exits with 128 + the signal's number."""

    OK = 0
    """It worked."""
    FAILED = 1
    """The service could not start (a port in use, say), or a part of it broke."""
    USAGE = 2
    """A bad option or value; nothing was sent."""
    NOT_READY = 3
    """The service answered, but what was asked for is not there yet."""
    NO_CONTACT = 4
    """The service did not answer."""
    REFUSED = 5
    """The service answered and refused the call; the text says why."""


EXIT_OF_ERROR: dict[ErrorCode, Exit] = {
    ErrorCode.INVALID_FIELD: Exit.REFUSED,
    ErrorCode.RANK_NOT_FOUND: Exit.NOT_READY,
    ErrorCode.NOT_READY: Exit.NOT_READY,
    ErrorCode.SHAPE_MISMATCH: Exit.REFUSED,
    ErrorCode.RANK_HELD: Exit.REFUSED,
    ErrorCode.ADDRESS_SUPERSEDED: Exit.REFUSED,
    ErrorCode.INSTANCE_MISMATCH: Exit.REFUSED,
    ErrorCode.NOT_OWNER: Exit.REFUSED,
    ErrorCode.GENERATION_ENDED: Exit.REFUSED,
    ErrorCode.HOLD_ENDED: Exit.REFUSED,
    ErrorCode.LIMIT_EXCEEDED: Exit.REFUSED,
    ErrorCode.UNIMPLEMENTED: Exit.REFUSED,
    ErrorCode.DRAINING: Exit.NO_CONTACT,
    ErrorCode.INTERNAL: Exit.REFUSED,
}
"""The exit code of a refused call (tested for completeness)."""


class Failure(click.ClickException):
    """Ends a command with ``Error: message`` on stderr and ``exit``."""

    def __init__(self, message: str, exit: Exit) -> None:  # noqa: A002 - what it is
        super().__init__(message)
        self.exit = exit


def failure_of(error: BootstrapError) -> Failure:
    """The end of a command whose call was refused."""
    return Failure(printable(error), EXIT_OF_ERROR[error.code])
