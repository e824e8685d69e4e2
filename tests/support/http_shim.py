"""An HTTP shim in the test's own event loop, and a client that sees the bytes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from bootstrap_grpc.compat.config import HttpConfig
from bootstrap_grpc.compat.shim import HttpShim
from bootstrap_grpc.server.registry import RankRegistry, RegistryConfig
from bootstrap_grpc.server.rooms import RoomTable

SERVER_ID = "server-1"
GRPC_PORT = 18_998
TOPOLOGY = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"


def rank_target(dp: object = 0, cp: object = 0, tp: object = 0, pp: object = 0) -> str:
    return (
        f"/route?prefill_dp_rank={dp}&prefill_cp_rank={cp}&target_tp_rank={tp}&target_pp_rank={pp}"
    )


def payload(**changes: Any) -> dict[str, Any]:
    """What SGLang 0.5.23 puts for its only rank, with ``changes``; a value of ``...`` removes."""
    body = {
        "attn_tp_size": 1,
        "attn_tp_rank": 0,
        "attn_cp_size": 1,
        "attn_cp_rank": 0,
        "attn_dp_size": 1,
        "attn_dp_rank": 0,
        "pp_size": 1,
        "pp_rank": 0,
        "system_dp_size": 1,
        "system_dp_rank": 0,
        "rank_ip": "10.0.0.1",
        "rank_port": 17000,
        "page_size": 64,
        "kv_cache_dtype": "auto",
        "kv_layout": None,
        "dsv41_spec_layout": None,
        "load_balance_method": "follow_bootstrap_room",
        "enable_dsa_cache_layer_split": False,
        "enable_kv_cache_sharding": False,
        "prefill_http_port": 30000,
        "decode_allocation_policy": "early",
    }
    return {key: value for key, value in (body | changes).items() if value is not ...}


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def closes(self) -> bool:
        return self.headers.get("connection") == "close"


class HttpConnection:
    """One client connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        headers: str = "",
        version: str = "1.1",
    ) -> None:
        data = (
            b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        )
        length = "" if body is None else f"Content-Length: {len(data)}\r\n"
        head = f"{method} {target} HTTP/{version}\r\nHost: shim\r\n{length}{headers}\r\n"
        await self.write(head.encode() + data)

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def receive(self, *, head_only: bool = False) -> Reply:
        """The next reply; fails the test where none comes within its time."""
        async with _deadline():
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {
                name.lower(): value.strip()
                for name, _, value in (line.partition(":") for line in lines[1:] if line)
            }
            length = 0 if head_only else int(headers.get("content-length", 0))
            return Reply(int(lines[0].split()[1]), headers, await self.reader.readexactly(length))

    async def at_eof(self) -> bool:
        """Whether the server has closed its side and sent nothing more."""
        async with _deadline():
            return await self.reader.read(1) == b""

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@dataclass
class RunningShim:
    shim: HttpShim
    registry: RankRegistry
    rooms: RoomTable
    opened: list[HttpConnection] = field(default_factory=list)

    @property
    def port(self) -> int:
        return self.shim.port

    async def connect(self, host: str = "127.0.0.1") -> HttpConnection:
        """A connection that is closed with the shim at the latest."""
        connection = HttpConnection(*await asyncio.open_connection(host, self.port))
        self.opened.append(connection)
        return connection

    async def call(self, method: str, target: str, body: Any = None, **options: Any) -> Reply:
        """One request on a connection of its own."""
        connection = await self.connect()
        try:
            await connection.send(method, target, body, **options)
            return await connection.receive(head_only=method == "HEAD")
        finally:
            await connection.close()

    async def register(self, **changes: Any) -> Reply:
        return await self.call("PUT", "/route", payload(**changes))


@asynccontextmanager
async def running_shim(
    config: HttpConfig | None = None, *, instance_id: str = ""
) -> AsyncIterator[RunningShim]:
    registry = RankRegistry(
        RegistryConfig(SERVER_ID, instance_id), clock=time.monotonic, wall_clock=time.time
    )
    rooms = RoomTable(time.monotonic)
    config = replace(config or HttpConfig(), port=0)
    shim = HttpShim(registry, rooms, config, grpc_port=GRPC_PORT)
    await shim.start()
    running = RunningShim(shim, registry, rooms)
    try:
        yield running
    finally:
        for connection in running.opened:
            await connection.close()
        await shim.stop(1.0)


@asynccontextmanager
async def _deadline(seconds: float = 20.0) -> AsyncIterator[None]:
    # asyncio.timeout does not exist on Python 3.10.
    task = asyncio.current_task()
    assert task is not None
    handle = asyncio.get_running_loop().call_later(seconds, task.cancel)
    try:
        yield
    except asyncio.CancelledError:
        raise AssertionError(f"the server said nothing for {seconds} s") from None
    finally:
        handle.cancel()
