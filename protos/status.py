"""One row for each error code: its gRPC status and its HTTP status (tested for completeness).

The statuses of the codes that SGLang's clients meet are those of SGLang's own server.
"""

from __future__ import annotations

import grpc

from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos.errors import BootstrapError, ErrorCode, FieldError

__all__ = [
    "ERROR_METADATA_KEY",
    "GRPC_STATUS",
    "HTTP_STATUS",
    "INSTANCE_ID_METADATA_KEY",
    "SERVER_ID_METADATA_KEY",
    "error_code_from_proto",
    "error_detail",
    "error_from_detail",
]

ERROR_METADATA_KEY = "bootstrap-error-bin"
"""Trailing metadata key of a serialised ``ErrorDetail``."""

SERVER_ID_METADATA_KEY = "bootstrap-server-id"
"""Initial metadata key of every stream: the service's ``server_id``."""

INSTANCE_ID_METADATA_KEY = "bootstrap-instance-id"
"""Initial metadata key of every stream: the ``instance_id``, percent-encoded; may be empty."""

_MOST_DETAIL_FIELDS = 16  # trailing metadata is limited to 8 KiB

_TABLE: dict[ErrorCode, tuple[grpc.StatusCode, int]] = {
    ErrorCode.INVALID_FIELD: (grpc.StatusCode.INVALID_ARGUMENT, 400),
    ErrorCode.RANK_NOT_FOUND: (grpc.StatusCode.NOT_FOUND, 404),
    ErrorCode.NOT_READY: (grpc.StatusCode.FAILED_PRECONDITION, 503),
    ErrorCode.SHAPE_MISMATCH: (grpc.StatusCode.FAILED_PRECONDITION, 400),
    ErrorCode.RANK_HELD: (grpc.StatusCode.ALREADY_EXISTS, 409),
    ErrorCode.ADDRESS_SUPERSEDED: (grpc.StatusCode.FAILED_PRECONDITION, 409),
    ErrorCode.INSTANCE_MISMATCH: (grpc.StatusCode.FAILED_PRECONDITION, 409),
    ErrorCode.NOT_OWNER: (grpc.StatusCode.FAILED_PRECONDITION, 409),
    ErrorCode.GENERATION_ENDED: (grpc.StatusCode.ABORTED, 409),
    ErrorCode.HOLD_ENDED: (grpc.StatusCode.FAILED_PRECONDITION, 409),
    ErrorCode.LIMIT_EXCEEDED: (grpc.StatusCode.RESOURCE_EXHAUSTED, 413),
    ErrorCode.UNIMPLEMENTED: (grpc.StatusCode.UNIMPLEMENTED, 501),
    ErrorCode.DRAINING: (grpc.StatusCode.UNAVAILABLE, 503),
    ErrorCode.INTERNAL: (grpc.StatusCode.INTERNAL, 500),
}

GRPC_STATUS = {code: row[0] for code, row in _TABLE.items()}
HTTP_STATUS = {code: row[1] for code, row in _TABLE.items()}


def error_detail(error: BootstrapError) -> pb.ErrorDetail:
    """The message that carries ``error`` in the trailing metadata."""
    return pb.ErrorDetail(
        code=pb.ErrorCode.Name(error.code),
        message=str(error),
        fields=[
            pb.FieldError(field=f.field, value=f.value, expected=f.expected)
            for f in error.fields[:_MOST_DETAIL_FIELDS]
        ],
    )


def error_from_detail(detail: pb.ErrorDetail) -> BootstrapError:
    """The error that ``detail`` carries."""
    fields = tuple(FieldError(f.field, f.value, f.expected) for f in detail.fields)
    return BootstrapError(error_code_from_proto(detail.code), detail.message, fields)


def error_code_from_proto(code: int) -> ErrorCode:
    """The code with the number ``code``; one of a newer version reads as INTERNAL."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.INTERNAL
