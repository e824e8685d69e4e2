"""Which peers do not reuse their connections, learned from what they do (design section 6)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Habits"]

MOST_TRIALS = 2
"""Connections that a peer may close after a single request before its connections are closed for
it: each of them costs it an ephemeral port for a minute."""

TRIAL_SECONDS = 1.0
"""Time after its first reply in which an unpooled client has closed. An idle connection of a
pooled client must not count against the peer's others for ever."""


@dataclass(slots=True)
class _Peer:
    trials: list[float] = field(default_factory=list[float])
    """When each connection was kept that has not shown yet whether its client uses it again."""
    strikes: list[float] = field(default_factory=list[float])
    """When its client closed a connection after a single request."""


class Habits:
    """Tells, for each peer address, whether a connection is worth keeping after its first request.

    A kept connection is on trial until its client sends a second request (it is pooled) or closes
    (a strike). Two strikes within ``learned_for``, or a strike and a trial, or two trials: the
    next connection is closed first. Counting trials too makes the bound hold for clients that
    come at the same moment. Not thread-safe; bounded by ``max_peers``.
    """

    def __init__(
        self, clock: Callable[[], float], *, learned_for: float = 65.0, max_peers: int = 4096
    ) -> None:
        """``clock`` is monotonic, in seconds."""
        self._clock = clock
        self._learned_for = learned_for
        self._max_peers = max_peers
        self._peers: OrderedDict[str, _Peer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._peers)

    def begin_trial(self, address: str) -> float | None:
        """Keep one more connection of ``address``: the trial's token, or ``None`` to close it."""
        now = self._clock()
        peer = self._peer(address)
        # Both lists are in order of time; the newest strike decides for both.
        if peer.strikes and now - peer.strikes[-1] >= self._learned_for:
            peer.strikes.clear()
        while peer.trials and now - peer.trials[0] >= TRIAL_SECONDS:
            peer.trials.pop(0)
        if len(peer.trials) + len(peer.strikes) >= MOST_TRIALS:
            return None
        peer.trials.append(now)
        return now

    def end_trial(self, address: str, token: float, *, closed_by_peer: bool) -> None:
        """The connection of trial ``token`` was used again, or ended.

        ``closed_by_peer`` says that its client closed it after a single request.
        """
        peer = self._peer(address)
        if token in peer.trials:
            peer.trials.remove(token)
        if closed_by_peer:
            peer.strikes.append(self._clock())
            del peer.strikes[:-MOST_TRIALS]
        elif not peer.trials and not peer.strikes:
            del self._peers[address]

    def _peer(self, address: str) -> _Peer:
        peer = self._peers.get(address)
        if peer is None:
            if len(self._peers) >= self._max_peers:
                self._peers.popitem(last=False)
            peer = self._peers[address] = _Peer()
        else:
            self._peers.move_to_end(address)
        return peer
