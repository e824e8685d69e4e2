"""The client of a command, and the end of a command whose call failed."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from bootstrap_grpc.cli.exits import Exit, Failure, failure_of
from bootstrap_grpc.cli.output import printable
from bootstrap_grpc.client import BootstrapClient, ClientConfig, NoContact
from bootstrap_grpc.protos.errors import BootstrapError

__all__ = ["contact", "failures"]


@contextmanager
def failures() -> Generator[None, None, None]:
    """Turns what a client raises into the command's message and exit code."""
    try:
        yield
    except NoContact as error:
        raise Failure(printable(error), Exit.NO_CONTACT) from error
    except BootstrapError as error:
        raise failure_of(error) from error


@contextmanager
def contact(address: str, call_timeout: float) -> Generator[BootstrapClient, None, None]:
    """A client of the service at ``address``; a call may take ``call_timeout`` seconds."""
    config = ClientConfig(timeout=call_timeout, register_timeout=call_timeout)
    with failures(), BootstrapClient(address, config) as client:
        yield client
