"""One registered rank, and one hold on it: the records that the registry keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bootstrap_grpc.protos.errors import BootstrapError
from bootstrap_grpc.protos.model import RankKey, Registered, Registration, Route, Shape
from bootstrap_grpc.server.addresses import canonical

__all__ = ["Hold", "Identity", "Rank"]


@dataclass(frozen=True, slots=True)
class Identity:
    """What two deliveries of one registration have in common, and two registrations have not."""

    key: RankKey
    address: tuple[str, int]
    owner: str
    shape: Shape

    @classmethod
    def of(cls, registration: Registration) -> Identity:
        return cls(
            registration.key,
            (canonical(registration.rank_ip), registration.rank_port),
            registration.owner,
            registration.shape,
        )


@dataclass(slots=True, eq=False)
class Rank:
    """A rank as it was last registered, with what the registry knows of its life."""

    registration: Registration
    identity: Identity
    generation: int
    confirmed: bool = True
    """Registered in the current generation: counted and served."""
    holds: set[Hold] = field(default_factory=set["Hold"])
    removed_at: float | None = None
    """End of the hold grace, on the registry's clock; ``None`` where no grace runs."""
    _shown: tuple[Registration, Route] | None = None

    @property
    def key(self) -> RankKey:
        return self.identity.key

    @property
    def address(self) -> tuple[str, int]:
        return self.identity.address

    @property
    def owner(self) -> str:
        return self.identity.owner

    def held_by_other(self, owner: str) -> bool:
        """Whether a hold is open whose owner is not, provably, ``owner``."""
        return bool(self.holds) and not (owner and owner == self.owner)

    def __str__(self) -> str:
        """The address, as its owner spelt it."""
        ip, port = self.registration.rank_ip, self.registration.rank_port
        return f"[{ip}]:{port}" if ":" in ip and not ip.startswith("[") else f"{ip}:{port}"

    def route(self) -> Route:
        """Made once for each change: a topology of thousands of ranks asks them all."""
        held = bool(self.holds)
        if self._shown is not None:
            registration, shown = self._shown
            if (
                registration is self.registration
                and shown.generation == self.generation
                and shown.held == held
            ):
                return shown
        shown = Route(
            self.key,
            self.registration.rank_ip,
            self.registration.rank_port,
            self.generation,
            held,
            self.registration.attributes,
        )
        self._shown = (self.registration, shown)
        return shown


@dataclass(slots=True, eq=False)
class Hold:
    """A registration that lives as long as its call. Made by ``RankRegistry.hold``."""

    rank: Rank
    on_end: Callable[[BootstrapError], None]
    registered: Registered
    """The answer to the registration."""
    ended: bool = False
    """Whether the registry ended it; ``on_end`` was then called, once."""
