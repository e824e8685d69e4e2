"""Inside a dialect, every release's decode reads what every release's prefill registered.

``BOOTSTRAP_GRPC_SGLANG_RELEASES=all`` tests every release of ``support.sglang_members``; without
it one release of each dialect is tested.
"""

from __future__ import annotations

import pytest

from support.sglang_matrix import Cell, Peers, served_by_sglang, served_by_us
from support.sglang_members import MEMBERS, Member, chosen
from support.sglang_roles import PrefillRank
from support.sglang_servers import run_service

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]  # the first run downloads the releases

OMITTING = ("prefill_http_port",)
"""What a fleet with decodes older than 0.5.16 leaves out (``--http-omit``)."""

LAST_WITHOUT_HTTP_PORT = (0, 5, 15, 1)
"""The newest release whose decode rejects ``prefill_http_port``."""

TESTED = chosen(MEMBERS)
PAIRS = [(prefill, decode) for prefill in TESTED for decode in TESTED]
INSIDE = [pair for pair in PAIRS if pair[0].family == pair[1].family]
OF_E = [pair for pair in INSIDE if pair[0].family == "E"]


@pytest.mark.parametrize(("prefill", "decode"), INSIDE, ids=str)
def test_every_decode_reads_every_prefill(peers: Peers, prefill: Member, decode: Member) -> None:
    peers.of(decode)  # skips before a server is started
    with served_by_us(peers, prefill, omit=OMITTING) as server:
        cell = peers.read(prefill, decode, server.address)

    assert cell.works, f"{cell} {cell.log}"


@pytest.mark.parametrize(("prefill", "decode"), OF_E, ids=str)
def test_without_omitting_old_decodes_reject_the_http_port(
    peers: Peers, prefill: Member, decode: Member
) -> None:
    with served_by_us(peers, prefill) as server:
        cell = peers.read(prefill, decode, server.address)

    rejects = decode.number <= LAST_WITHOUT_HTTP_PORT < prefill.number
    assert str(cell) == ("-RD" if rejects else "TRD"), cell.log


def test_how_sglang_s_own_servers_do(peers: Peers) -> None:
    """The control: the same calls find what the official servers are known to fail."""
    failed: set[tuple[str, str]] = set()
    for prefill in dict.fromkeys(prefill for prefill, _ in OF_E):
        with served_by_sglang(peers, prefill) as server:
            for decode in (decode for one, decode in OF_E if one is prefill):
                if not peers.read(prefill, decode, server.address).works:
                    failed.add((prefill.name, decode.name))
    # Each of these releases added a key to its topology, which older decodes reject.
    added = {"0.5.16", "0.5.22", "0.5.23"}
    levels = [member.release for member in MEMBERS if member.family == "E"]
    expected = {
        (prefill.name, decode.name)
        for prefill, decode in OF_E
        if added & set(levels[levels.index(decode.release) + 1 : levels.index(prefill.release) + 1])
    }
    assert failed == expected


def test_two_cp_ranks_of_0_5_9_share_a_key(peers: Peers) -> None:
    """Its PUT does not name the CP rank; each CP rank registers, and the last one is found."""
    (member,) = (member for member in MEMBERS if member.dialect == "D")
    peer = peers.of(member)
    with run_service() as service:
        for cp_rank, port in enumerate((41000, 41001)):
            rank = PrefillRank((1, 2, 1, 1), (0, cp_rank, 0, 0), "10.0.0.7", port)
            assert peer.register(service.address, rank).log == ()
        topology = peer.topology(service.address, (1, 2, 1, 1))
        route = peer.route(service.address, (0, 0, 0, 0))
    assert topology.value == {"attn_tp_size": 1, "dp_size": 1, "pp_size": 1, "page_size": 64}
    assert route.value == {"rank_ip": "10.0.0.7", "rank_port": 41001}
    assert topology.log == route.log == ()


def test_a_cell_shows_what_failed() -> None:
    assert str(Cell(topology=True, routes=True, dp_ranks=None)) == "TR."
    assert str(Cell(topology=None, routes=False, dp_ranks=None)) == ".-."
    assert Cell(topology=None, routes=True, dp_ranks=None).works
    assert not Cell(topology=True, routes=True, dp_ranks=False).works
