"""The error vocabulary: the same codes, numbers and statuses wherever it is written down."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos.errors import BootstrapError, ErrorCode, FieldError, abbreviated
from bootstrap_grpc.protos.status import (
    GRPC_STATUS,
    HTTP_STATUS,
    error_code_from_proto,
    error_detail,
    error_from_detail,
)

PROTO = Path(pb.__file__).with_name("bootstrap.proto")


def test_codes_equal_the_proto_enum_in_names_and_numbers() -> None:
    of_proto = {
        name.removeprefix("ERROR_CODE_"): number
        for name, number in pb.ErrorCode.items()
        if number != pb.ERROR_CODE_UNSPECIFIED
    }
    assert {code.name: code.value for code in ErrorCode} == of_proto


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_has_a_grpc_and_an_http_status(code: ErrorCode) -> None:
    assert GRPC_STATUS[code] is not grpc.StatusCode.OK
    assert GRPC_STATUS[code] is not grpc.StatusCode.UNKNOWN
    assert 400 <= HTTP_STATUS[code] <= 599


def test_no_status_is_given_to_anything_else() -> None:
    assert set(GRPC_STATUS) == set(HTTP_STATUS) == set(ErrorCode)


def test_the_statuses_that_the_proto_documents_are_those_of_the_table() -> None:
    enum = PROTO.read_text().split("enum ErrorCode {")[1].split("\n}")[0]
    documented: dict[str, tuple[str, int]] = {}
    comment = ""
    for line in enum.splitlines():
        text = line.strip()
        if text.startswith("//"):
            comment += f" {text[2:].strip()}"
            continue
        name = re.match(r"ERROR_CODE_(\w+) = \d+;", text)
        status = re.search(r"([A-Z_]{5,}), HTTP (\d{3})", comment)
        if name and status:
            documented[name[1]] = (status[1], int(status[2]))
        comment = ""
    assert documented == {
        code.name: (GRPC_STATUS[code].name, HTTP_STATUS[code]) for code in ErrorCode
    }


FIELDS = st.tuples(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from(ErrorCode),
    st.text(max_size=200),
    st.lists(FIELDS, max_size=16),
)
def test_an_error_comes_back_from_its_detail_as_it_went(
    code: ErrorCode, message: str, fields: list[tuple[str, str, str]]
) -> None:
    error = BootstrapError(code, message, tuple(FieldError(*each) for each in fields))
    wire = error_detail(error).SerializeToString()
    back = error_from_detail(pb.ErrorDetail.FromString(wire))
    assert (back.code, str(back), back.fields) == (error.code, str(error), error.fields)


def test_a_detail_names_at_most_16_fields() -> None:
    many = tuple(FieldError(f"field{number}", "1") for number in range(40))
    error = BootstrapError(ErrorCode.SHAPE_MISMATCH, "many", many)
    assert error_from_detail(error_detail(error)).fields == many[:16]


@pytest.mark.parametrize("number", [0, 15, 2**31 - 1, -1])
def test_a_code_of_a_newer_version_reads_as_internal(number: int) -> None:
    assert error_code_from_proto(number) is ErrorCode.INTERNAL


def test_invalid_names_the_field_and_the_value() -> None:
    error = BootstrapError.invalid("rank_port", 0, "a port from 1 to 65535")
    assert error.code is ErrorCode.INVALID_FIELD
    assert str(error) == "rank_port is 0, must be a port from 1 to 65535"
    assert error.fields == (FieldError("rank_port", "0"),)


def test_limit_names_the_count_and_the_limit() -> None:
    error = BootstrapError.limit("rooms", 65_537, 65_536)
    assert error.code is ErrorCode.LIMIT_EXCEEDED
    assert str(error) == "65,537 rooms, the limit is 65,536"
    assert error.fields == (FieldError("rooms", "65537", "65536"),)


def deep(levels: int) -> object:
    value: object = 0
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        "x" * 1_000_000,
        b"x" * 1_000_000,
        "\x00\n\ud800" * 100,
        10**5_000,
        -(10**300),
        float("nan"),
        [0] * 10_000,
        {"a": ["b"] * 1_000},
        deep(100_000),
        None,
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_value_can_be_named_in_a_short_line(value: object) -> None:
    text = abbreviated(value)
    assert 0 < len(text) <= 80
    assert text.isprintable()
    text.encode()
    assert BootstrapError.invalid("field", value, "something else").fields[0].value == text
