"""SGLang 0.5.23's own client code against the HTTP port.

The parameter ``sglang`` runs the same test against SGLang's own server of that release: where a
test fails on it too, the test is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from support.sglang_peer import SglangPeer, Sizes
from support.sglang_roles import PrefillRank
from support.sglang_servers import HttpServer, Service, key_of, ranks_of

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]  # the first run downloads the release

SHAPES: list[Sizes] = [(1, 1, 1, 1), (2, 1, 2, 1), (4, 2, 2, 2)]  # (tp, cp, dp, pp)
ROOMS = (0, 101, 2**63 - 1)


def wait_until(condition: Callable[[], bool], timeout: float = 20.0) -> None:
    """Poll until ``condition`` holds; fail after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.02)


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_topology_and_every_route(server: HttpServer, peer: SglangPeer, sizes: Sizes) -> None:
    address = server.address
    *others, last = ranks_of(sizes)

    for rank in others:
        assert peer.register(address, rank).log == ()
    early = peer.topology(address, sizes)
    assert early.value is None
    assert f"503, Prefill server not fully registered yet ({len(others)} workers" in early.log[0]
    assert peer.route(address, key_of(last)).value is None

    assert peer.register(address, last).log == ()
    ready = peer.topology(address, sizes)
    assert ready.log == ()
    tp, cp, dp, pp = sizes
    expected = {
        "attn_tp_size": tp,
        "attn_cp_size": cp,
        "dp_size": dp,
        "pp_size": pp,
        "page_size": 64,
        "kv_cache_dtype": "auto",
        "follow_bootstrap_room": False,
        "enable_dsa_cache_layer_split": False,
        "enable_kv_cache_sharding": False,
        "decode_allocation_policy": "early",
        "prefill_http_port": 30000,
        "kv_layout": None,
        "dsv41_spec_layout": None,
    }
    assert expected.items() <= ready.value.items()

    for rank in [*others, last]:
        route = peer.route(address, key_of(rank))
        assert route.log == ()
        assert (route.value["rank_ip"], route.value["rank_port"]) == (rank.rank_ip, rank.rank_port)

    unknown = peer.route(address, (dp, 0, 0, 0))
    assert unknown.value is None
    text = f"404, Bootstrap info not found for dp_rank={dp} cp_rank=0 tp_rank=0 pp_rank=0"
    assert text in unknown.log[0]


def test_dp_ranks_of_rooms(server: HttpServer, peer: SglangPeer) -> None:
    for dp_rank, room in enumerate(ROOMS):
        assert peer.register_dp_rank(server.address, room, dp_rank).log == ()

    answer = peer.query_dp_ranks(server.address, [*ROOMS, 999])

    assert answer.log == ()
    assert answer.value == {"0": 0, "101": 1, "9223372036854775807": 2}
    assert peer.query_dp_ranks(server.address, [7]).value == {}


def test_last_dp_rank_of_a_room_wins(server: HttpServer, peer: SglangPeer) -> None:
    peer.register_dp_rank(server.address, 5, 0)
    peer.register_dp_rank(server.address, 5, 1)

    assert peer.query_dp_ranks(server.address, [5]).value == {"5": 1}


@pytest.fixture
def watched(server: HttpServer, peer: SglangPeer) -> Iterator[HttpServer]:
    """A server with one rank, on which SGLang's heartbeat thread looks every 100 ms."""
    sizes = (1, 1, 1, 1)
    peer.register(server.address, PrefillRank(sizes=sizes))
    assert peer.start_heartbeat(server.address, sizes).value
    yield server
    peer.stop_heartbeat()


def test_heartbeat_stays_content(watched: HttpServer, peer: SglangPeer) -> None:
    wait_until(lambda: peer.heartbeat()["beats"] >= 5)

    state = peer.heartbeat()
    assert state["misses"] == 0  # it was started with one
    assert state["known"]


def test_heartbeat_notices_a_dead_server(watched: HttpServer, peer: SglangPeer) -> None:
    watched.kill()

    wait_until(lambda: not peer.heartbeat()["known"])


def test_same_rank_twice_is_one_rank(service: Service, peer: SglangPeer) -> None:
    # SGLang's own server counts calls, and so is ready with a rank missing.
    first, second = ranks_of((2, 1, 1, 1))
    for _ in range(2):
        assert peer.register(service.address, first).log == ()
    assert peer.topology(service.address, (2, 1, 1, 1)).value is None

    peer.register(service.address, second)
    assert peer.topology(service.address, (2, 1, 1, 1)).value is not None
