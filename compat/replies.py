"""A reply before it has a transport, and how its connection ends."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from bootstrap_grpc.protos.errors import BootstrapError
from bootstrap_grpc.protos.status import HTTP_STATUS

__all__ = ["BYTES", "JSON", "OK", "TEXT", "Closing", "Reply", "json_reply", "refusal", "text_reply"]

TEXT = "text/plain; charset=utf-8"
JSON = "application/json; charset=utf-8"
BYTES = "application/octet-stream"


class Closing(Enum):
    """Who closes the connection after a reply to a client that would keep it alive."""

    SERVER = auto()
    """The server, always: no SGLang release uses such a connection again."""
    CLIENT = auto()
    """The client: it is known to use the connection again."""
    LEARNED = auto()
    """As the client's address has shown: some releases pool these calls, others do not."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Status, body and what else the headers say of it."""

    status: int
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()
    """Headers that no other reply has: ``Allow`` of a 405, ``Location`` of a 307."""


def text_reply(status: int, text: str) -> Reply:
    return Reply(status, text.encode("utf-8", "replace"))


def json_reply(body: bytes, status: int = 200) -> Reply:
    return Reply(status, body, JSON)


def refusal(error: BootstrapError) -> Reply:
    """What a refused call answers: the status of its code and the text of the error."""
    return text_reply(HTTP_STATUS[error.code], str(error))


OK = text_reply(200, "OK")
