"""``bootstrap-grpc publish``: says by hand which DP rank took which room."""

from __future__ import annotations

import click

from bootstrap_grpc.cli.contact import contact
from bootstrap_grpc.cli.options import address_option, call_timeout_option, json_option
from bootstrap_grpc.cli.output import print_json
from bootstrap_grpc.cli.words import whole_number, words
from bootstrap_grpc.protos.model import MAX_DP_RANK, MAX_ROOM

__all__ = ["command"]


@click.command("publish")
@click.argument("pairs", nargs=-1, required=True, metavar="ROOM=DP_RANK...")
@address_option
@call_timeout_option
@json_option
def command(*, pairs: tuple[str, ...], address: str, call_timeout: float, as_json: bool) -> None:
    """Register which DP rank took each room, as prefill ranks do; "-" reads pairs from stdin.

    Where a room is named twice, or is known already, the last rank wins.
    """
    dp_ranks = dict(_pair(word) for word in words(pairs))
    with contact(address, call_timeout) as client:
        client.register_dp_ranks(dp_ranks)
    if as_json:
        print_json({str(room): dp_rank for room, dp_rank in dp_ranks.items()})
    else:
        click.echo(f"{len(dp_ranks):,} rooms registered")


def _pair(word: str) -> tuple[int, int]:
    room, separator, dp_rank = word.partition("=")
    if not separator:
        raise click.UsageError(f"{word[:80]!r} is not ROOM=DP_RANK")
    return whole_number("room", room, MAX_ROOM), whole_number("dp rank", dp_rank, MAX_DP_RANK)
