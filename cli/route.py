"""``bootstrap-grpc route``: the address of one rank."""

from __future__ import annotations

import click

from bootstrap_grpc.cli.contact import contact
from bootstrap_grpc.cli.options import (
    address_option,
    call_timeout_option,
    json_option,
    key_options,
)
from bootstrap_grpc.cli.output import facts, host_port, print_json, route_json
from bootstrap_grpc.protos.model import RankKey

__all__ = ["command"]


@click.command("route")
@key_options
@address_option
@call_timeout_option
@json_option
def command(
    *, dp: int, cp: int, tp: int, pp: int, address: str, call_timeout: float, as_json: bool
) -> None:
    """Show the address of one rank.

    Exits 3 where the rank is not registered.
    """
    with contact(address, call_timeout) as client:
        route = client.get_route(RankKey(dp, cp, tp, pp))
    if as_json:
        print_json(route_json(route))
        return
    attributes = route.attributes
    rows: list[tuple[str, object]] = [
        ("rank", route.key),
        ("address", host_port(route.rank_ip, route.rank_port)),
        ("held", "yes" if route.held else "no"),
        ("generation", route.generation),
    ]
    if attributes.prefill_http_port is not None:
        rows.append(("prefill_http_port", attributes.prefill_http_port))
    if attributes.agent_name is not None:
        rows.append(("agent_name", attributes.agent_name))
    rows.extend(sorted(attributes.extra_json.items()))
    click.echo(facts(rows))
