"""The words of each refusal of the registration rules, and the list of ranks that were refused.

What peers sent is abbreviated: a status travels in trailing metadata, which gRPC limits to 8 KiB.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from bootstrap_grpc.protos.errors import BootstrapError, ErrorCode, FieldError, abbreviated
from bootstrap_grpc.protos.model import Deregistration, RankKey, RefusedRank, Registration
from bootstrap_grpc.server.ranks import Rank

__all__ = ["Refusals", "held", "instance_mismatch", "not_owner", "shape_mismatch", "superseded"]

MOST_REFUSED = 64
"""Refused ranks that are listed, the newest."""


class Refusals:
    """Ranks whose last registration was refused, until their key registers."""

    def __init__(self) -> None:
        self._ranks: OrderedDict[RankKey, RefusedRank] = OrderedDict()

    def add(self, registration: Registration, error: BootstrapError, unix_ms: int) -> bool:
        """List the rank; true where this says anything new.

        A rank that is refused once a second must not wake every watcher once a second.
        """
        refused = RefusedRank(
            registration.key,
            registration.rank_ip,
            registration.rank_port,
            error.code,
            str(error),
            unix_ms,
        )
        before = self._ranks.pop(refused.key, None)
        self._ranks[refused.key] = refused
        if len(self._ranks) > MOST_REFUSED:
            self._ranks.popitem(last=False)
        return before is None or replace(before, refused_at_unix_ms=unix_ms) != refused

    def discard(self, key: RankKey) -> bool:
        """The key registered; true where it was listed."""
        return self._ranks.pop(key, None) is not None

    def listed(self) -> tuple[RefusedRank, ...]:
        return tuple(self._ranks.values())


def instance_mismatch(registration: Registration, served: str) -> BootstrapError:
    asked = registration.instance_id
    return BootstrapError(
        ErrorCode.INSTANCE_MISMATCH,
        f"rank {registration.key} belongs to instance {abbreviated(asked)}, this service to "
        f"{abbreviated(served)}",
        (FieldError("instance_id", _cut(asked), _cut(served)),),
    )


def held(rank: Rank, registration: Registration) -> BootstrapError:
    return BootstrapError(
        ErrorCode.RANK_HELD,
        f"rank {rank.key} is held at {rank} by {_owner(rank.owner)}; refused "
        f"{registration.rank_ip}:{registration.rank_port} of {_owner(registration.owner)}",
        (FieldError("rank_ip", registration.rank_ip, rank.registration.rank_ip),),
    )


def superseded(registration: Registration, successor: Rank | None) -> BootstrapError:
    instead = "" if successor is None else f"; it is at {successor} now"
    return BootstrapError(
        ErrorCode.ADDRESS_SUPERSEDED,
        f"rank {registration.key} at {registration.rank_ip}:{registration.rank_port} was replaced "
        f"a moment ago{instead}",
        (FieldError("rank_port", str(registration.rank_port), str(successor or "")),),
    )


def shape_mismatch(
    registration: Registration, conflicts: tuple[tuple[str, object, object], ...]
) -> BootstrapError:
    differences = ", ".join(
        f"{name} is {abbreviated(theirs)} and not {abbreviated(ours)}"
        for name, ours, theirs in conflicts
    )
    return BootstrapError(
        ErrorCode.SHAPE_MISMATCH,
        f"rank {registration.key} disagrees with the registered ranks: {differences}",
        tuple(
            FieldError(f"shape.{name}", _cut(theirs), _cut(ours))
            for name, ours, theirs in conflicts
        ),
    )


def not_owner(rank: Rank | None, deregistration: Deregistration) -> BootstrapError:
    if rank is None:
        text = f"rank {deregistration.key} is not registered"
    else:
        text = (
            f"rank {rank.key} is registered at {rank} by {_owner(rank.owner)}, not at "
            f"{deregistration.rank_ip}:{deregistration.rank_port} by {_owner(deregistration.owner)}"
        )
    return BootstrapError(ErrorCode.NOT_OWNER, text)


def _cut(value: object, most: int = 80) -> str:
    text = str(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _owner(owner: str) -> str:
    return f"owner {_cut(owner)}" if owner else "an unnamed owner (HTTP)"
