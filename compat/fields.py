"""Typed reading of JSON bodies, with errors that name the field and the value.

Accepts what SGLang's own server accepts through ``int()`` where it means an integer (``17000``,
``"17000"``, ``" 0"``), and nothing that ``int()`` would silently change (``1.9``, ``true``).
Every function raises ``BootstrapError`` with INVALID_FIELD. No state: thread-safe.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, cast

from bootstrap_grpc.protos.errors import BootstrapError, ErrorCode, FieldError, abbreviated

__all__ = [
    "JsonObject",
    "boolean",
    "integer",
    "integers",
    "json_text",
    "optional",
    "parse_object",
    "required",
    "text",
]

JsonObject = Mapping[str, object]

_MOST_DIGITS = 64
"""Longest text that may stand for an integer: far above 2^64-1, with room for blanks."""

_KINDS: dict[type, str] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


def parse_object(body: bytes) -> JsonObject:
    """The JSON object that ``body`` is, whatever its Content-Type said."""
    try:
        value: object = _DECODER.decode(body.decode().removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        raise _not_json(str(error)) from None
    except UnicodeDecodeError as error:
        raise _not_json(f"byte {error.start} is no UTF-8") from None
    except RecursionError:
        raise _not_json("it is nested too deeply") from None
    except ValueError as error:
        raise _not_json(str(error).partition(";")[0]) from None
    if not isinstance(value, dict):
        kind = _KINDS.get(type(value), "something else")
        raise BootstrapError(
            ErrorCode.INVALID_FIELD,
            f"the body is {kind}, must be a JSON object",
            (FieldError("body", kind, "an object"),),
        )
    return cast("JsonObject", value)


def required(data: JsonObject, name: str) -> object:
    """The value of ``name``, which may be null."""
    try:
        return data[name]
    except KeyError:
        raise BootstrapError(
            ErrorCode.INVALID_FIELD, f"{name} is missing", (FieldError(name, "missing"),)
        ) from None


def optional(data: JsonObject, name: str) -> object | None:
    """The value of ``name``; ``None`` where it is absent or null."""
    return data.get(name)


def integer(field: str, value: object, least: int, most: int) -> int:
    """``value`` as an integer from ``least`` to ``most``: a JSON integer, or a text of one."""
    number = value
    if isinstance(value, str) and len(value) <= _MOST_DIGITS:
        try:
            number = int(value)
        except ValueError:
            number = None
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        raise BootstrapError.invalid(field, value, f"an integer from {least} to {most}")
    return number


def integers(field: str, value: object, most: int, limit: int) -> list[int]:
    """``value`` as a list of at most ``limit`` integers from 0 to ``most``."""
    if not isinstance(value, list):
        raise BootstrapError.invalid(field, value, "an array of integers")
    items: list[Any] = value  # pyright: ignore[reportUnknownVariableType] - JSON is untyped
    if len(items) > limit:  # millions of items read one by one would hold up the event loop
        raise BootstrapError.limit(field, len(items), limit)
    # The common case, all JSON integers in range, is decided in C: this is SGLang's hottest call.
    if not items or (set(map(type, items)) == {int} and min(items) >= 0 and max(items) <= most):
        return items
    return [integer(f"{field}[{i}]", item, 0, most) for i, item in enumerate(items)]


def text(field: str, value: object) -> str:
    """``value`` as a string that UTF-8 can carry."""
    if not isinstance(value, str) or not _is_unicode(value):
        raise BootstrapError.invalid(field, value, "a string")
    return value


def boolean(field: str, value: object) -> bool:
    """``value`` as a boolean; 0 and "false" are none."""
    if not isinstance(value, bool):
        raise BootstrapError.invalid(field, value, "true or false")
    return value


def json_text(field: str, value: object) -> str:
    """``value`` as one JSON text: equal values have equal texts."""
    try:
        return json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):  # 1e400 reads as infinity, which no JSON text can say
        raise BootstrapError.invalid(field, type(value).__name__, "finite and flat JSON") from None


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON may spell a lone surrogate, protobuf cannot carry it
        return False
    return True


def _not_json(reason: str) -> BootstrapError:
    return BootstrapError(
        ErrorCode.INVALID_FIELD,
        f"the body is not JSON: {reason}",
        (FieldError("body", abbreviated(reason)),),
    )


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


def _bounded_int(digits: str) -> int:
    if len(digits) > 4_300:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


_DECODER = json.JSONDecoder(
    parse_constant=_refuse_constant,
    # Before Python 3.10.7 int() has no limit of its own, and takes quadratic time.
    parse_int=None if hasattr(sys, "get_int_max_str_digits") else _bounded_int,
)
