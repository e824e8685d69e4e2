from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootstrap_grpc.compat import fields
from bootstrap_grpc.protos.errors import BootstrapError, ErrorCode
from bootstrap_grpc.protos.model import MAX_ROOM


@pytest.mark.parametrize("value", [0, 1, MAX_ROOM, "17000", " 0", "+0", "0_0", "7\n"])
def test_integers_that_sglang_reads_with_int(value: object) -> None:
    assert fields.integer("f", value, 0, MAX_ROOM) == int(str(value))


@pytest.mark.parametrize(
    "value",
    [-1, 2**64, 1.9, 1.0, 1e30, True, None, "", "x", "1.9", "1e3", [], {}, "1" * 5000],
)
def test_what_is_no_integer_is_refused_by_name_and_value(value: object) -> None:
    with pytest.raises(BootstrapError) as caught:
        fields.integer("rank_port", value, 0, MAX_ROOM)
    assert caught.value.code is ErrorCode.INVALID_FIELD
    assert str(caught.value).startswith("rank_port is ")
    assert caught.value.fields[0].field == "rank_port"
    assert len(str(caught.value)) < 250


def test_a_list_of_integers_names_the_first_that_is_none() -> None:
    assert fields.integers("rooms", [1, "2", MAX_ROOM], MAX_ROOM, 3) == [1, 2, MAX_ROOM]
    assert fields.integers("rooms", [], MAX_ROOM, 3) == []
    for bad in (-1, True, 2**64, 1.5, None):
        with pytest.raises(BootstrapError, match=r"rooms\[1\] is "):
            fields.integers("rooms", [1, bad], MAX_ROOM, 3)
    for bad in (None, {}, "12", 3):
        with pytest.raises(BootstrapError, match=r"rooms is .*, must be an array"):
            fields.integers("rooms", bad, MAX_ROOM, 3)
    with pytest.raises(BootstrapError) as caught:
        fields.integers("rooms", [0] * 4, MAX_ROOM, 3)
    assert caught.value.code is ErrorCode.LIMIT_EXCEEDED


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"nonsense", "not JSON"),
        (b'{"a":NaN}', "NaN is no JSON number"),
        (b'{"a":-Infinity}', "Infinity is no JSON number"),
        (b'{"a":' + b"9" * 5000 + b"}", "digits"),
        (b"[" * 200_000, "too deeply"),
        (b'{"a":' * 200_000, "too deeply"),
        (b'{"a":"\xff"}', "byte 6 is no UTF-8"),
        (b"[]", "the body is an array"),
        (b"null", "the body is null"),
        (b'"x"', "the body is a string"),
        (b"1", "the body is a number"),
        (b"true", "the body is a boolean"),
    ],
)
def test_a_body_that_is_no_json_object(body: bytes, words: str) -> None:
    with pytest.raises(BootstrapError, match=words) as caught:
        fields.parse_object(body)
    assert caught.value.code is ErrorCode.INVALID_FIELD


def test_a_byte_order_mark_is_skipped() -> None:
    assert fields.parse_object(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_refused(body: bytes) -> None:
    with suppress(BootstrapError):
        assert isinstance(fields.parse_object(body), dict)


def test_texts_and_booleans_are_not_guessed() -> None:
    assert fields.text("f", "é") == "é"
    assert fields.boolean("f", False) is False
    for bad in (None, 1, b"x", "\ud800"):
        with pytest.raises(BootstrapError, match="f is "):
            fields.text("f", bad)
    for bad in (None, 0, 1, "false"):
        with pytest.raises(BootstrapError, match="f is "):
            fields.boolean("f", bad)


def test_equal_json_has_equal_texts() -> None:
    assert fields.json_text("f", {"b": 1, "a": [None]}) == '{"a":[null],"b":1}'
    with pytest.raises(BootstrapError, match="f is "):
        fields.json_text("f", json.loads("1e400"))


def test_a_missing_field_is_named() -> None:
    with pytest.raises(BootstrapError, match=r"^rank_ip is missing$"):
        fields.required({}, "rank_ip")
    assert fields.required({"rank_ip": None}, "rank_ip") is None
