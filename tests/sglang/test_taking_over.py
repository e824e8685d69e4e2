"""Migration, as the README says: this service holds the port before the engine starts its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from bootstrap_grpc.client import BootstrapClient, TopologyState
from support.sglang_peer import SglangPeer
from support.sglang_process import ChildError
from support.sglang_servers import Service, ranks_of

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]


def test_an_engine_whose_port_is_taken_registers_here(
    service: Service, newest_release: Path
) -> None:
    with SglangPeer(newest_release) as engine, BootstrapClient(service.grpc) as client:
        host, port = service.address.split(":")
        with pytest.raises(ChildError, match="did not start to listen"):
            engine.serve(host, int(port))  # SGLang itself only logs it, and goes on
        for rank in ranks_of((2, 1, 1, 1)):
            engine.register(service.address, rank)
        assert client.get_topology().state is TopologyState.READY
        assert engine.topology(service.address, (2, 1, 1, 1)).value is not None
