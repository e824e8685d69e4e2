"""``BootstrapSession``: a ``requests.Session`` that makes SGLang's bootstrap calls over gRPC.

Needs ``requests`` (the extra ``bootstrap-grpc[sglang]``). A call whose URL is one of SGLang's
bootstrap protocol (0.5.10 and later) is answered from memory where its server is known to speak
gRPC and the stream to it is live; every other call goes out as ordinary HTTP, over connections
that are kept alive. See ``compat.session_hub`` for when which happens.

The module has the names that callers use of ``requests`` itself: ``get``, ``put``, ``post``,
``Session``, ``adapters``, ``exceptions``. Their sessions are thread-local.
"""

from __future__ import annotations

import threading
from typing import Any

import requests
from requests import adapters, exceptions
from requests.structures import CaseInsensitiveDict

from bootstrap_grpc.compat.session_calls import KIND_OF_CALL, Call, Kind, parse_url
from bootstrap_grpc.compat.session_hub import hub
from bootstrap_grpc.compat.session_peers import GRPC_PORT_HEADER
from bootstrap_grpc.compat.session_replies import to_response

__all__ = ["BootstrapSession", "Session", "adapters", "exceptions", "get", "post", "put"]

_PLAIN = frozenset({"json", "timeout", "headers", "allow_redirects"})
"""Options of a call that may be answered from memory; any other is for requests to understand."""

_SETTINGS = ("auth", "cert", "hooks", "params", "proxies", "trust_env", "verify")

_ADDRESSES_PER_SESSION = 256


class BootstrapSession(requests.Session):
    """A session of requests whose bootstrap calls go over gRPC where that is possible.

    Like any session, it is for one thread at a time. What is known of servers is shared by all
    sessions of the process, and belongs to the process: a forked child starts anew.
    """

    def __init__(self) -> None:
        super().__init__()
        self._found_grpc = False  # by an HTTP reply, whose connection is open still
        # One connection per address: a session is for one thread, which waits for each reply.
        self.mount(
            "http://",
            adapters.HTTPAdapter(pool_connections=_ADDRESSES_PER_SESSION, pool_maxsize=1),
        )

    def request(
        self, method: str | bytes, url: str | bytes, *args: Any, **kwargs: Any
    ) -> requests.Response:
        """Make one call; the parameters are those of ``requests.Session.request``."""
        call = None if args else _bootstrap_call(method, url, kwargs)
        if call is None:
            return super().request(method, url, *args, **kwargs)
        reply = hub().answer(call, self.over_http)
        if isinstance(reply, requests.Response):
            return reply
        if self._found_grpc:
            # The connection on which the port was found is not used again. Connections of this
            # thread to other servers go with it, once, and are made again when needed.
            self._found_grpc = False
            self.close()
        return to_response(reply, call, self.hooks)

    def over_http(
        self, method: str, url: str, *, timeout: Any = None, json: object = None, keep: bool = True
    ) -> requests.Response:
        """Make one call over HTTP, whatever could answer it otherwise.

        Without ``keep`` the server is asked to close the connection, which it does first: its
        TIME-WAIT costs no port here.
        """
        if keep:
            response = super().request(method, url, timeout=timeout, json=json)
            self._found_grpc |= GRPC_PORT_HEADER in response.headers
            return response
        # A session of its own: a server that closes without saying so would leave a dead
        # connection in the pool.
        with requests.Session() as once:
            for name in _SETTINGS:
                setattr(once, name, getattr(self, name))
            once.headers = CaseInsensitiveDict(self.headers)
            once.headers["Connection"] = "close"
            return once.request(method, url, timeout=timeout, json=json)


def _bootstrap_call(method: str | bytes, url: str | bytes, options: dict[str, Any]) -> Call | None:
    if not isinstance(method, str) or not isinstance(url, str):
        return None
    parts = parse_url(url)
    if parts is None:
        return None
    kind: Kind | None = KIND_OF_CALL.get((method.upper(), parts.path))
    if kind is None:
        return None
    for name, value in options.items():
        if value is not None and name not in _PLAIN:
            return None
    return Call(kind, method.upper(), url, parts, options.get("json"), options.get("timeout"))


Session = BootstrapSession

_thread = threading.local()


def _session() -> BootstrapSession:
    session: BootstrapSession | None = getattr(_thread, "session", None)
    if session is None:
        session = _thread.session = BootstrapSession()
    return session


def get(url: str, params: Any = None, **kwargs: Any) -> requests.Response:
    """``requests.get`` over this thread's session."""
    return _session().get(url, params=params, **kwargs)


def put(url: str, data: Any = None, **kwargs: Any) -> requests.Response:
    """``requests.put`` over this thread's session."""
    return _session().put(url, data=data, **kwargs)


def post(url: str, data: Any = None, json: Any = None, **kwargs: Any) -> requests.Response:
    """``requests.post`` over this thread's session."""
    return _session().post(url, data=data, json=json, **kwargs)
