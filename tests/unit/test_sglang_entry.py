"""The entry point that SGLang loads, where there is no SGLang."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points

import pytest

from bootstrap_grpc.compat.session_calls import Kind
from bootstrap_grpc.compat.session_report import VARIABLE, CallCounts, interval
from bootstrap_grpc.compat.sglang import activate


def test_it_is_found_under_the_name_that_sglang_plugins_takes() -> None:
    (found,) = entry_points(group="sglang.srt.plugins", name="bootstrap_grpc")
    assert found.load() is activate


def test_without_sglang_it_does_nothing_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("bootstrap_grpc.sglang").setLevel(logging.CRITICAL + 1)
    try:
        assert activate() is None
    finally:
        logging.getLogger("bootstrap_grpc.sglang").setLevel(logging.NOTSET)
    said = capsys.readouterr().err
    assert "bootstrap-grpc is not in use, all is HTTP" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "1e9"])
def test_an_interval_that_is_none_is_named(value: str) -> None:
    with pytest.raises(ValueError, match=f"{VARIABLE} is '{value}'"):
        interval(value)


def test_reports_are_off_unless_asked_for() -> None:
    assert interval("") is None
    assert interval(" 2.5 ") == 2.5


def test_calls_are_counted_by_the_way_they_went() -> None:
    counts = CallCounts()
    counts.over_http(Kind.ROUTE)
    for _ in range(3):
        counts.over_grpc(Kind.QUERY_DP_RANKS)
    assert counts.as_text() == '{"grpc": {"query_dp_ranks": 3}, "http": {"route": 1}}'
