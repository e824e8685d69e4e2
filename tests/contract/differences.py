"""Where this project's HTTP port answers otherwise than SGLang's own servers, and why."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DIFFERENCES", "Difference", "expected_differences"]


@dataclass(frozen=True, slots=True)
class Difference:
    """Steps of one scenario in which the answers differ on purpose."""

    scenario: str
    steps: str
    """Names of steps, separated by ``|``."""
    dialects: str
    """Dialects as in ``support.sglang_members``, separated by blanks; a letter is all of it."""
    theirs: int
    """SGLang's status."""
    ours: int
    reason: str
    same_values: bool = False
    """Both are JSON objects with different keys; a key that both have has one value."""

    def covers(self, dialect: str) -> bool:
        return any(dialect.startswith(name) for name in self.dialects.split())


# Reasons that several rows have.
_HELD = (
    "A client of A or B dies of an answer that is not 200, or of nulls, and of a table with ranks "
    "missing. Its request waits for READY; after --http-hold it is told to ask again, which its "
    "HTTP library does."
)
_HELD_RANK = (
    "As long as ranks are missing no rank is routed: the address may be that of an earlier start."
)
_DUMP = "Only A3 asks without parameters, and one port cannot tell who asks: it gets its table."
_DUMP_HELD = "Only A3 asks without parameters, and its table has to be complete."
_NOT_READY = (
    "The same as E: SGLang's server has no check for missing ranks here, and answers nulls, a "
    "part or a 500. Any answer but 200 fails that one request."
)
_NOT_READY_RANK = "As in E, no rank is routed as long as ranks are missing."
_COUNTS_RANKS = "SGLang counts calls, so that one rank twice makes two; here ranks are counted."
_KEYS_B = (
    "One reply has the keys of B1 and those of B2 and B3, which all ignore what they do not read."
)
_KEYS_C = (
    "One reply serves C and D, whose queries are the same: C ignores the page size, which is null "
    "where no rank gave one."
)
_KEYS_E = (
    "A key that a release does not know makes the reply useless to it: what has the client's own "
    "default is left out, and the six keys that are always null with it."
)
_REMAINDER = (
    "B1 asks with the number of the rank among all, later releases with that inside its DP group: "
    "the remainder is right for both."
)
_NEGATIVE = "The remainder of a negative number would be a rank."
_NO_500 = "Bad input is named, and no server fault: SGLang answers 500 and logs a stack trace."
_HEALTH = "The port serves every dialect at once, and later decodes watch /health."
_NEW_START = (
    "A rank of a complete server that comes with another address or other sizes is the first of a "
    "new start. The others' addresses are those of processes that are gone, until they register "
    "too."
)
_GROWTH = "SGLang's server keeps the first sizes that it was told for as long as it lives."
_OLDER = "Without its last parameter the query is that of an older dialect, which is served too."
_NEWEST_TEXT = "A query with no known parameter gets the newest dialect's answer."
_CHECKED = "What no later call could use is refused, instead of kept."
_TEXT_SIZE = (
    "A number as a text is the number. SGLang keeps the text, and its later answers carry it or "
    "fail."
)

