"""``/route``: its queries and registrations, in whichever dialect."""

from __future__ import annotations

import logging
import string
import time
from collections.abc import Callable, Mapping
from urllib.parse import quote

from aiohttp import web

from bootstrap_grpc.compat.bodies import BodyReader
from bootstrap_grpc.compat.config import HttpConfig
from bootstrap_grpc.compat.dialects.dialect import (
    Dialect,
    Intake,
    MissingParameters,
    RankQuery,
    TopologyOptions,
)
from bootstrap_grpc.compat.dialects.table import dialect_of_query, dialect_of_registration
from bootstrap_grpc.compat.gathering import Gathering
from bootstrap_grpc.compat.holding import Holds, Outcome
from bootstrap_grpc.compat.operations import Operation, Target, connection_of, fixed
from bootstrap_grpc.compat.replies import (
    JSON,
    OK,
    Closing,
    Reply,
    json_reply,
    refusal,
    text_reply,
)
from bootstrap_grpc.compat.shared_keys import SharedKeys
from bootstrap_grpc.protos.errors import BootstrapError, ErrorCode
from bootstrap_grpc.protos.model import Registration, Shape, TopologyState
from bootstrap_grpc.server.addresses import Peer
from bootstrap_grpc.server.peers import peer_from_ip
from bootstrap_grpc.server.registry import RankRegistry

__all__ = ["Routes"]

_log = logging.getLogger(__name__)

_OTHER_METHOD = Operation(fixed(Reply(405, b"Method not allowed", JSON)), Closing.LEARNED)


class Routes:
    """What answers ``/route``. One event loop, like the registry behind it."""

    def __init__(self, registry: RankRegistry, bodies: BodyReader, config: HttpConfig) -> None:
        self.registry = registry
        self.options = TopologyOptions(config.omit, config.pass_keys)
        self.holds = Holds(
            most=config.max_holds,
            seconds=config.hold,
            may_end=lambda: registry.state is TopologyState.READY,
        )
        self.gathering = Gathering(
            registry,
            expected=config.expected_ranks,
            quiet=config.quiet,
            on_settled=self.holds.check,
        )
        shared_keys = SharedKeys(registry, quiet=config.quiet, clock=time.monotonic)
        self._intakes: Mapping[Intake, Callable[[Registration, Peer], object]] = {
            Intake.DIRECT: registry.register,
            Intake.GATHERED: self.gathering.register,
            Intake.SHARED: shared_keys.register,
        }
        self._bodies = bodies
        self._register_operation = Operation(self._register, Closing.SERVER)
        self._unsubscribe = registry.subscribe(self.holds.check)

    def target(self, request: web.BaseRequest) -> Target:
        """What answers the path with the query of ``request``, by method."""
        operations = {"GET": self._query(request), "PUT": self._register_operation}
        return Target(operations, _OTHER_METHOD)

    def stop(self) -> None:
        """End what waits: held requests are answered, gathered ranks forgotten."""
        self._unsubscribe()
        self.gathering.stop()
        self.holds.stop()

    def _query(self, request: web.BaseRequest) -> Operation:
        # Where a name comes twice the first counts, as in SGLang.
        query = {name: request.query[name] for name in request.query}
        dialect = dialect_of_query(query)
        try:
            asked = dialect.parse_query(query)
        except MissingParameters as missing:
            return Operation(fixed(text_reply(400, str(missing))), Closing.LEARNED)
        except BootstrapError as error:
            return Operation(fixed(refusal(error)), Closing.LEARNED)
        closing = Closing.SERVER if asked is None else Closing.LEARNED
        return Operation(_RouteAnswer(self, dialect, asked), closing)

    async def _register(self, request: web.BaseRequest) -> Reply:
        data = await self._bodies.json_object(request)
        dialect = dialect_of_registration(data)
        registration = dialect.parse_registration(data)
        if registration is None:
            return OK
        peer = connection_of(request).peer
        try:
            self._intakes[dialect.intake](registration, peer_from_ip(peer))
        except BootstrapError as error:
            # SGLang's prefill logs a status without its text, and runs on unregistered.
            _log.warning("refused over HTTP from %s: %s", peer, error)
            raise
        return OK


class _RouteAnswer:
    """The topology, or the address of one rank, in one dialect: rendered once a version."""

    def __init__(self, routes: Routes, dialect: Dialect, asked: RankQuery | None) -> None:
        self._routes = routes
        self._registry = routes.registry
        self._dialect = dialect
        self._asked = asked
        self._gathered = dialect.intake is Intake.GATHERED
        self._version = -1
        self._reply: Reply | None = None

    async def __call__(self, request: web.BaseRequest) -> Reply:
        while (reply := self._current()) is None:
            if not self._dialect.waits:
                return self._not_ready()
            outcome = await self._routes.holds.until(self._is_ready, connection_of(request))
            if outcome is Outcome.GONE:
                raise ConnectionResetError("the client of a held request hung up")
            if outcome is Outcome.FULL:
                return self._not_ready()
            if outcome is Outcome.OVER:
                return _ask_again(request)
        return reply

    def _current(self) -> Reply | None:
        """The reply as of now; ``None`` where the prefill server is not READY."""
        if self._gathered and self._routes.gathering.busy:
            return None
        version = self._registry.version
        if version != self._version:
            self._reply = self._render()
            self._version = version
        return self._reply

    def _is_ready(self) -> bool:
        return self._current() is not None

    def _render(self) -> Reply | None:
        if self._registry.state is not TopologyState.READY:
            return None
        topology = self._registry.topology()
        shape = topology.shape or Shape()
        for name in sorted(self._dialect.unsaid_sizes):
            if (size := getattr(shape, name)) != 1:
                text = f"The prefill server has {name} {size}, which this release cannot read."
                return text_reply(409, text)
        if self._asked is None:
            return json_reply(self._dialect.render_topology(topology, self._routes.options))
        try:
            route = self._registry.route(self._dialect.locate(self._asked.key, shape))
        except BootstrapError as error:
            if error.code is not ErrorCode.RANK_NOT_FOUND:
                raise
            return text_reply(404, self._asked.not_found)
        return json_reply(self._dialect.render_route(route))

    def _not_ready(self) -> Reply:
        return text_reply(503, self._dialect.not_ready(self._registry.registered))


def _ask_again(request: web.BaseRequest) -> Reply:
    """A redirection to the very request."""
    # The query may hold any byte, as aiohttp lets it; a header carries visible ASCII only.
    raw = request.rel_url.raw_query_string
    query = quote(raw, safe=string.punctuation, errors="surrogateescape")
    location = f"/route?{query}" if query else "/route"
    text = b"Prefill server not fully registered yet; ask again."
    return Reply(307, text, headers=(("Location", location),))
