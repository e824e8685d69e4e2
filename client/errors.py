"""What a client raises: one class for each thing that its caller can do about it."""

from __future__ import annotations

from typing import Any

import grpc

from bootstrap_grpc.protos import bootstrap_pb2 as pb
from bootstrap_grpc.protos.errors import BootstrapError, ErrorCode, FieldError
from bootstrap_grpc.protos.status import ERROR_METADATA_KEY, error_from_detail

__all__ = [
    "BootstrapError",
    "ErrorCode",
    "FieldError",
    "ForkedError",
    "InvalidRequest",
    "LimitExceeded",
    "NoContact",
    "NotFound",
    "Refused",
    "ServiceFault",
    "from_rpc",
    "typed",
]


class NoContact(Exception):
    """The service did not answer: not up, out of reach, shutting down or too slow. Try later."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(f"no contact with {target}: {reason}")
        self.target = target
        self.reason = reason


class ForkedError(RuntimeError):
    """gRPC was used in a forked child in which it cannot work: start the child with spawn.

    Raised for an object that belongs to the parent process, and for every connection of a child
    that was forked while streams of asyncio's gRPC were live in its parent: gRPC's fork handlers
    are skipped then, and what it does in the child is undefined.
    """


class InvalidRequest(BootstrapError):
    """The caller's mistake, named by ``fields``. Repeating it does not help."""


class NotFound(BootstrapError):
    """No such rank is registered, or not yet."""


class Refused(BootstrapError):
    """What is registered stands against it; ``code`` tells what. May pass with time."""


class LimitExceeded(BootstrapError):
    """A documented limit of the service. Send less."""


class ServiceFault(BootstrapError):
    """A fault of the service, or a call that its version does not serve."""


_CLASS: dict[ErrorCode, type[BootstrapError]] = {
    ErrorCode.INVALID_FIELD: InvalidRequest,
    ErrorCode.RANK_NOT_FOUND: NotFound,
    ErrorCode.NOT_READY: Refused,
    ErrorCode.SHAPE_MISMATCH: Refused,
    ErrorCode.RANK_HELD: Refused,
    ErrorCode.ADDRESS_SUPERSEDED: Refused,
    ErrorCode.INSTANCE_MISMATCH: Refused,
    ErrorCode.NOT_OWNER: Refused,
    ErrorCode.GENERATION_ENDED: Refused,
    ErrorCode.HOLD_ENDED: Refused,
    ErrorCode.LIMIT_EXCEEDED: LimitExceeded,
    ErrorCode.UNIMPLEMENTED: ServiceFault,
    ErrorCode.DRAINING: ServiceFault,  # met as NoContact: see from_rpc
    ErrorCode.INTERNAL: ServiceFault,
}

# Statuses that gRPC itself gives, without an ErrorDetail of ours.
_OWN_CODE = {
    grpc.StatusCode.INVALID_ARGUMENT: ErrorCode.INVALID_FIELD,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ErrorCode.LIMIT_EXCEEDED,
    grpc.StatusCode.UNIMPLEMENTED: ErrorCode.UNIMPLEMENTED,
}

_NO_CONTACT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        # A cancellation that nobody here asked for: the service or a proxy dropped the call.
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
    }
)


def typed(error: BootstrapError) -> BootstrapError:
    """``error`` as the class for its code."""
    return _CLASS[error.code](error.code, str(error), error.fields)


def from_rpc(error: Any, target: str) -> BootstrapError | NoContact:
    """What a failed call (``grpc.RpcError`` or ``AioRpcError``) means to the caller."""
    detail = _detail(error)
    status: grpc.StatusCode = error.code()
    text: str = error.details() or status.name
    if detail is not None and detail.code is not ErrorCode.DRAINING:
        return typed(detail)
    if detail is not None or status in _NO_CONTACT:
        reason = text if status is not grpc.StatusCode.DEADLINE_EXCEEDED else "no answer in time"
        return NoContact(target, reason)
    code = _OWN_CODE.get(status, ErrorCode.INTERNAL)
    return typed(BootstrapError(code, f"{status.name}: {text}"))


def _detail(error: Any) -> BootstrapError | None:
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_METADATA_KEY:
            try:
                return error_from_detail(pb.ErrorDetail.FromString(value))
            except Exception:  # noqa: BLE001 - another server may send anything under this key
                return None
    return None
