"""What a client of each dialect may do to a server, step by step, and what it is answered.

A scenario is the same requests to whatever server is given. Its transcript, step name to
``Answer``, is compared between this project's HTTP port and SGLang's own servers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import requests

__all__ = ["SCENARIOS", "Answer", "Speaker", "Transcript", "speaker_of"]

_TIMEOUT = 20.0
"""Seconds for one answer, far longer than anything here is meant to take."""

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, media type and body of one reply; the body of a 500 is the framework's own."""

    status: int
    media_type: str
    body: Any

    def __str__(self) -> str:
        return f"{self.status} {self.media_type} {self.body!r}"


@dataclass(frozen=True)
class Speaker:
    """The requests of one dialect, for a prefill server of TP ``tp`` and nothing else."""

    dialect: str
    size_key: str
    """The key of the TP size in a registration; empty where the dialect has none."""
    all_ranks: str
    """The query string that asks for the topology; where there is no such question, none."""
    one_rank: str
    """The query string for one rank, with ``{}`` for its TP rank."""
    health: bool
    """Whether the release's server has ``/health``."""
    registration: Callable[[int, int], Body]
    """The body for a TP rank and a TP size."""

    def rank(self, rank: int, tp: int = 2, **changes: Any) -> Body:
        """A registration; a change to ``...`` takes a key away."""
        address = {"rank_ip": f"10.0.0.{rank + 1}", "rank_port": 17000 + rank}
        body = self.registration(rank, tp) | address | changes
        return {key: value for key, value in body.items() if value is not ...}

    @property
    def family(self) -> str:
        return self.dialect[0]


@dataclass
class Transcript:
    """Sends requests to one server and keeps the answers."""

    address: str
    answers: dict[str, Answer] = field(default_factory=dict)

    def get(self, step: str, path: str) -> None:
        self._send(step, "GET", path)

    def put(self, step: str, body: Any) -> None:
        self._send(step, "PUT", "/route", body)

    def post(self, step: str, path: str, body: Any) -> None:
        self._send(step, "POST", path, body)

    def other(self, step: str, method: str, path: str) -> None:
        self._send(step, method, path)

    def _send(self, step: str, method: str, path: str, body: Any = None) -> None:
        assert step not in self.answers, step
        data = body if isinstance(body, str) or body is None else json.dumps(body)
        reply = requests.request(
            method,
            f"http://{self.address}{path}",
            data=data,
            timeout=_TIMEOUT,
            # A request that was held too long is told to ask again.
            allow_redirects=False,
        )
        self.answers[step] = _answer(reply)


def _answer(reply: requests.Response) -> Answer:
    media_type = reply.headers.get("Content-Type", "").partition(";")[0]
    if reply.status_code == 500:
        return Answer(500, media_type, "")
    try:
        return Answer(reply.status_code, media_type, reply.json())
    except ValueError:
        return Answer(reply.status_code, media_type, reply.text)


def _registration_a(rank: int, _: int) -> Body:
    return {"role": "Prefill", "engine_rank": rank}


def _registration_nixl(rank: int, tp: int) -> Body:
    return _registration_a(rank, tp) | {"agent_name": f"agent-{rank}"}


def _registration_b(rank: int, tp: int) -> Body:
    return {"role": "Prefill", "tp_size": tp, "dp_size": 1, "engine_rank": rank}


def _sizes(rank: int, tp: int) -> Body:
    return {
        "attn_tp_size": tp,
        "attn_tp_rank": rank,
        "attn_dp_size": 1,
        "attn_dp_rank": 0,
        "pp_size": 1,
        "pp_rank": 0,
        "system_dp_size": 1,
        "system_dp_rank": 0,
    }


def _registration_c(rank: int, tp: int) -> Body:
    return {"role": "Prefill"} | _sizes(rank, tp)


def _registration_d(rank: int, tp: int) -> Body:
    return _registration_c(rank, tp) | {"page_size": 64}


_E_LEVELS: tuple[Body, ...] = (
    {
        "attn_cp_size": 1,
        "attn_cp_rank": 0,
        "page_size": 64,
        "kv_cache_dtype": "auto",
        "load_balance_method": "follow_bootstrap_room",
    },
    {"enable_dsa_cache_layer_split": False, "prefill_http_port": 30000},
    {"dsv41_spec_layout": None},
    {"decode_allocation_policy": "early"},
    {"kv_layout": None, "enable_kv_cache_sharding": False},
)
"""What each level of E adds to a registration."""


