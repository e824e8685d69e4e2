"""The table of dialects, newest first. Adding a dialect adds one module and one row."""

from __future__ import annotations

from collections.abc import Collection

from bootstrap_grpc.compat.dialects import dialect_a, dialect_b, dialect_c, dialect_d, dialect_e
from bootstrap_grpc.compat.dialects.dialect import Dialect

__all__ = ["DIALECTS", "KNOWN_KEYS", "OPTIONAL_KEYS", "dialect_of_query", "dialect_of_registration"]

DIALECTS: tuple[Dialect, ...] = (
    dialect_e.DIALECT,  # 0.5.10 to 0.5.23
    dialect_d.DIALECT,  # 0.5.8 and 0.5.9
    dialect_c.DIALECT,  # 0.5.1 to 0.5.7
    dialect_b.DIALECT,  # 0.4.6 to 0.4.10.post2, NIXL to 0.5.2
    dialect_a.DIALECT,  # 0.4.5.post1 to 0.4.5.post3, NIXL to 0.4.6.post5
)

KNOWN_KEYS = frozenset[str]().union(*(dialect.known_keys for dialect in DIALECTS))
"""Keys of a ``PUT /route`` that some dialect reads."""

OPTIONAL_KEYS = frozenset[str]().union(*(dialect.optional_keys for dialect in DIALECTS))
"""Keys of a topology reply that some dialect's clients can do without."""


def dialect_of_query(names: Collection[str]) -> Dialect:
    """The newest dialect that the parameters of a ``GET /route`` tell from all older ones.

    No parameters at all are the oldest's question for the whole table. Where no parameter is
    known the newest dialect answers, as SGLang's newest server would: with what is missing.
    """
    for dialect in DIALECTS:
        if not dialect.query_names.isdisjoint(names):
            return dialect
    return DIALECTS[0] if names else DIALECTS[-1]


def dialect_of_registration(names: Collection[str]) -> Dialect:
    """The newest dialect that the keys of a ``PUT /route`` tell from all older ones."""
    for dialect in DIALECTS:
        if not dialect.registration_names.isdisjoint(names):
            return dialect
    return DIALECTS[0]