DIFFERENCES = (
    Difference(
        "register",
        "nothing registered: topology|first rank: topology|first rank again: topology",
        "A1 A2",
        400,
        307,
        _DUMP_HELD,
    ),
    Difference(
        "register",
        "nothing registered: topology|first rank: topology|first rank again: topology",
        "A3 B",
        200,
        307,
        _HELD,
    ),
    Difference("register", "nothing registered: rank 0|first rank: rank 1", "A", 404, 307, _HELD),
    Difference("register", "nothing registered: rank 0|first rank: rank 1", "B", 500, 307, _HELD),
    Difference("register", "first rank: rank 0", "A B", 200, 307, _HELD_RANK),
    Difference(
        "register",
        "nothing registered: topology|first rank: topology|first rank again: topology",
        "C D",
        200,
        503,
        _NOT_READY,
    ),
    Difference(
        "register", "nothing registered: rank 0|first rank: rank 1", "C D", 500, 503, _NOT_READY
    ),
    Difference("register", "first rank: rank 0", "C D", 200, 503, _NOT_READY_RANK),
    Difference("register", "first rank again: topology", "E", 200, 503, _COUNTS_RANKS),
    Difference("register", "complete: topology", "A1 A2", 400, 200, _DUMP),
    Difference("register", "complete: topology", "B", 200, 200, _KEYS_B, same_values=True),
    Difference("register", "complete: topology", "C", 200, 200, _KEYS_C, same_values=True),
    Difference("register", "complete: topology", "E", 200, 200, _KEYS_E, same_values=True),
    Difference("unknown", "a rank too high", "B2 B3", 500, 200, _REMAINDER),
    Difference("unknown", "a rank too high", "C D", 500, 404, _NO_500),
    Difference("unknown", "a negative rank", "B1", 200, 404, _NEGATIVE),
    Difference("unknown", "a negative rank", "B2 B3 C D", 500, 404, _NO_500),
    Difference("unknown", "a topology query with one rank", "B C D", 500, 404, _NO_500),
    Difference("unknown", "health", "A B1 B2", 404, 200, _HEALTH),
    Difference(
        "dp_ranks",
        "query without the key|query of a word|a room without a DP rank|a room that is a word",
        "E",
        500,
        400,
        _NO_500,
    ),
    Difference("restart", "after one: topology", "A1 A2", 400, 307, _DUMP_HELD),
    Difference(
        "restart",
        "after one: topology|after one: rank 0|after one: rank 1",
        "A3 B",
        200,
        307,
        _NEW_START,
    ),
    Difference("restart", "after one: rank 0|after one: rank 1", "A1 A2", 200, 307, _NEW_START),
    Difference(
        "restart",
        "after one: topology|after one: rank 0|after one: rank 1",
        "C E",
        200,
        503,
        _NEW_START,
    ),
    Difference("restart", "after both: topology", "A1 A2", 400, 200, _DUMP),
    Difference("restart", "after both: topology", "B", 200, 200, _KEYS_B, same_values=True),
    Difference("restart", "after both: topology", "C", 200, 200, _KEYS_C, same_values=True),
    Difference("restart", "after both: topology", "E", 200, 200, _KEYS_E, same_values=True),
    Difference("growth", "TP2: topology|TP4: topology", "A1 A2", 400, 200, _DUMP),
    Difference("growth", "TP2: topology", "B", 200, 200, _KEYS_B, same_values=True),
    Difference("growth", "TP2: topology", "C", 200, 200, _KEYS_C, same_values=True),
    Difference("growth", "TP2: topology", "E", 200, 200, _KEYS_E, same_values=True),
    Difference(
        "growth", "TP4 has one rank: topology|TP4 has one rank: rank 1", "B", 200, 307, _NEW_START
    ),
    Difference(
        "growth",
        "TP4 has one rank: topology|TP4 has one rank: rank 1",
        "C D E",
        200,
        503,
        _NEW_START,
    ),
    Difference("growth", "TP4: topology", "B C D E", 200, 200, _GROWTH),
    Difference("growth", "TP4: rank 2|TP4: rank 3", "B1", 200, 200, _GROWTH),
    Difference("bad_queries", "without the last parameter", "B C D", 400, 200, _OLDER),
    Difference("bad_queries", "an empty parameter", "A1 A2", 400, 200, _DUMP),
    Difference("bad_queries", "a word for a rank", "A B C D E", 500, 400, _NO_500),
    Difference("bad_queries", "unknown parameters only", "A1 A2", 400, 400, _NEWEST_TEXT),
    Difference("bad_queries", "unknown parameters only", "A3", 200, 400, _NEWEST_TEXT),
    Difference(
        "bad_registrations",
        "without rank_port|a word for rank_port|no JSON|an array",
        "A B C D E",
        500,
        400,
        _NO_500,
    ),
    Difference("bad_registrations", "without role", "A B C D", 500, 400, _NO_500),
    Difference("bad_registrations", "rank_ip of another type", "E", 200, 400, _CHECKED),
    Difference("poison", "size as a text", "B", 500, 200, _TEXT_SIZE),
    Difference("poison", "afterwards: topology", "B C D", 200, 200, _TEXT_SIZE),
    Difference("poison", "afterwards: topology", "E", 500, 200, _TEXT_SIZE),
    Difference("no_size", "size 0", "B", 500, 400, _CHECKED),
    Difference("no_size", "size 0", "C D E", 200, 400, _CHECKED),
    Difference("no_size", "afterwards: topology", "B", 200, 307, _CHECKED),
    Difference("no_size", "afterwards: topology", "C D E", 200, 503, _CHECKED),
)


def expected_differences(scenario: str, dialect: str) -> dict[str, Difference]:
    """Return the row of each step that is answered otherwise in one dialect."""
    return {
        step: row
        for row in DIFFERENCES
        if row.scenario == scenario and row.covers(dialect)
        for step in row.steps.split("|")
    }
