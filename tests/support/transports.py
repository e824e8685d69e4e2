"""One way to say things to the service over either of its transports."""

from __future__ import annotations

import http.client
import json
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

from bootstrap_grpc.client import BootstrapClient, BootstrapError, NotFound
from bootstrap_grpc.protos.model import RankKey, Registration

__all__ = ["GrpcTransport", "HttpTransport", "RefusedError", "Transport"]


class RefusedError(Exception):
    """A call was refused, in the words of its transport."""


class Transport(ABC):
    """What both protocols can say. A refusal raises ``RefusedError``."""

    name: str

    @abstractmethod
    def register(self, registration: Registration) -> None: ...

    @abstractmethod
    def route(self, key: RankKey) -> tuple[str, int] | None:
        """Address of a rank, ``None`` where it is not served."""

    @abstractmethod
    def is_ready(self) -> bool: ...

    @abstractmethod
    def register_room(self, room: int, dp_rank: int) -> None: ...

    @abstractmethod
    def query_rooms(self, rooms: list[int]) -> dict[int, int]: ...

    @abstractmethod
    def close(self) -> None: ...


class GrpcTransport(Transport):
    name = "grpc"

    def __init__(self, address: str) -> None:
        self._client = BootstrapClient(address)

    def register(self, registration: Registration) -> None:
        # One process for each address: a rank elsewhere is another start, not a move.
        owner = f"{registration.rank_ip}:{registration.rank_port}"
        try:
            self._client.register_rank(replace(registration, owner=owner))
        except BootstrapError as error:
            raise RefusedError(str(error)) from error

    def route(self, key: RankKey) -> tuple[str, int] | None:
        try:
            route = self._client.get_route(key)
        except NotFound:
            return None
        return route.rank_ip, route.rank_port

    def is_ready(self) -> bool:
        return self._client.get_topology().state.name == "READY"

    def register_room(self, room: int, dp_rank: int) -> None:
        try:
            self._client.register_dp_ranks({room: dp_rank})
        except BootstrapError as error:
            raise RefusedError(str(error)) from error

    def query_rooms(self, rooms: list[int]) -> dict[int, int]:
        try:
            return self._client.query_dp_ranks(rooms)
        except BootstrapError as error:
            raise RefusedError(str(error)) from error

    def close(self) -> None:
        self._client.close()


class HttpTransport(Transport):
    name = "http"

    def __init__(self, address: str) -> None:
        self._address = address

    def request(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self._address, timeout=10)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def register(self, registration: Registration) -> None:
        shape, key = registration.shape, registration.key
        body: dict[str, Any] = {
            "attn_tp_size": shape.attn_tp_size,
            "attn_tp_rank": key.tp_rank,
            "attn_cp_size": shape.attn_cp_size,
            "attn_cp_rank": key.cp_rank,
            "attn_dp_size": shape.dp_size,
            "attn_dp_rank": key.dp_rank,
            "pp_size": shape.pp_size,
            "pp_rank": key.pp_rank,
            "system_dp_size": 1,
            "system_dp_rank": 0,
            "rank_ip": registration.rank_ip,
            "rank_port": registration.rank_port,
            "page_size": shape.page_size,
            "kv_cache_dtype": shape.kv_cache_dtype,
            "load_balance_method": shape.load_balance_method,
            "prefill_http_port": registration.attributes.prefill_http_port,
        }
        self._ok(*self.request("PUT", "/route", body))

    def route(self, key: RankKey) -> tuple[str, int] | None:
        status, text = self.request(
            "GET",
            f"/route?prefill_dp_rank={key.dp_rank}&prefill_cp_rank={key.cp_rank}"
            f"&target_tp_rank={key.tp_rank}&target_pp_rank={key.pp_rank}",
        )
        if status in (404, 503):
            return None
        assert status == 200, text
        found = json.loads(text)
        return found["rank_ip"], found["rank_port"]

    def is_ready(self) -> bool:
        return self.topology() is not None

    def topology(self) -> dict[str, Any] | None:
        """The topology reply, ``None`` for 503."""
        status, text = self.request(
            "GET",
            "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1",
        )
        assert status in (200, 503), text
        return json.loads(text) if status == 200 else None

    def register_room(self, room: int, dp_rank: int) -> None:
        body = {"bootstrap_room": room, "dp_rank": dp_rank}
        self._ok(*self.request("POST", "/register_dp_rank", body))

    def query_rooms(self, rooms: list[int]) -> dict[int, int]:
        status, text = self.request("POST", "/query_dp_ranks", {"bootstrap_rooms": rooms})
        self._ok(status, text)
        return {int(room): rank for room, rank in json.loads(text).items()}

    def close(self) -> None:
        """Nothing is open between requests."""

    @staticmethod
    def _ok(status: int, text: str) -> None:
        if status != 200:
            assert 400 <= status < 500, f"{status} {text}"
            raise RefusedError(f"{status} {text}")