def _registration_e(level: int) -> Callable[[int, int], Body]:
    added = {key: value for keys in _E_LEVELS[:level] for key, value in keys.items()}
    return lambda rank, tp: _sizes(rank, tp) | added


_A = ("", "", "engine_rank={}")
_B = ("tp_size", "engine_rank=-1&target_dp_group=-1", "engine_rank={}&target_dp_group=0")
_C = (
    "attn_tp_size",
    "engine_rank=-1&target_dp_group=-1&target_pp_rank=-1",
    "engine_rank={}&target_dp_group=0&target_pp_rank=0",
)
_E = (
    "attn_tp_size",
    "prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1",
    "prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank={}&target_pp_rank=0",
)

_SPEAKERS = (
    Speaker("A1", *_A, health=False, registration=_registration_a),
    Speaker("A2", *_A, health=False, registration=_registration_nixl),
    Speaker("A3", *_A, health=False, registration=_registration_nixl),
    Speaker("B1", *_B, health=False, registration=_registration_b),
    Speaker("B2", *_B, health=False, registration=_registration_b),
    Speaker("B3", *_B, health=True, registration=_registration_b),
    Speaker("C", *_C, health=True, registration=_registration_c),
    Speaker("D", *_C, health=True, registration=_registration_d),
    *(
        Speaker(f"E{level}", *_E, health=True, registration=_registration_e(level))
        for level in range(1, len(_E_LEVELS) + 1)
    ),
)


def speaker_of(dialect: str) -> Speaker:
    """Return the requests of a dialect, named as in ``support.sglang_members``."""
    return next(speaker for speaker in _SPEAKERS if speaker.dialect == dialect)


def _topology(speaker: Speaker) -> str:
    return f"/route?{speaker.all_ranks}" if speaker.all_ranks else "/route"


def _route(speaker: Speaker, rank: object) -> str:
    return f"/route?{speaker.one_rank.format(rank)}"


def register(server: Transcript, speaker: Speaker) -> None:
    """From nothing to a complete prefill server of two ranks."""
    server.get("nothing registered: topology", _topology(speaker))
    server.get("nothing registered: rank 0", _route(speaker, 0))
    server.put("first rank", speaker.rank(0))
    server.get("first rank: topology", _topology(speaker))
    server.get("first rank: rank 0", _route(speaker, 0))
    server.get("first rank: rank 1", _route(speaker, 1))
    server.put("first rank again", speaker.rank(0))
    server.get("first rank again: topology", _topology(speaker))
    server.put("second rank", speaker.rank(1))
    server.get("complete: topology", _topology(speaker))
    for rank in range(2):
        server.get(f"complete: rank {rank}", _route(speaker, rank))


def unknown(server: Transcript, speaker: Speaker) -> None:
    """Ranks, keys, paths and methods that a server does not have."""
    for rank in range(2):
        server.put(f"rank {rank}", speaker.rank(rank))
    server.get("a rank too high", _route(speaker, 7))
    server.get("a negative rank", _route(speaker, -7))
    if speaker.family != "A":
        partial = _topology(speaker).replace("-1", "0", 1)
        server.get("a topology query with one rank", partial)
    server.put("a key that nobody knows", speaker.rank(0, newer_than_all="x"))
    server.get("a key that nobody knows: rank 0", _route(speaker, 0))
    if speaker.family < "E":
        other = speaker.rank(1, rank_port=18000, role="Decode")
        server.put("another role", other)
        server.get("another role: rank 1", _route(speaker, 1))
    server.get("a path", "/nothing")
    for method in ("POST", "DELETE", "OPTIONS"):
        server.other(f"{method} on /route", method, "/route")
    server.get("health", "/health")
    if speaker.family == "E":
        server.get("GET on /query_dp_ranks", "/query_dp_ranks")


def dp_ranks(server: Transcript, speaker: Speaker) -> None:
    """The DP ranks of rooms, which only dialect E has."""
    register, query = "/register_dp_rank", "/query_dp_ranks"
    server.post("a room", register, {"bootstrap_room": 42, "dp_rank": 3})
    server.post("the room again", register, {"bootstrap_room": 42, "dp_rank": 1})
    server.post("the highest room", register, {"bootstrap_room": 2**63 - 1, "dp_rank": 0})
    server.post("a room as a text", register, {"bootstrap_room": "43", "dp_rank": "2"})
    asked = [42, 43, 99, 2**63 - 1]
    server.post("query", query, {"bootstrap_rooms": asked})
    server.post("query with texts", query, {"bootstrap_rooms": ["42", " 43"]})
    server.post("query of none", query, {"bootstrap_rooms": []})
    server.post("query without the key", query, {})
    server.post("query of a word", query, {"bootstrap_rooms": ["word"]})
    server.post("a room without a DP rank", register, {"bootstrap_room": 44})
    server.post("a room that is a word", register, {"bootstrap_room": "word", "dp_rank": 0})


