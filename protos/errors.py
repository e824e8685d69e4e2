"""The error vocabulary: one code for each reason to refuse, and the exception that carries it.

``bootstrap_grpc.protos.status`` maps each code to its gRPC and its HTTP status.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["BootstrapError", "ErrorCode", "FieldError"]


class ErrorCode(IntEnum):
    """Why a call was refused. Numbers and names as in ``bootstrap.proto`` (tested)."""

    INVALID_FIELD = 1
    """A field is missing, ill-formed or out of range: the caller's mistake."""
    RANK_NOT_FOUND = 2
    """No such rank is registered."""
    NOT_READY = 3
    """Ranks are missing; ask again."""
    SHAPE_MISMATCH = 4
    """The shape disagrees with the living group's."""
    RANK_HELD = 5
    """Another owner holds the rank at another address."""
    ADDRESS_SUPERSEDED = 6
    """The address was replaced by a newer one a moment ago."""
    INSTANCE_MISMATCH = 7
    """The service belongs to another start of the engine."""
    NOT_OWNER = 8
    """The rank is registered with another address or owner."""
    GENERATION_ENDED = 9
    """A new generation began; hold the rank again at once."""
    HOLD_ENDED = 10
    """The same owner moved or deregistered the rank: the hold is over for good."""
    LIMIT_EXCEEDED = 11
    """A documented limit."""
    UNIMPLEMENTED = 12
    """Not served by this version."""
    DRAINING = 13
    """The service shuts down."""
    INTERNAL = 14
    """A fault of the service; its log has the reason."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One refused field: its path in the request, its value and what it collided with."""

    field: str
    value: str
    expected: str = ""


class BootstrapError(Exception):
    """A call was refused, and changed nothing.

    ``str(error)`` is a sentence for people; ``code`` and ``fields`` are for programs.
    """

    def __init__(self, code: ErrorCode, message: str, fields: tuple[FieldError, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.fields = fields

    @classmethod
    def invalid(cls, field: str, value: object, wanted: str) -> BootstrapError:
        """The error for a field that is missing, ill-formed or out of range.

        ``wanted`` completes the sentence "field is value, must be ...".
        """
        text = abbreviated(value)
        return cls(
            ErrorCode.INVALID_FIELD,
            f"{field} is {text}, must be {wanted}",
            (FieldError(field, text),),
        )

    @classmethod
    def missing(cls, field: str) -> BootstrapError:
        """The error for a field that must be given."""
        return cls(ErrorCode.INVALID_FIELD, f"{field} is missing", (FieldError(field, ""),))

    @classmethod
    def limit(cls, what: str, value: int, limit: int) -> BootstrapError:
        """The error for a documented limit that was passed: ``what`` names what was counted."""
        return cls(
            ErrorCode.LIMIT_EXCEEDED,
            f"{value:,} {what}, the limit is {limit:,}",
            (FieldError(what, str(value), str(limit)),),
        )


def abbreviated(value: object, most: int = 80) -> str:
    """``repr(value)``, cut to ``most`` characters: what a peer sent must not flood a log."""
    # A str or bytes is cut before repr: the peer may have sent megabytes.
    try:
        text = repr(value[:most] if isinstance(value, str | bytes) else value)
    except (ValueError, RecursionError):  # an int of more than 4,300 digits, a very deep list
        text = f"<{type(value).__name__}>"
    return text if len(text) <= most else f"{text[: most - 3]}..."
