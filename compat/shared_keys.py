"""Live ranks that share one key: dialect D's context-parallel ranks.

SGLang 0.5.9 has context-parallel ranks but its registrations do not name them, so all those of one
attention-TP rank register with one key, each from its own address. On SGLang's own server the last
one wins; here too. To the registry, however, a known key at another address without an owner is
a prefill server that restarted (rule 3): the other ranks would count no more until they register
again, and a group of two context-parallel ranks would look restarted at its very start, and again
each time one of the two repeats itself.

A registration alone does not show whether it comes from a sibling or from a successor. Its time
does: siblings register together, when the engine has loaded its model, and a successor must first
start. So the ranks of one key which register in one *burst* (registrations of the dialect with
less than ``quiet`` seconds between them) are given one owner in common, under which the registry
moves a rank in place; a new address after that is given another owner, and is a restart. An
address keeps its owner: two siblings may take turns for ever. A repetition from before the restart
keeps the old owner, so that the registry refuses it as late.

The price: a prefill server that crashes and registers again within ``quiet`` seconds is no restart
here, as it is none on SGLang's server.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from bootstrap_grpc.protos.model import MAX_RANKS, RankKey, Registration
from bootstrap_grpc.server.addresses import Peer, canonical
from bootstrap_grpc.server.registry import RankRegistry

__all__ = ["SharedKeys"]

_MOST_ADDRESSES = 256
"""Addresses remembered for each key, of all its owners."""


@dataclass(slots=True)
class _Claim:
    """Who registered one key."""

    owner: str
    burst: int
    """The burst in which the newest address came."""
    owners: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    """The owner that each address was given, oldest first."""


class SharedKeys:
    """Hands registrations to the registry with an owner that siblings have in common."""

    def __init__(self, registry: RankRegistry, *, quiet: float, clock: Callable[[], float]) -> None:
        """``clock`` is monotonic, in seconds."""
        self._registry = registry
        self._quiet = quiet
        self._clock = clock
        self._claims: OrderedDict[RankKey, _Claim] = OrderedDict()
        self._burst = 0
        self._last = -quiet

    def register(self, registration: Registration, peer: Peer) -> None:
        """Register one rank. Raises ``BootstrapError`` as the registry does."""
        now = self._clock()
        burst = self._burst + (now - self._last >= self._quiet)
        key = registration.key
        address = (canonical(registration.rank_ip), registration.rank_port)
        claim = self._claims.get(key)
        owner = f"{key} of burst {burst}"
        if claim is not None:
            known = claim.owners.get(address)
            if known is not None:
                owner = known
            elif claim.burst == burst:
                owner = claim.owner
        self._registry.register(replace(registration, owner=owner), peer)
        # Only what was admitted counts: refused registrations must not fill the table.
        self._last = now
        self._burst = burst
        if claim is None:
            claim = self._claims[key] = _Claim(owner, burst)
        if claim.owners.pop(address, None) is None:
            claim.owner, claim.burst = owner, burst
        claim.owners[address] = owner
        while len(claim.owners) > _MOST_ADDRESSES:
            del claim.owners[next(iter(claim.owners))]
        self._claims.move_to_end(key)
        if len(self._claims) > MAX_RANKS:
            self._claims.popitem(last=False)
