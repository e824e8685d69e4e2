"""The registration rules as a model: written from the design's text, slow and plain.

Ranks are ``tp`` numbers, addresses are ports, shapes are dicts. ``RegistryModel`` answers what
``RankRegistry`` must answer; where a call is refused its methods return the code instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bootstrap_grpc.protos.errors import ErrorCode

__all__ = ["Claim", "ModelRank", "RegistryModel"]


@dataclass(frozen=True)
class Claim:
    """A registration: who says what of which rank."""

    tp: int
    port: int
    owner: str
    size: int
    page: int | None

    @property
    def shape(self) -> dict[str, int]:
        page = {} if self.page is None else {"page": self.page}
        return {"size": self.size, **page}


@dataclass
class ModelRank:
    claim: Claim
    owner: str
    holds: set[int] = field(default_factory=set)
    confirmed: bool = True
    gone_at: float | None = None


class RegistryModel:
    def __init__(self, grace: float, settle: float) -> None:
        self.grace, self.settle = grace, settle
        self.now = 0.0
        self.ranks: dict[int, ModelRank] = {}
        self.remembered: dict[int, Claim] = {}
        """What each removed rank had registered last."""
        self.replaced: dict[Claim, float] = {}
        self.shape: dict[str, int] = {}
        self.generation = 0
        self.was_ready = False
        self.last_registration = 0.0
        self.told: list[tuple[int, ErrorCode]] = []
        self.refused: dict[int, ErrorCode] = {}

    # --- what it shows ---

    @property
    def served(self) -> dict[int, tuple[int, bool]]:
        """tp to port and whether it is held."""
        return {
            tp: (rank.claim.port, bool(rank.holds))
            for tp, rank in self.ranks.items()
            if rank.confirmed
        }

    @property
    def ready(self) -> bool:
        return bool(self.ranks) and set(self.served) == set(range(self.shape["size"]))

    # --- what happens ---

    def advance(self, seconds: float) -> None:
        """Everything happens at its own time, in order."""
        end = self.now + seconds
        while True:
            due = [r.gone_at for r in self.ranks.values() if r.gone_at is not None]
            if any(not rank.confirmed for rank in self.ranks.values()):
                due.append(self.last_registration + self.settle)
            if not due or min(due) > end:
                break
            self.now = max(self.now, min(due))
            for tp in [tp for tp, r in self.ranks.items() if r.gone_at == self.now]:
                self._remove(tp)
            if self.now >= self.last_registration + self.settle:
                self._count_silent_ranks()
        self.now = end

    def register(self, claim: Claim, hold: int | None = None) -> ErrorCode | None:
        refusal = self._refusal(claim)
        if refusal is not None:
            self.refused[claim.tp] = refusal
            return refusal
        self.refused.pop(claim.tp, None)
        self.last_registration = self.now
        self.generation = self.generation or 1
        if self._conflicts(claim):  # rule 4
            self.replaced.update(dict.fromkeys(self.remembered.values(), self.now))
            for rank in self.ranks.values():
                self.replaced[self._as_registered(rank)] = self.now
                self._end(rank, ErrorCode.HOLD_ENDED)
            self.ranks.clear()
            self.remembered.clear()
            self._begin_generation()
        elif self._known_elsewhere(claim) and not self._own(claim) and self.was_ready:
            self._begin_generation()  # rule 3
        self._put(claim)
        if hold is not None:
            self.ranks[claim.tp].holds.add(hold)
        return None

    def release(self, hold: int) -> None:
        for rank in self.ranks.values():
            if hold in rank.holds:
                rank.holds.discard(hold)
                if not rank.holds:
                    rank.gone_at = self.now + self.grace
        self.advance(0)

    def deregister(self, tp: int, port: int, owner: str) -> ErrorCode | None:
        rank = self.ranks.get(tp)
        if rank is None or (rank.claim.port, rank.owner) != (port, owner):
            return ErrorCode.NOT_OWNER
        self._end(rank, ErrorCode.HOLD_ENDED)
        self._remove(tp)
        return None

    # --- the rules ---

    def _known(self, tp: int) -> Claim | None:
        return self._as_registered(self.ranks[tp]) if tp in self.ranks else self.remembered.get(tp)

    def _own(self, claim: Claim) -> bool:
        known = self._known(claim.tp)
        return known is not None and claim.owner != "" and known.owner == claim.owner

    def _known_elsewhere(self, claim: Claim) -> bool:
        known = self._known(claim.tp)
        return known is not None and known.port != claim.port

    def _conflicts(self, claim: Claim) -> bool:
        return any(self.shape.get(name, value) != value for name, value in claim.shape.items())

    def _refusal(self, claim: Claim) -> ErrorCode | None:
        own = self._own(claim)
        held = claim.tp in self.ranks and bool(self.ranks[claim.tp].holds)
        if held and self._known_elsewhere(claim) and not own:
            return ErrorCode.RANK_HELD
        replaced_at = self.replaced.get(claim)
        if not own and replaced_at is not None and self.now < replaced_at + self.settle:
            return ErrorCode.ADDRESS_SUPERSEDED
        if self._conflicts(claim) and self.ranks:
            alive = any(
                rank.holds and not (claim.owner and claim.owner == rank.owner)
                for rank in self.ranks.values()
            )
            silent = self.now >= self.last_registration + self.settle
            if alive or not (self.was_ready or silent):
                return ErrorCode.SHAPE_MISMATCH
        return None

    def _begin_generation(self) -> None:
        self.generation += 1
        self.was_ready = False
        self.shape = {}
        for rank in self.ranks.values():
            rank.confirmed = False
            if rank.holds:
                self._end(rank, ErrorCode.GENERATION_ENDED)
                rank.gone_at = self.now + self.grace

    def _put(self, claim: Claim) -> None:
        before, known = self.ranks.get(claim.tp), self._known(claim.tp)
        if before is not None and before.claim.port == claim.port:
            before.owner = claim.owner or before.owner
            before.claim = claim
            before.confirmed, before.gone_at = True, None
        else:
            if known is not None and known.port != claim.port:
                self.replaced[known] = self.now
            if before is not None:
                self._end(before, ErrorCode.HOLD_ENDED)
            self.ranks[claim.tp] = ModelRank(claim, claim.owner)
        self.remembered.pop(claim.tp, None)
        self.replaced.pop(claim, None)
        self._learn(claim)

    def _learn(self, claim: Claim) -> None:
        self.shape = {**claim.shape, **self.shape}
        self.was_ready = self.was_ready or self.ready

    def _count_silent_ranks(self) -> None:
        for tp in [tp for tp, rank in self.ranks.items() if not rank.confirmed]:
            if self._conflicts(self.ranks[tp].claim):
                self._remove(tp)
            else:
                self.ranks[tp].confirmed = True
                self._learn(self.ranks[tp].claim)

    def _remove(self, tp: int) -> None:
        rank = self.ranks.pop(tp)
        self.remembered[tp] = self._as_registered(rank)
        if not self.ranks and not self.was_ready:
            self.shape = {}
            self.remembered.clear()

    def _end(self, rank: ModelRank, code: ErrorCode) -> None:
        self.told += [(hold, code) for hold in rank.holds]
        rank.holds.clear()

    def _as_registered(self, rank: ModelRank) -> Claim:
        return replace(rank.claim, owner=rank.owner)
