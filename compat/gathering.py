"""Registrations that name no size: dialect A's way into a registry that wants one.

Every rank of the registry lies inside a declared shape, and READY means that all of them are
there. A registration of dialect A says "I am rank 3" and not of how many, so the size has to come
from elsewhere. With ``expected`` (``--expected-ranks``) the operator says it: each registration
goes to the registry at once, declared as one of so many, and the registry's own rules do the rest.

Without it the ranks wait here, in no one's sight, until no rank came for ``quiet`` seconds; then
they are as many as there are, and are registered whole. So the registry never serves a size that
was guessed from a part, and needs no rule of its own for ranks without a size. What came decides:

- rank 0 up to some rank, without a gap: a whole start of the prefill server, however many ranks
  the one before had;
- with gaps, but otherwise only ranks that are registered with that very address, or new ones: late
  ranks of the same start, which grows by them;
- anything else is a start of which a rank is still missing: waiting goes on, with a warning.

Lives in one event loop, like the registry behind it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from bootstrap_grpc.protos.errors import BootstrapError
from bootstrap_grpc.protos.model import RankKey, Registration, Shape
from bootstrap_grpc.server.addresses import Peer, canonical
from bootstrap_grpc.server.registry import RankRegistry
from bootstrap_grpc.server.validation import check_registration

__all__ = ["MOST_GATHERED", "Gathering"]

_log = logging.getLogger(__name__)

MOST_GATHERED = 1_024
"""Most ranks of one prefill server whose size nobody declared: they are registered in one step of
the event loop."""


class Gathering:
    """Takes registrations without sizes and hands them to the registry with one."""

    def __init__(
        self,
        registry: RankRegistry,
        *,
        expected: int | None,
        quiet: float,
        on_settled: Callable[[], None],
    ) -> None:
        """``on_settled`` is called when ``busy`` turns false."""
        self._registry = registry
        self._expected = expected
        self._quiet = quiet
        self._on_settled = on_settled
        self._waiting: dict[RankKey, tuple[Registration, Peer]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._warning = ""
        self.busy = False
        """Whether ranks wait here of which the registry does not know."""

    def register(self, registration: Registration, peer: Peer) -> None:
        """Register a rank now or later. Raises ``BootstrapError`` for what can never be."""
        if self._expected is not None:
            declared = replace(registration, shape=Shape(attn_tp_size=self._expected))
            self._registry.register(declared, peer)
            return
        check_registration(registration, peer)
        number = registration.key.tp_rank
        if number >= MOST_GATHERED:
            raise BootstrapError.invalid(
                "engine_rank",
                number,
                f"below {MOST_GATHERED:,} where no --expected-ranks is given",
            )
        self._waiting[registration.key] = (registration, peer)
        self.busy = self.busy or not self._is_registered(registration)
        self._wait()

    def stop(self) -> None:
        """Register nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        self.stop()
        self._timer = asyncio.get_running_loop().call_later(self._quiet, self._settle)

    def _settle(self) -> None:
        """No rank came for ``quiet`` seconds."""
        ranks = self._whole()
        try:
            if ranks is None:
                self._warn(f"{len(self._waiting)} ranks came, with gaps; the others are awaited")
                return
            for registration, peer in ranks:
                self._registry.register(registration, peer)
        except BootstrapError as error:
            self._warn(f"refused, to be tried again in {self._quiet:g} s: {error}")
            self._wait()
            return
        self._waiting.clear()
        self._warning = ""
        self.busy = False
        self._on_settled()

    def _whole(self) -> list[tuple[Registration, Peer]] | None:
        """What waits, with its size; ``None`` where a rank is missing."""
        waiting = [self._waiting[key] for key in sorted(self._waiting)]
        registered = self._sizes()
        count = len(waiting)
        fresh = [one for one, _ in waiting if not self._is_registered(one)]
        if not fresh:  # nothing but repetitions
            size = registered
        elif waiting[-1][0].key.tp_rank == count - 1:
            size = count
        elif all(one.key.tp_rank >= registered for one in fresh):
            size = waiting[-1][0].key.tp_rank + 1
            if size - registered != len(fresh):
                return None
            return [*self._registered(size), *self._declared(waiting, size)]
        else:
            return None
        return self._declared(waiting, size)

    @staticmethod
    def _declared(
        ranks: list[tuple[Registration, Peer]], size: int
    ) -> list[tuple[Registration, Peer]]:
        return [(replace(one, shape=Shape(attn_tp_size=size)), peer) for one, peer in ranks]

    def _registered(self, size: int) -> list[tuple[Registration, Peer]]:
        """The registry's ranks as members of a group of ``size``: another size drops them."""
        here = Peer("127.0.0.1", on_this_host=True)  # they were admitted once
        return [
            (
                Registration(
                    route.key,
                    route.rank_ip,
                    route.rank_port,
                    Shape(attn_tp_size=size),
                    route.attributes,
                ),
                here,
            )
            for route in self._registry.topology().routes
            if route.key not in self._waiting
        ]

    def _sizes(self) -> int:
        shape = self._registry.topology().shape
        return 0 if shape is None else shape.attn_tp_size

    def _is_registered(self, registration: Registration) -> bool:
        try:
            route = self._registry.route(registration.key)
        except BootstrapError:
            return False
        address = (canonical(registration.rank_ip), registration.rank_port)
        return (canonical(route.rank_ip), route.rank_port) == address

    def _warn(self, text: str) -> None:
        if text != self._warning:
            self._warning = text
            _log.warning("registrations without sizes: %s", text)
