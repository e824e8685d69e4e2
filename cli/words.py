"""Arguments that may also come from stdin, and the whole numbers in them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import click

__all__ = ["whole_number", "words"]


def words(arguments: Iterable[str]) -> Iterator[str]:
    """The arguments, with ``-`` replaced by the words of stdin."""
    for argument in arguments:
        if argument == "-":
            yield from sys.stdin.read().split()
        else:
            yield argument


def whole_number(what: str, word: str, most: int) -> int:
    """``word`` as an integer from 0 to ``most``; a usage error that names ``what`` otherwise."""
    if word.isascii() and word.isdigit() and len(word) <= 20 and (number := int(word)) <= most:
        return number
    raise click.UsageError(f"{what} is {word[:80]!r}, must be an integer from 0 to {most}")
