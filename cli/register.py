"""``bootstrap-grpc register``: registers one rank by hand, once or for as long as it runs."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import fields
from types import FrameType
from typing import Any, TypeVar

import click

from bootstrap_grpc.cli.contact import contact
from bootstrap_grpc.cli.logs import set_up_logging
from bootstrap_grpc.cli.options import (
    PORT,
    SIZE,
    address_option,
    call_timeout_option,
    instance_id_option,
    json_option,
    key_options,
    option,
)
from bootstrap_grpc.cli.output import facts, host_port, print_json, registered_json
from bootstrap_grpc.client import BootstrapClient
from bootstrap_grpc.protos.model import Attributes, RankKey, Registered, Registration, Shape

__all__ = ["command"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

_SIZES = (
    ("attn_tp_size", "--tp-size", "Ranks in the attention tensor-parallel group."),
    ("attn_cp_size", "--cp-size", "Ranks in the attention context-parallel group."),
    ("dp_size", "--dp-size", "Ranks in the data-parallel group."),
    ("pp_size", "--pp-size", "Ranks in the pipeline-parallel group."),
)
_SHAPE = (
    ("page_size", click.IntRange(1), "TOKENS", "Tokens in one page of the KV cache."),
    ("kv_cache_dtype", click.STRING, "TEXT", "Type of the KV cache, verbatim."),
    ("load_balance_method", click.STRING, "TEXT", "Such as follow_bootstrap_room, round_robin."),
    ("decode_allocation_policy", click.STRING, "TEXT", "Such as early."),
    ("enable_dsa_cache_layer_split", click.BOOL, "BOOLEAN", "Is the DSA cache split by layer?"),
    ("enable_kv_cache_sharding", click.BOOL, "BOOLEAN", "Is the KV cache sharded?"),
    ("kv_layout", click.STRING, "TEXT", "Layout of the KV cache."),
    ("dsv41_spec_layout_json", click.STRING, "JSON", "SGLang's dsv41_spec_layout."),
)
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_POLL = 0.2  # seconds between two looks at a hold that nothing interrupts


def _shape_options(command: _Command) -> _Command:
    for name, value_type, metavar, text in reversed(_SHAPE):
        command = option(
            f"--{name.replace('_', '-')}",
            name,
            type=value_type,
            show_default="not said",
            metavar=metavar,
            help=text,
        )(command)
    for name, long, text in reversed(_SIZES):
        command = option(long, name, type=SIZE, default=1, metavar="SIZE", help=text)(command)
    return command


def _extra(_ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """``KEY=JSON`` pairs as a map, each value checked to be JSON."""
    extra: dict[str, str] = {}
    for value in values:
        key, separator, text = value.partition("=")
        if not key or not separator:
            raise click.BadParameter(f"{value!r} is not KEY=JSON", param=param)
        try:
            json.loads(text)
        except ValueError:
            message = f"{text!r} is not JSON (a string needs its double quotes)"
            raise click.BadParameter(message, param=param) from None
        extra[key] = text
    return extra


@click.command("register")
@key_options
@option("--rank-ip", required=True, metavar="IP", help="Address at which peers dial the rank.")
@option("--rank-port", required=True, type=PORT, metavar="PORT", help="Its port.")
@_shape_options
@option("--prefill-http-port", type=PORT, metavar="PORT", help="Port of the HTTP API of its node.")
@option("--agent-name", metavar="TEXT", help="NIXL's agent name.")
@option(
    "--attribute",
    "extra_json",
    multiple=True,
    metavar="KEY=JSON",
    callback=_extra,
    help="Any other engine key, kept verbatim. May be given several times.",
)
@option(
    "--owner",
    default="",
    metavar="TEXT",
    show_default="a random name",
    help="Names the registering process, which alone may move a held rank.",
)
@instance_id_option
@option("--hold", is_flag=True, help="Keep it registered until SIGINT or SIGTERM, then leave.")
@address_option
@call_timeout_option
@json_option
def command(
    *,
    dp: int,
    cp: int,
    tp: int,
    pp: int,
    rank_ip: str,
    rank_port: int,
    prefill_http_port: int | None,
    agent_name: str | None,
    extra_json: dict[str, str],
    owner: str,
    instance_id: str,
    hold: bool,
    address: str,
    call_timeout: float,
    as_json: bool,
    **shape: Any,
) -> None:
    """Register one rank.

    Without --hold the rank stays until it is replaced or the service restarts. With --hold it is
    registered again after every restart of the service, and removed when the command ends.
    """
    registration = Registration(
        RankKey(dp, cp, tp, pp),
        rank_ip,
        rank_port,
        Shape(**{field.name: shape[field.name] for field in fields(Shape)}),
        Attributes(prefill_http_port, agent_name, extra_json),
        owner,
        instance_id,
    )
    with contact(address, call_timeout) as client:
        if hold:
            _hold(client, registration, call_timeout, as_json=as_json)
        else:
            _report(registration, client.register_rank(registration), as_json=as_json)


def _hold(
    client: BootstrapClient, registration: Registration, timeout: float, *, as_json: bool
) -> None:
    with _stop_signals() as stop:
        set_up_logging("info")  # lost and regained contact is worth a line each
        with client.hold_rank(registration) as handle:
            _report(registration, handle.wait_registered(timeout), as_json=as_json)
            while not stop.wait(_POLL):
                if handle.is_over and handle.error is not None:
                    raise handle.error


@contextmanager
def _stop_signals() -> Generator[threading.Event, None, None]:
    """An event that the first SIGINT or SIGTERM sets; a second one exits with 128 + n."""
    stop = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            sys.exit(128 + number)
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in _STOP_SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(registration: Registration, registered: Registered, *, as_json: bool) -> None:
    if as_json:
        print_json(registered_json(registered))
        return
    address = host_port(registration.rank_ip, registration.rank_port)
    rows = (
        ("registered", f"{registration.key} at {address}"),
        ("server id", registered.server_id),
        ("instance id", registered.instance_id or "-"),
        ("generation", registered.generation),
        ("version", registered.version),
    )
    click.echo(facts(rows))
