"""``bootstrap-grpc query``: which DP rank took each room."""

from __future__ import annotations

import click

from bootstrap_grpc.cli.contact import contact
from bootstrap_grpc.cli.exits import Exit
from bootstrap_grpc.cli.options import address_option, call_timeout_option, json_option
from bootstrap_grpc.cli.output import console, print_json, table
from bootstrap_grpc.cli.words import whole_number, words
from bootstrap_grpc.protos.model import MAX_ROOM

__all__ = ["command"]


@click.command("query")
@click.argument("rooms", nargs=-1, required=True, metavar="ROOM...")
@address_option
@call_timeout_option
@json_option
@click.pass_context
def command(
    ctx: click.Context, *, rooms: tuple[str, ...], address: str, call_timeout: float, as_json: bool
) -> None:
    """Show which DP rank took each ROOM; "-" reads rooms from stdin.

    Exits 3 where a room is unknown. JSON leaves unknown rooms out, as the RPC does; its keys are
    strings, because a room may be larger than what JavaScript counts exactly.
    """
    asked = [whole_number("room", word, MAX_ROOM) for word in words(rooms)]
    with contact(address, call_timeout) as client:
        known = client.query_dp_ranks(asked)
    if as_json:
        print_json({str(room): known[room] for room in dict.fromkeys(asked) if room in known})
    else:
        rows = ((room, known.get(room, "unknown")) for room in dict.fromkeys(asked))
        console().print(table(("room", "dp rank"), rows))
    if any(room not in known for room in asked):
        ctx.exit(Exit.NOT_READY)
