"""Both protocols see one registry: SGLang 0.5.23's own code over HTTP, this project's over gRPC."""

from __future__ import annotations

import pytest

from bootstrap_grpc.client import BootstrapClient
from bootstrap_grpc.protos.model import Attributes, RankKey, Registration, Shape, TopologyState
from support.sglang_peer import SglangPeer
from support.sglang_servers import Service, key_of, ranks_of

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]  # the first run downloads the release

ROOMS = (0, 101, 2**63 - 1)


def test_grpc_reads_what_sglang_registered(service: Service, peer: SglangPeer) -> None:
    ranks = ranks_of((2, 1, 2, 1))
    for rank in ranks:
        peer.register(service.address, rank)
    for dp_rank, room in enumerate(ROOMS):
        peer.register_dp_rank(service.address, room, dp_rank)

    with BootstrapClient(service.grpc) as client:
        topology = client.get_topology()
        routes = {key: client.get_route(RankKey(*key)) for key in map(key_of, ranks)}
        dp_ranks = client.query_dp_ranks([*ROOMS, 999])

    assert topology.state is TopologyState.READY
    assert (topology.registered, topology.expected) == (4, 4)
    shape = topology.shape
    assert shape is not None
    assert (shape.attn_tp_size, shape.attn_cp_size, shape.dp_size, shape.pp_size) == (2, 1, 2, 1)
    assert (shape.page_size, shape.kv_cache_dtype) == (64, "auto")
    assert shape.load_balance_method == "round_robin"
    for rank in ranks:
        route = routes[key_of(rank)]
        assert (route.rank_ip, route.rank_port) == (rank.rank_ip, rank.rank_port)
        assert route.attributes.prefill_http_port == 30000
        assert not route.held
    assert dp_ranks == {0: 0, 101: 1, 2**63 - 1: 2}


def test_sglang_reads_what_grpc_registered(service: Service, peer: SglangPeer) -> None:
    shape = Shape(
        attn_tp_size=2,
        dp_size=2,
        page_size=64,
        kv_cache_dtype="auto",
        load_balance_method="round_robin",
    )
    keys = list(shape.keys())
    with BootstrapClient(service.grpc) as client:
        for n, key in enumerate(keys):
            client.register_rank(
                Registration(key, "10.0.0.9", 41000 + n, shape, Attributes(prefill_http_port=30001))
            )
        client.register_dp_ranks({room: dp_rank for dp_rank, room in enumerate(ROOMS)})

    topology = peer.topology(service.address, (2, 1, 2, 1))
    assert topology.log == ()
    assert topology.value["dp_size"] == 2
    assert topology.value["follow_bootstrap_room"] is False
    assert topology.value["prefill_http_port"] == 30001
    for n, key in enumerate(keys):
        route = peer.route(service.address, (key.dp_rank, key.cp_rank, key.tp_rank, key.pp_rank))
        assert (route.value["rank_ip"], route.value["rank_port"]) == ("10.0.0.9", 41000 + n)
    answer = peer.query_dp_ranks(service.address, ROOMS)
    assert answer.value == {"0": 0, "101": 1, "9223372036854775807": 2}
