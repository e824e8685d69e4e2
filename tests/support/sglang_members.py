"""The SGLang releases that this project is checked against, and the protocol that each speaks."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["HEARTBEATS", "MEMBERS", "RELEASES_VARIABLE", "Member", "chosen"]

RELEASES_VARIABLE = "BOOTSTRAP_GRPC_SGLANG_RELEASES"
"""Environment variable: ``all`` tests every release, else only those of ``_EVERYDAY``."""

_EVERYDAY = ("0.4.9.post6 mooncake", "0.5.3", "0.5.9", "0.5.23")
"""One of each of the dialects B, C, D and E."""


@dataclass(frozen=True, slots=True)
class Member:
    """One release, as one transfer backend sees it."""

    release: str
    backend: str
    """The backend whose classes are driven."""
    dialect: str
    """A letter, and a digit for what differs inside: the first column of the protocol table."""
    alone: bool = True
    """Whether the release's other backend speaks the same dialect by the same code."""

    @property
    def name(self) -> str:
        """The release, with the backend where the two differ."""
        return self.release if self.alone else f"{self.release} {self.backend}"

    @property
    def family(self) -> str:
        """The dialect's letter: inside it prefill and decode should understand each other."""
        return self.dialect[0]

    @property
    def number(self) -> tuple[int, ...]:
        """The release as numbers, to compare."""
        return tuple(map(int, self.release.replace("post", "").split(".")))

    def __str__(self) -> str:
        return self.name


MEMBERS = (
    Member("0.4.5.post3", "mooncake", "A1", alone=False),
    Member("0.4.5.post3", "nixl", "A2", alone=False),
    Member("0.4.6", "nixl", "A2", alone=False),
    Member("0.4.6.post5", "nixl", "A3", alone=False),
    Member("0.4.6", "mooncake", "B1", alone=False),
    Member("0.4.6.post5", "mooncake", "B2", alone=False),
    Member("0.4.9.post6", "nixl", "B2", alone=False),
    Member("0.5.2", "nixl", "B2", alone=False),
    Member("0.4.9.post6", "mooncake", "B3", alone=False),
    Member("0.5.2", "mooncake", "C", alone=False),
    Member("0.5.3", "mooncake", "C"),
    Member("0.5.6", "mooncake", "C"),
    Member("0.5.9", "mooncake", "D"),
    Member("0.5.10", "mooncake", "E1"),
    Member("0.5.15.post1", "mooncake", "E1"),
    Member("0.5.16", "mooncake", "E2"),
    Member("0.5.21", "mooncake", "E3"),
    Member("0.5.22", "mooncake", "E4"),
    Member("0.5.23", "mooncake", "E5"),
)
"""Oldest dialect first."""

HEARTBEATS = (
    *(member for member in MEMBERS if member.dialect in {"B3", "C", "D"} or member.family == "E"),
    # Before 0.5.13 each backend has a heartbeat thread of its own.
    Member("0.5.3", "nixl", "C", alone=False),
    Member("0.5.6", "nixl", "C", alone=False),
    Member("0.5.9", "nixl", "D", alone=False),
    Member("0.5.10", "nixl", "E1", alone=False),
)
"""Those whose decode watches ``/health``."""


def chosen(members: tuple[Member, ...]) -> list[Member]:
    """Return those of ``members`` that this run tests."""
    if os.environ.get(RELEASES_VARIABLE) == "all":
        return list(members)
    return [member for member in members if member.name in _EVERYDAY]
