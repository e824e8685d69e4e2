"""Replies from memory as real ``requests.Response`` objects."""

from __future__ import annotations

from datetime import timedelta
from http import HTTPStatus
from typing import Any

import requests
from requests.structures import CaseInsensitiveDict

from bootstrap_grpc.compat.replies import Reply
from bootstrap_grpc.compat.session_calls import Call

__all__ = ["TRANSPORT_HEADER", "to_response"]

TRANSPORT_HEADER = "Bootstrap-Transport"
"""Header of a reply that no HTTP server sent; its value is ``grpc``."""

_NO_TIME = timedelta(0)


def to_response(reply: Reply, call: Call, hooks: Any) -> requests.Response:
    """``reply`` as the response to ``call``, passed through the session's response hooks."""
    response = requests.Response()
    response.status_code = reply.status
    response.reason = HTTPStatus(reply.status).phrase
    response.url = call.url
    response.encoding = "utf-8"
    response.elapsed = _NO_TIME
    response.headers = CaseInsensitiveDict(
        {"Content-Type": reply.content_type, TRANSPORT_HEADER: "grpc"}
    )
    content: Any = response
    # requests has no public way to give a response its content; its own mocks set these two.
    content._content = reply.body  # noqa: SLF001 - see above
    content._content_consumed = True  # noqa: SLF001 - see above
    request = requests.PreparedRequest()  # not prepared: that takes longer than all the rest
    request.method, request.url = call.method, call.url
    response.request = request
    for hook in hooks.get("response") or ():
        hooked: requests.Response | None = hook(response)
        response = response if hooked is None else hooked
    return response
