"""Every trap and weakness of the protocol has a test, or a line that says why not."""

from __future__ import annotations

from contract.traps import COVERED, existing_tests


def test_all_25_traps_and_21_weaknesses_are_listed() -> None:
    numbers = [(row.kind, row.number) for row in COVERED]
    traps, weaknesses = range(1, 26), range(1, 22)
    assert numbers == [("trap", n) for n in traps] + [("weakness", n) for n in weaknesses]


def test_each_has_a_test_or_says_why_not() -> None:
    for row in COVERED:
        assert row.tests or row.note, row
        assert set(row.tests) <= set(existing_tests()), row
