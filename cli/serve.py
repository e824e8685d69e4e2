"""``bootstrap-grpc serve``: runs the service until a signal ends it."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import click

from bootstrap_grpc.cli.exits import Exit, Failure
from bootstrap_grpc.cli.logs import LEVELS, set_up_logging
from bootstrap_grpc.cli.options import SECONDS, SECONDS_OR_NONE, SIZE, instance_id_option, option
from bootstrap_grpc.cli.portfile import PortFile
from bootstrap_grpc.cli.serving import BackgroundFault, serve_until_stopped
from bootstrap_grpc.compat.config import HttpConfig
from bootstrap_grpc.server.service import BindError, ServiceConfig

__all__ = ["command"]

_BIND_PORT = click.IntRange(0, 65_535)


def _in_a_folder(_ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(path.parent)!r}", param=param)
    return path


@click.command("serve")
@option("--host", default="127.0.0.1", metavar="HOST", help="Address to bind, for both protocols.")
@option("--port", type=_BIND_PORT, default=18998, metavar="PORT", help="gRPC; 0 picks a free one.")
@option(
    "--http-port", type=_BIND_PORT, default=8998, metavar="PORT", help="HTTP; 0 picks a free one."
)
@option("--no-http", is_flag=True, help="Serve gRPC only.")
@option(
    "--port-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    callback=_in_a_folder,
    help='Written once both are bound: {"grpc": PORT, "http": PORT, "pid": PID}.',
)
@instance_id_option
@option(
    "--drain-timeout",
    type=SECONDS_OR_NONE,
    default=3.0,
    metavar="SECONDS",
    help="How long calls under way may take once the first signal came.",
)
@option(
    "--hold-grace",
    type=SECONDS_OR_NONE,
    default=10.0,
    metavar="SECONDS",
    help="How long a held rank stays after its hold ended.",
)
@option(
    "--settle",
    type=SECONDS,
    default=60.0,
    metavar="SECONDS",
    help="How long without any registration until the ranks from before a restart count again.",
)
@option(
    "--room-lifetime",
    type=SECONDS,
    default=360.0,
    metavar="SECONDS",
    help="How long a room is kept.",
)
@option(
    "--max-rooms",
    type=click.IntRange(1),
    default=2_000_000,
    metavar="COUNT",
    help="Most rooms kept; past it the oldest go first.",
)
@option(
    "--http-omit",
    multiple=True,
    metavar="KEY",
    help="Leave a key out of HTTP topology replies (prefill_http_port for decodes before SGLang"
    " 0.5.16). May be given several times.",
)
@option(
    "--http-pass",
    multiple=True,
    metavar="KEY",
    help="Answer an attribute over HTTP where all ranks agree on it. May be given several times.",
)
@option(
    "--http-hold",
    type=SECONDS,
    default=300.0,
    metavar="SECONDS",
    help="How long a request of a decode before SGLang 0.5.1 (NIXL: 0.5.3) waits for the last"
    " rank, until it is told to ask again.",
)
@option(
    "--expected-ranks",
    type=SIZE,
    show_default="those that came, once 10 s brought no other",
    metavar="COUNT",
    help="How many ranks the prefill server has, for SGLang 0.4.5 and NIXL up to 0.4.6.post5,"
    " whose registrations do not say.",
)
@option(
    "--http-metadata",
    is_flag=True,
    help="Serve /metadata of SGLang 0.4.5 over HTTP: a bounded store that anybody may write to.",
)
@option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="info",
    metavar="LEVEL",
    help=f"Least level to log: {', '.join(LEVELS)}.",
)
def command(
    *,
    host: str,
    port: int,
    http_port: int,
    no_http: bool,
    port_file: Path | None,
    instance_id: str,
    drain_timeout: float,
    hold_grace: float,
    settle: float,
    room_lifetime: float,
    max_rooms: int,
    http_omit: tuple[str, ...],
    http_pass: tuple[str, ...],
    http_hold: float,
    expected_ranks: int | None,
    http_metadata: bool,
    log_level: str,
) -> None:
    """Run the bootstrap service of one prefill server: gRPC and HTTP on one registry.

    The first SIGTERM or SIGINT drains and exits 0; a second one exits at once. A port in use ends
    the command at once with exit code 1.
    """
    try:
        service = ServiceConfig(
            host=host,
            grpc_port=port,
            instance_id=instance_id,
            drain_timeout=drain_timeout,
            hold_grace=hold_grace,
            settle=settle,
            room_lifetime=room_lifetime,
            max_rooms=max_rooms,
        )
        http = (
            None
            if no_http
            else HttpConfig(
                host=host,
                port=http_port,
                omit=frozenset(http_omit),
                pass_keys=frozenset(http_pass),
                hold=http_hold,
                expected_ranks=expected_ranks,
                metadata=http_metadata,
            )
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    set_up_logging(log_level)
    # What is loaded stays: without this every full collection walks it, for 80 ms (measured).
    gc.collect()
    gc.freeze()
    try:
        asyncio.run(
            serve_until_stopped(service, http, None if port_file is None else PortFile(port_file))
        )
    except (BindError, BackgroundFault, OSError) as error:
        raise Failure(str(error), Exit.FAILED) from error