def restart(server: Transcript, speaker: Speaker) -> None:
    """One rank comes back at another address."""
    for rank in range(2):
        server.put(f"rank {rank}", speaker.rank(rank))
    server.put("rank 0 again, elsewhere", speaker.rank(0, rank_ip="10.0.9.9", rank_port=19000))
    server.get("after one: topology", _topology(speaker))
    server.get("after one: rank 0", _route(speaker, 0))
    server.get("after one: rank 1", _route(speaker, 1))
    server.put("rank 1 again, elsewhere", speaker.rank(1, rank_ip="10.0.9.9", rank_port=19001))
    server.get("after both: topology", _topology(speaker))
    for rank in range(2):
        server.get(f"after both: rank {rank}", _route(speaker, rank))


def growth(server: Transcript, speaker: Speaker) -> None:
    """A prefill server of TP 2 comes back with TP 4 on another host."""
    for rank in range(2):
        server.put(f"TP2, rank {rank}", speaker.rank(rank))
    server.get("TP2: topology", _topology(speaker))
    for rank in range(4):
        server.put(f"TP4, rank {rank}", speaker.rank(rank, 4, rank_ip="10.0.9.9"))
        if rank == 0 and speaker.family != "A":
            server.get("TP4 has one rank: topology", _topology(speaker))
            server.get("TP4 has one rank: rank 1", _route(speaker, 1))
    server.get("TP4: topology", _topology(speaker))
    for rank in range(4):
        server.get(f"TP4: rank {rank}", _route(speaker, rank))


def bad_queries(server: Transcript, speaker: Speaker) -> None:
    """Queries that no client sends."""
    for rank in range(2):
        server.put(f"rank {rank}", speaker.rank(rank))
    names = speaker.one_rank.split("&")
    if len(names) > 1:
        server.get("without the last parameter", "/route?" + "&".join(names[:-1]).format(0))
    server.get("an empty parameter", _route(speaker, ""))
    server.get("a word for a rank", _route(speaker, "word"))
    server.get("unknown parameters only", "/route?nobody=0")


def bad_registrations(server: Transcript, speaker: Speaker) -> None:
    """Registrations that cannot be meant, and the server afterwards."""
    server.put("without rank_port", speaker.rank(0, rank_port=...))
    server.put("a word for rank_port", speaker.rank(0, rank_port="word"))
    server.put("no JSON", "{")
    server.put("an array", [1])
    if speaker.family < "E":
        server.put("without role", speaker.rank(0, role=...))
    if speaker.family == "E":
        server.put("rank_ip of another type", speaker.rank(0, rank_ip=["10.0.0.1"]))
    for rank in range(2):
        server.put(f"rank {rank}", speaker.rank(rank, rank_port=str(17000 + rank)))
    for rank in range(2):
        server.get(f"afterwards: rank {rank}", _route(speaker, rank))


def poison(server: Transcript, speaker: Speaker) -> None:
    """A registration whose size is a text, and the ones after it."""
    server.put("size as a text", speaker.rank(0, **{speaker.size_key: "2"}))
    for rank in range(2):
        server.put(f"rank {rank}", speaker.rank(rank))
    server.get("afterwards: topology", _topology(speaker))


def no_size(server: Transcript, speaker: Speaker) -> None:
    """A registration whose size is 0."""
    server.put("size 0", speaker.rank(0, **{speaker.size_key: 0}))
    server.get("afterwards: topology", _topology(speaker))


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario, and the dialects that can play it."""

    play: Callable[[Transcript, Speaker], None]
    families: str = "ABCDE"

    @property
    def name(self) -> str:
        return self.play.__name__

    def __str__(self) -> str:
        return self.name


SCENARIOS = (
    Scenario(register),
    Scenario(unknown),
    Scenario(dp_ranks, "E"),
    Scenario(restart),
    Scenario(growth),
    Scenario(bad_queries),
    Scenario(bad_registrations),
    Scenario(poison, "BCDE"),
    Scenario(no_size, "BCDE"),
)
