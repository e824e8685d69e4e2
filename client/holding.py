"""What keeps a rank registered through anything: the decisions, without threads or I/O.

The sync and the asyncio hold both ask one ``HoldLogic`` what to send and what to do when the
stream ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from bootstrap_grpc.client.backoff import Backoff, LogBudget
from bootstrap_grpc.client.errors import (
    BootstrapError,
    ErrorCode,
    NoContact,
    Refused,
)
from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos.convert import registered_from_proto, registration_to_proto
from bootstrap_grpc.protos.model import Deregistration, Registered, Registration

__all__ = ["HoldLogic"]

_log = logging.getLogger("bootstrap_grpc.client")

_FINAL = frozenset(
    {
        ErrorCode.INVALID_FIELD,
        ErrorCode.HOLD_ENDED,
        ErrorCode.INSTANCE_MISMATCH,
        ErrorCode.UNIMPLEMENTED,
    }
)
"""Refusals that no waiting cures."""

_LASTED = 1.0
"""Seconds after which a hold counts as a success, so that the next one need not back off."""


class HoldLogic:
    """State of one hold. Not thread-safe: its driver calls it from one thread or task."""

    def __init__(
        self,
        registration: Registration,
        target: str,
        *,
        clock: Callable[[], float],
        log: LogBudget,
    ) -> None:
        registration_to_proto(registration, pb.HoldRankRequest)  # raises INVALID_FIELD at once
        self._registration = registration
        self._target = target
        self._clock = clock
        self._backoff = Backoff()
        self._log = log
        self._since: float | None = None
        self.registered: Registered | None = None
        """The service's answer while the hold is open; ``None`` otherwise."""
        self.error: BootstrapError | NoContact | None = None
        """Why the rank is not held now; ``None`` while it is."""

    def request(self) -> pb.HoldRankRequest:
        """The next message to open the stream with."""
        return registration_to_proto(self._registration, pb.HoldRankRequest)

    def deregistration(self) -> Deregistration:
        """What leaves at once, without the server's grace."""
        mine = self._registration
        return Deregistration(mine.key, mine.rank_ip, mine.rank_port, mine.owner)

    def on_response(self, response: pb.HoldRankResponse) -> None:
        """The service registered the rank. Raises ``Refused`` for another instance's service."""
        registered = registered_from_proto(response)
        own, theirs = self._registration.instance_id, registered.instance_id
        if own and theirs and own != theirs:
            # Rule 6: a survivor of a dead engine must not poison its successor.
            raise Refused(
                ErrorCode.INSTANCE_MISMATCH,
                f"{self._target} serves instance {theirs!r}, this rank belongs to {own!r}",
            )
        # From the first answer on, the hold belongs to that start of the engine.
        self._registration = replace(self._registration, instance_id=own or theirs)
        if self.error is not None:
            _log.info("rank %s is held by %s again", self._registration.key, self._target)
        self.registered, self.error, self._since = registered, None, self._clock()

    def on_end(self, error: BootstrapError | NoContact) -> float | None:
        """The stream ended. Seconds until it is opened again; ``None`` where it is over."""
        held_for = 0.0 if self._since is None else self._clock() - self._since
        self.registered, self.error, self._since = None, error, None
        key = self._registration.key
        if isinstance(error, BootstrapError) and error.code in _FINAL:
            _log.error("rank %s is no longer held by %s: %s", key, self._target, error)
            return None
        if held_for >= _LASTED:
            self._backoff.reset()
        self._log.warn(_log, f"rank {key}: {error}; trying again")
        return self._backoff.next_delay()
