"""Dialect D: SGLang 0.5.8 and 0.5.9. Dialect C, whose registrations also have a page size.

0.5.9 has context-parallel ranks but no word for them: those of one attention-TP rank register
with one key, and the last one counts (``compat.shared_keys``).
"""

from __future__ import annotations

from dataclasses import replace

from bootstrap_grpc.compat.dialects import dialect_c
from bootstrap_grpc.compat.dialects.dialect import Intake
from bootstrap_grpc.compat.fields import JsonObject, integer, required
from bootstrap_grpc.protos.model import Registration

__all__ = ["DIALECT"]

_KNOWN_KEYS = dialect_c.KNOWN_KEYS | {"page_size"}
_MAX_PAGE_SIZE = 2**31


def _parse_registration(data: JsonObject) -> Registration | None:
    page_size = integer("page_size", required(data, "page_size"), 1, _MAX_PAGE_SIZE)
    return dialect_c.parse_rank(data, page_size, _KNOWN_KEYS)


DIALECT = replace(
    dialect_c.DIALECT,
    name="D",
    registration_names=frozenset(["page_size"]),
    known_keys=_KNOWN_KEYS,
    intake=Intake.SHARED,
    parse_registration=_parse_registration,
)
"""The row of the table. No query chooses it: C is asked the same and answers for both."""
