"""What a failed call means to the client's caller."""

from __future__ import annotations

import grpc
import pytest

from bootstrap_grpc.client.errors import NoContact, ServiceFault, from_rpc, typed
from bootstrap_grpc.protos.errors import BootstrapError, ErrorCode
from bootstrap_grpc.protos.status import ERROR_METADATA_KEY, GRPC_STATUS, error_detail


class FailedCall:
    """The parts of ``grpc.RpcError`` that both stacks have."""

    def __init__(
        self, status: grpc.StatusCode, text: str = "", metadata: tuple[tuple[str, bytes], ...] = ()
    ) -> None:
        self._status, self._text, self._metadata = status, text, metadata

    def code(self) -> grpc.StatusCode:
        return self._status

    def details(self) -> str:
        return self._text

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return self._metadata


@pytest.mark.parametrize("code", ErrorCode)
def test_every_refusal_of_the_service_has_a_class(code: ErrorCode) -> None:
    sent = BootstrapError.invalid("shape.page_size", 3, "4")
    sent.code = code
    metadata = ((ERROR_METADATA_KEY, error_detail(sent).SerializeToString()),)
    error = from_rpc(FailedCall(GRPC_STATUS[code], str(sent), metadata), "host:1")
    if code is ErrorCode.DRAINING:
        assert isinstance(error, NoContact)
        return
    assert isinstance(error, BootstrapError)
    assert type(error) is type(typed(sent)) is not BootstrapError
    assert (error.code, str(error), error.fields) == (code, str(sent), sent.fields)


@pytest.mark.parametrize("status", [s for s in grpc.StatusCode if s is not grpc.StatusCode.OK])
def test_a_status_without_our_detail_is_told_apart(status: grpc.StatusCode) -> None:
    error = from_rpc(FailedCall(status, "text"), "host:1")
    silent = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN"}
    assert isinstance(error, NoContact) is (status.name in silent)
    assert "host:1" in str(error) or status.name in str(error)


def test_a_detail_that_is_none_is_not_believed() -> None:
    junk = ((ERROR_METADATA_KEY, b"\xff\xff"),)
    error = from_rpc(FailedCall(grpc.StatusCode.INTERNAL, "x", junk), "host:1")
    assert isinstance(error, ServiceFault)
