"""The ranks of one prefill server: who is registered where, and whether all are.

Holds the registration rules 1 to 8 of design section 4. Plain synchronous Python with an
injected clock and no I/O; not thread-safe, all calls come from one event loop.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter

from bootstrap_grpc.protos.errors import BootstrapError, ErrorCode
from bootstrap_grpc.protos.model import (
    MAX_RANKS,
    Deregistration,
    RankKey,
    Registered,
    Registration,
    Route,
    Shape,
    Topology,
    TopologyState,
)
from bootstrap_grpc.server import refusals
from bootstrap_grpc.server.addresses import Peer, canonical
from bootstrap_grpc.server.ranks import Hold, Identity, Rank
from bootstrap_grpc.server.validation import check_registration

__all__ = ["Hold", "Peer", "RankRegistry", "RegistryConfig"]

MOST_MISSING = 64
"""Missing keys that a topology names."""

_KEY_ORDER = attrgetter("dp_rank", "cp_rank", "tp_rank", "pp_rank")
"""The order of ``RankKey``, five times as fast as its own comparison."""


@dataclass(frozen=True, slots=True)
class RegistryConfig:
    """Who the registry is and how long it waits. Times are in seconds."""

    server_id: str
    """Random, new at each start of the service."""
    instance_id: str = ""
    """Names one start of the prefill engine; empty where nobody gave one."""
    hold_grace: float = 10.0
    """How long a rank stays after its hold ended."""
    settle: float = 60.0
    """Rules 3 and 4: the silence after which unconfirmed ranks count again, or a shape that was
    never READY may be replaced; also how long a replaced registration is refused as late."""

    def __post_init__(self) -> None:
        for name in ("hold_grace", "settle"):
            if not getattr(self, name) >= 0:  # NaN is neither
                raise ValueError(f"{name} is {getattr(self, name)}, must be 0 or more seconds")


class RankRegistry:
    """Registers, holds and removes ranks, and answers what is registered.

    Every method first applies what the clock has brought (ended graces, settled ranks), so that
    no answer is ever late; a timer that calls ``advance`` at ``next_deadline`` only makes the
    changes known to subscribers. A refused call raises ``BootstrapError`` and registers nothing.
    """

    def __init__(
        self,
        config: RegistryConfig,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        """``clock`` is monotonic; ``wall_clock`` only dates refusals for people. In seconds."""
        self._config = config
        self._clock = clock
        self._wall_clock = wall_clock
        self._ranks: dict[RankKey, Rank] = {}
        self._removed: dict[RankKey, Rank] = {}
        self._superseded: OrderedDict[Identity, float] = OrderedDict()
        self._refusals = refusals.Refusals()
        self._graces: list[tuple[float, RankKey]] = []
        self._shape: Shape | None = None
        self._confirmed = 0
        self._generation = 0
        self._was_ready = False
        self._last_registration = clock()
        self._version = 0
        self._changed = False
        self._ending: list[tuple[Hold, BootstrapError]] = []
        self._subscribers: dict[object, Callable[[], None]] = {}
        self._snapshot: Topology | None = None

    # --- what it is ------------------------------------------------------------------

    @property
    def server_id(self) -> str:
        return self._config.server_id

    @property
    def instance_id(self) -> str:
        return self._config.instance_id

    @property
    def version(self) -> int:
        """Rises with every change that ``topology`` shows."""
        self.advance()
        return self._version

    @property
    def state(self) -> TopologyState:
        """Costs nothing; ``topology`` builds the whole answer."""
        self.advance()
        return self._state()

    @property
    def registered(self) -> int:
        """Distinct ranks of the current generation (rule 5)."""
        self.advance()
        return self._confirmed

    def topology(self) -> Topology:
        """Everything; the same object until something changes."""
        self.advance()
        if self._snapshot is None:
            self._snapshot = self._build_topology()
        return self._snapshot

    def route(self, key: RankKey) -> Route:
        """The address of one rank. Raises RANK_NOT_FOUND, also for an unconfirmed rank."""
        self.advance()
        rank = self._ranks.get(key)
        if rank is None or not rank.confirmed:
            expected = 0 if self._shape is None or not self._ranks else self._shape.expected
            raise BootstrapError(
                ErrorCode.RANK_NOT_FOUND,
                f"rank {key} is not registered; {self._confirmed} of {expected} ranks are",
            )
        return rank.route()

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call ``on_change`` after every change, from within the call that made it.

        Returns the function that ends the subscription; calling it twice does no harm.
        """
        token = object()
        self._subscribers[token] = on_change

        def unsubscribe() -> None:
            self._subscribers.pop(token, None)

        return unsubscribe

    # --- what changes it --------------------------------------------------------------

    def register(self, registration: Registration, peer: Peer) -> Registered:
        """Register one rank by rules 1 to 8.

        Raises
        ------
        BootstrapError
            INVALID_FIELD, INSTANCE_MISMATCH, RANK_HELD, ADDRESS_SUPERSEDED or SHAPE_MISMATCH.
        """
        self._admit(registration, peer)
        self._commit()
        return self._answer()

    def hold(
        self, registration: Registration, peer: Peer, on_end: Callable[[BootstrapError], None]
    ) -> Hold:
        """Register like ``register``, and keep the rank until ``release``.

        ``on_end`` is called at most once, where the registry ends the hold: with
        GENERATION_ENDED (register again) or HOLD_ENDED (over for good). It must not call back.
        """
        rank = self._admit(registration, peer)
        hold = Hold(rank, on_end, self._answer())
        self._changed |= not rank.holds
        rank.holds.add(hold)
        self._commit()
        hold.registered = self._answer()
        return hold

    def release(self, hold: Hold) -> None:
        """The hold's call ended, however: the rank stays for the grace, then goes."""
        self.advance()
        if not hold.ended:
            hold.ended = True
            hold.rank.holds.discard(hold)
            self._start_grace(hold.rank)
        self._commit()

    def deregister(self, deregistration: Deregistration) -> Registered:
        """Remove one rank at once. Raises NOT_OWNER unless key, address and owner all match."""
        self.advance()
        rank = self._ranks.get(deregistration.key)
        address = (canonical(deregistration.rank_ip), deregistration.rank_port)
        if rank is None or rank.address != address or rank.owner != deregistration.owner:
            raise refusals.not_owner(rank, deregistration)
        ended = BootstrapError(ErrorCode.HOLD_ENDED, f"rank {rank.key} was deregistered")
        self._end_holds(rank, ended)
        self._remove(rank)
        self._commit()
        return self._answer()

    def next_deadline(self) -> float | None:
        """When ``advance`` next has something to do, on ``clock``; ``None`` for never."""
        deadlines = [deadline for deadline, _ in self._graces[:1]]
        if len(self._ranks) > self._confirmed:
            deadlines.append(self._last_registration + self._config.settle)
        return min(deadlines, default=None)

    def advance(self) -> None:
        """Apply what the clock has brought, in the order of its deadlines. Idempotent."""
        if not self._graces and len(self._ranks) == self._confirmed:
            return
        now = self._clock()
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            if self._graces and self._graces[0][0] == deadline:
                self._end_grace()
            else:
                self._settle()
        self._commit()

    # --- the rules --------------------------------------------------------------------

    def _admit(self, registration: Registration, peer: Peer) -> Rank:
        check_registration(registration, peer)
        self.advance()
        try:
            rank = self._apply(registration)
        except BootstrapError as error:
            unix_ms = round(self._wall_clock() * 1000)
            self._changed |= self._refusals.add(registration, error, unix_ms)
            self._snapshot = None  # the time of the refusal, at least, is new
            self._commit()
            raise
        self._last_registration = self._clock()
        self._changed |= self._refusals.discard(rank.key)
        return rank

    def _apply(self, registration: Registration) -> Rank:
        identity = Identity.of(registration)
        rank = self._ranks.get(identity.key)
        known = rank or self._removed.get(identity.key)
        own = known is not None and identity.owner != "" and identity.owner == known.owner
        replaces = known is not None and known.address != identity.address and not own
        self._check_instance(registration)
        if replaces and rank is not None and rank.holds:
            raise refusals.held(rank, registration)
        if not own and self._is_late(identity):
            raise refusals.superseded(registration, rank)
        conflicts = () if self._shape is None else self._shape.conflicts(registration.shape)
        if conflicts:
            self._check_shape_may_go(registration, conflicts)
            self._drop_all()
            self._begin_generation()
        elif replaces and self._was_ready:
            self._begin_generation()
        return self._place(registration, identity)

    def _check_instance(self, registration: Registration) -> None:
        """Rule 6: a surviving process of a dead engine must not poison its successor."""
        served = self._config.instance_id
        if registration.instance_id and served and registration.instance_id != served:
            raise refusals.instance_mismatch(registration, served)

    def _is_late(self, identity: Identity) -> bool:
        """Whether this very registration was replaced by another a moment ago.

        Without this a delayed or retried PUT of a dead process would put its address back in
        place of its successor's (operator case 5d; SGLang retries a PUT for up to 40 s).
        """
        until = self._superseded.get(identity)
        return until is not None and self._clock() < until

    def _check_shape_may_go(
        self, registration: Registration, conflicts: tuple[tuple[str, object, object], ...]
    ) -> None:
        """Rule 4. A group whose ranks are held by others is alive: it never goes."""
        silent = self._clock() - self._last_registration >= self._config.settle
        held = any(rank.held_by_other(registration.owner) for rank in self._ranks.values())
        if not self._ranks or (not held and (self._was_ready or silent)):
            return
        raise refusals.shape_mismatch(registration, conflicts)

    def _begin_generation(self) -> None:
        """Rule 3: the prefill server restarted. Ranks stay, but neither count nor are served."""
        self._generation += 1
        self._was_ready = False
        self._confirmed = 0
        self._shape = None
        ended = BootstrapError(
            ErrorCode.GENERATION_ENDED,
            f"generation {self._generation} of the prefill server began; register again",
        )
        for rank in self._ranks.values():
            rank.confirmed = False
            if rank.holds:
                self._end_holds(rank, ended)
                self._start_grace(rank)
        self._changed = True

    def _drop_all(self) -> None:
        """Rule 4: ranks of the old shape go, and their registrations are late from now on.

        A hold that is open now is the newcomer's own (``_check_shape_may_go``): its old handle
        must not register the old shape again.
        """
        reshaped = BootstrapError(
            ErrorCode.HOLD_ENDED, "the same owner registered with another shape"
        )
        for rank in self._ranks.values():
            self._end_holds(rank, reshaped)
        for rank in (*self._removed.values(), *self._ranks.values()):
            self._supersede(rank)
        self._ranks.clear()
        self._removed.clear()
        self._graces.clear()

    def _place(self, registration: Registration, identity: Identity) -> Rank:
        """Rules 1 and 2, and the moves of rule 3: put the rank where it says it is."""
        if not self._generation:
            self._generation = 1
        rank = self._ranks.get(identity.key)
        removed = self._removed.pop(identity.key, None)
        if rank is not None and rank.address == identity.address:
            self._refresh(rank, registration, identity)
        else:
            predecessor = rank or removed
            if rank is not None:
                moved = BootstrapError(ErrorCode.HOLD_ENDED, f"rank {rank.key} was moved")
                self._end_holds(rank, moved)
                self._confirmed -= rank.confirmed
            if predecessor is not None and predecessor.address != identity.address:
                self._supersede(predecessor)
            rank = Rank(registration, identity, self._generation)
            self._ranks[identity.key] = rank
            self._confirmed += 1
            self._changed = True
        self._superseded.pop(identity, None)
        self._agree(registration.shape)
        return rank

    def _refresh(self, rank: Rank, registration: Registration, identity: Identity) -> None:
        owner = registration.owner or rank.owner  # an HTTP refresh names none
        updated = replace(registration, owner=owner)
        if updated != rank.registration or not rank.confirmed or rank.removed_at is not None:
            self._changed = True
        rank.registration = updated
        rank.identity = replace(identity, owner=owner)
        rank.generation = self._generation
        rank.removed_at = None
        self._confirmed += not rank.confirmed
        rank.confirmed = True

    def _agree(self, shape: Shape) -> None:
        merged = shape if self._shape is None else self._shape.merged(shape)
        self._changed |= merged != self._shape
        self._shape = merged
        self._was_ready |= self._confirmed == merged.expected

    def _settle(self) -> None:
        """Rule 3: one rank rejoined a living group; the silent others are still there."""
        for rank in [rank for rank in self._ranks.values() if not rank.confirmed]:
            if self._shape is not None and self._shape.conflicts(rank.registration.shape):
                self._remove(rank)
                continue
            rank.confirmed = True
            rank.generation = self._generation
            self._confirmed += 1
            self._agree(rank.registration.shape)
        self._changed = True

    def _remove(self, rank: Rank) -> None:
        del self._ranks[rank.key]
        self._removed[rank.key] = rank
        self._confirmed -= rank.confirmed
        if not self._ranks and not self._was_ready:
            # Nobody is left to disagree with, and nobody was ever served this shape.
            self._shape = None
            self._removed.clear()
        self._changed = True

    def _supersede(self, rank: Rank) -> None:
        now = self._clock()
        while self._superseded:
            oldest, until = next(iter(self._superseded.items()))
            if until > now and len(self._superseded) < MAX_RANKS:
                break
            del self._superseded[oldest]
        self._superseded[rank.identity] = now + self._config.settle
        self._superseded.move_to_end(rank.identity)

    def _start_grace(self, rank: Rank) -> None:
        if rank.holds or self._ranks.get(rank.key) is not rank:
            return
        rank.removed_at = self._clock() + self._config.hold_grace
        heapq.heappush(self._graces, (rank.removed_at, rank.key))
        self._changed = True

    def _end_grace(self) -> None:
        deadline, key = heapq.heappop(self._graces)
        rank = self._ranks.get(key)
        # The rank may have been held again, and left again, since this entry was made.
        if rank is not None and rank.removed_at == deadline:
            self._remove(rank)

    def _end_holds(self, rank: Rank, error: BootstrapError) -> None:
        for hold in rank.holds:
            hold.ended = True
            self._ending.append((hold, error))
        rank.holds.clear()

    # --- answers ----------------------------------------------------------------------

    def _commit(self) -> None:
        """One version for all that one call changed; then tell whom it concerns."""
        if self._changed:
            self._changed = False
            self._version += 1
            self._snapshot = None
            ending, self._ending = self._ending, []
            for hold, error in ending:
                hold.on_end(error)
            for on_change in tuple(self._subscribers.values()):
                on_change()

    def _answer(self) -> Registered:
        return Registered(self.server_id, self.instance_id, self._generation, self._version)

    def _state(self) -> TopologyState:
        if not self._ranks:
            return TopologyState.EMPTY
        if self._shape is not None and self._confirmed == self._shape.expected:
            return TopologyState.READY
        return TopologyState.PARTIAL

    def _build_topology(self) -> Topology:
        shape = self._shape if self._ranks else None
        expected = shape.expected if shape else 0
        confirmed = {key: rank for key, rank in self._ranks.items() if rank.confirmed}
        missing: list[RankKey] = []
        if shape is not None and len(confirmed) < expected:
            for key in shape.keys():  # noqa: SIM118 - a method of Shape, which is no dict
                if key not in confirmed:
                    missing.append(key)
                    if len(missing) == MOST_MISSING:
                        break
        return Topology(
            self._state(),
            len(confirmed),
            expected,
            tuple(missing),
            expected - len(confirmed),
            shape,
            tuple(confirmed[key].route() for key in sorted(confirmed, key=_KEY_ORDER)),
            self._refusals.listed(),
            self.server_id,
            self.instance_id,
            self._generation,
            self._version,
        )
