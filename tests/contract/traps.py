"""The traps and weaknesses of SGLang's bootstrap protocol, and what covers each.

A test covers the numbers that its name gives: ``test_trap_3_and_4_...``, ``test_weakness_20_...``.
What has no such test is listed here with other tests, or with the reason why it has none.
``docs/compatibility.md`` shows the whole.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["COVERED", "Covered", "existing_tests"]

_TESTS = Path(__file__).resolve().parents[1]
_NUMBERED = re.compile(r"(trap|weakness)(?:s|es)?_(\d+(?:_and_\d+)*)")


@dataclass(frozen=True, slots=True)
class Covered:
    """One trap for who serves SGLang's clients, or one weakness of SGLang's servers."""

    kind: str
    """``trap`` or ``weakness``."""
    number: int
    what: str
    also: tuple[str, ...] = ()
    """Tests that do not have the number in their names, as ``file::name`` below ``tests``."""
    note: str = ""
    """Why there is no test, or what the tests leave out."""

    @property
    def tests(self) -> tuple[str, ...]:
        """The tests by number, then the others."""
        numbered = [
            test for test in existing_tests() if (self.kind, self.number) in _numbers_of(test)
        ]
        return (*numbered, *self.also)


@cache
def existing_tests() -> tuple[str, ...]:
    """Every test as ``file::name``, in the order of the files."""
    return tuple(_find_tests())


def _find_tests() -> Iterator[str]:
    for path in sorted(_TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and node.name.startswith("test_"):
                yield f"{path.relative_to(_TESTS)}::{node.name}"


@cache
def _numbers_of(test: str) -> frozenset[tuple[str, int]]:
    return frozenset(
        (kind, int(number))
        for kind, numbers in _NUMBERED.findall(test.partition("::")[2])
        for number in numbers.split("_and_")
    )


_MATRIX = "sglang/test_matrix.py::test_every_decode_reads_every_prefill"
_COMPARED = "contract/test_releases.py::test_the_same_answers_but_for_the_table"
_BUSY_PORT = "integration/test_shim_lifecycle.py::test_a_port_in_use_is_named"


def _trap(number: int, what: str, *also: str, note: str = "") -> Covered:
    return Covered("trap", number, what, also, note)


def _weakness(number: int, what: str, *also: str, note: str = "") -> Covered:
    return Covered("weakness", number, what, also, note)


COVERED = (
    _trap(1, "The names of the query parameters are all that tells the dialects apart."),
    _trap(2, "Clients of A to D ignore keys that they do not know; those of E do not.", _MATRIX),
    _trap(
        3,
        "Which optional keys a reply of E may have depends on a release that no request names.",
        _MATRIX,
        "sglang/test_matrix.py::test_without_omitting_old_decodes_reject_the_http_port",
    ),
    _trap(4, "No field may be added to the topology of E."),
    _trap(5, "D reads the page size as a number, E needs the key and may have null."),
    _trap(6, "kv_cache_dtype is compared verbatim: any other spelling kills a decode."),
    _trap(7, "follow_bootstrap_room must be a JSON boolean."),
    _trap(8, "B1 asks with the number of a rank among all, B2 with that in its DP group."),
    _trap(9, "The number of entries in the table of A3 is taken for the TP size."),
    _trap(10, "A to D need a role, and any but Prefill is answered 200 and not kept."),
    _trap(11, "Success is exactly 200.", _COMPARED),
    _trap(12, "Before READY a client of A, B1 or B2 dies of any answer: it has to wait."),
    _trap(13, "A repeated registration must be harmless."),
    _trap(14, "A refused registration is only to be seen in the prefill's log."),
    _trap(
        15,
        "/health has to answer at once whatever happens: two misses abort all requests.",
        "contract/test_http_dialect_e.py::test_health_is_always_ok",
        "integration/test_shim_holding.py::test_200_held_requests_keep_nothing_else_waiting",
        "sglang/test_heartbeats.py::test_content_through_a_restart_shorter_than_two_misses",
    ),
    _trap(16, "Pooled connections have to be kept between requests."),
    _trap(17, "/query_dp_ranks is asked in a hot loop; unknown rooms are left out."),
    _trap(18, "Every rank of a DP group registers the same room."),
    _trap(19, "The DP rank of a room need not be one of the route table."),
    _trap(20, "Only when all parameters are -1 is it the question for the topology."),
    _trap(
        21,
        "In SGLang's Rust server the API port serves these paths.",
        note="No test: this service is never on the API port. A Rust prefill registers with its "
        "own listener, and that cannot be pointed elsewhere.",
    ),
    _trap(
        22,
        "A port in use must not go unnoticed: two prefills would share one server.",
        _BUSY_PORT,
        "sglang/test_taking_over.py::test_an_engine_whose_port_is_taken_registers_here",
    ),
    _trap(
        23,
        "Prefills up to 0.5.11 register once: the service must listen before they start.",
        note="No test: it is an order of starting, which the section on migration gives.",
    ),
    _trap(24, "IPv6 addresses are used verbatim, as URLs and as keys of caches."),
    _trap(25, "prefill_http_port is dialled at the host of the bootstrap address."),
    _weakness(
        1,
        "Readiness counts calls and not ranks.",
        "sglang/test_release_0_5_23.py::test_same_rank_twice_is_one_rank",
    ),
    _weakness(2, "A registration that is sent again counts twice."),
    _weakness(3, "The first sizes last as long as the process.", _COMPARED),
    _weakness(4, "Addresses of ranks are never removed."),
    _weakness(5, "A switch of roles registers into what was there before."),
    _weakness(6, "After a change of layout every registration is refused."),
    _weakness(7, "A registration that fails half-way leaves its sizes behind."),
    _weakness(8, "A port in use is only logged.", _BUSY_PORT),
    _weakness(9, "One bad registration spoils every later answer.", _COMPARED),
    _weakness(10, "Bad input is a 500 with a stack trace.", _COMPARED),
    _weakness(11, "B to D answer nulls or a part of the ranks.", _COMPARED),
    _weakness(
        12,
        "The table is written outside of its lock.",
        "contract/test_rules_over_both_transports.py::test_rule_8_a_refused_registration_changes_nothing",
        note="There is no lock: a registration is one synchronous call in one event loop.",
    ),
    _weakness(13, "Rooms grow without bound, by the wall clock."),
    _weakness(
        14,
        "A room that is not there yet cannot be told from one that never comes.",
        "integration/test_room_streams.py::test_a_stub_is_answered_what_is_known_and_then_what_becomes_known",
        "integration/test_resolver.py::test_a_room_that_never_comes_expires",
        note="Over gRPC. SGLang's own clients poll, whatever the server.",
    ),
    _weakness(
        15,
        "No authentication and no encryption.",
        note="No test: the clients speak plain HTTP and send no credentials, so the HTTP port "
        "belongs in a network of its own, like SGLang's.",
    ),
    _weakness(16, "Old releases bind every interface."),
    _weakness(17, "Newer ones bind loopback, where other nodes' ranks are refused."),
    _weakness(18, "Nothing names the instance: two models on one port mix."),
    _weakness(19, "/health says nothing about the ranks."),
    _weakness(20, "/metadata takes anything from anybody."),
    _weakness(
        21,
        "A failure at the start raises a second one.",
        _BUSY_PORT,
        "integration/test_shim_lifecycle.py::test_stop_is_idempotent_and_needs_no_start",
    ),
)
