"""The table of dialects, newest first. Adding a dialect adds one module and one row."""

from __future__ import annotations

from collections.abc import Collection

from bootstrap_grpc.compat.dialects import dialect_e
from bootstrap_grpc.compat.dialects.dialect import Dialect

__all__ = ["DIALECTS", "KNOWN_KEYS", "OPTIONAL_KEYS", "dialect_of_query", "dialect_of_registration"]

DIALECTS: tuple[Dialect, ...] = (dialect_e.DIALECT,)

KNOWN_KEYS = frozenset[str]().union(*(dialect.known_keys for dialect in DIALECTS))
"""Keys of a ``PUT /route`` that some dialect reads."""

OPTIONAL_KEYS = frozenset[str]().union(*(dialect.optional_keys for dialect in DIALECTS))
"""Keys of a topology reply that some dialect's clients can do without."""


def dialect_of_query(names: Collection[str]) -> Dialect:
    """The newest dialect whose parameters are all there.

    Where none fits the newest of all answers, as SGLang's newest server would: with what is
    missing.
    """
    for dialect in DIALECTS:
        if dialect.query_names.issubset(names):
            return dialect
    return DIALECTS[0]


def dialect_of_registration(names: Collection[str]) -> Dialect:
    """The newest dialect that the keys of a ``PUT /route`` may belong to."""
    for dialect in DIALECTS:
        if dialect.registration_names.issubset(names):
            return dialect
    return DIALECTS[0]
