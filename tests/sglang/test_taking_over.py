"""Migration, as the README says: this service holds the port before the engine starts its own."""

from __future__ import annotations

import pytest

from bootstrap_grpc.client import BootstrapClient, TopologyState
from support.sglang_matrix import SIZES, Peers
from support.sglang_members import MEMBERS, Member, chosen
from support.sglang_process import ChildError
from support.sglang_servers import ranks_of, run_service

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]


@pytest.mark.parametrize("member", chosen(MEMBERS), ids=str)
def test_an_engine_whose_port_is_taken_registers_here(peers: Peers, member: Member) -> None:
    engine = peers.of(member)
    expected = 4 if member.family == "A" else None  # its registrations do not say
    with run_service(expected_ranks=expected) as service, BootstrapClient(service.grpc) as client:
        host, port = service.address.split(":")
        with pytest.raises(ChildError, match="did not start to listen"):
            engine.serve(host, int(port))  # SGLang itself only logs it, and goes on
        for rank in ranks_of(SIZES):
            assert engine.register(service.address, rank).log == ()
        topology = client.get_topology()
    assert (topology.state, topology.registered) == (TopologyState.READY, 4)
