"""The HTTP port and SGLang's own servers are asked the same; every difference has its reason.

``BOOTSTRAP_GRPC_SGLANG_RELEASES=all`` asks the servers of all releases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from contract.differences import DIFFERENCES, expected_differences

from bootstrap_grpc.compat.config import HttpConfig
from support.http_shim import running_shim
from support.sglang_matrix import Peers
from support.sglang_members import MEMBERS, Member, chosen
from support.sglang_scenarios import SCENARIOS, Answer, Scenario, Transcript, speaker_of
from support.sglang_skips import SkippingPeers

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]  # the first run downloads the releases

CASES = [
    (member, scenario)
    for member in chosen(MEMBERS)
    for scenario in SCENARIOS
    if member.family in scenario.families
]

HOLD = 0.2
"""Seconds for which a request waits for READY: the scenarios ask before that comes."""


@pytest.fixture(scope="module")
def peers() -> Iterator[Peers]:
    with SkippingPeers() as peers:
        yield peers


def config_for(member: Member, scenario: Scenario) -> HttpConfig:
    if member.family != "A":
        return HttpConfig(hold=HOLD)
    if scenario.name == "growth":  # the number of ranks changes: it cannot be given
        return HttpConfig(hold=20 * HOLD, quiet=HOLD)
    return HttpConfig(hold=HOLD, expected_ranks=2)


def ask_sglang(peers: Peers, member: Member, scenario: Scenario) -> dict[str, Answer]:
    peer = peers.of(member)
    transcript = Transcript(peer.serve())
    try:
        scenario.play(transcript, speaker_of(member.dialect))
    finally:
        peer.close_server()
    return transcript.answers


async def ask_us(member: Member, scenario: Scenario) -> dict[str, Answer]:
    async with running_shim(config_for(member, scenario)) as shim:
        transcript = Transcript(f"127.0.0.1:{shim.port}")
        await asyncio.to_thread(scenario.play, transcript, speaker_of(member.dialect))
    return transcript.answers


@pytest.mark.parametrize(("member", "scenario"), CASES, ids=str)
async def test_the_same_answers_but_for_the_table(
    peers: Peers, member: Member, scenario: Scenario
) -> None:
    theirs = ask_sglang(peers, member, scenario)
    ours = await ask_us(member, scenario)
    assert theirs.keys() == ours.keys()

    differ = {step for step in theirs if theirs[step] != ours[step]}
    expected = expected_differences(scenario.name, member.dialect)

    unexplained = [f"{step}: {theirs[step]} / {ours[step]}" for step in differ - expected.keys()]
    assert not unexplained, f"not in the table, SGLang's answer / ours: {unexplained}"
    assert not expected.keys() - differ, "in the table, and answered alike"
    for step, row in expected.items():
        one, other = theirs[step], ours[step]
        assert (one.status, other.status) == (row.theirs, row.ours), step
        if row.same_values:
            both = one.body.keys() & other.body.keys()
            assert both, step
            assert {key: one.body[key] for key in both} == {key: other.body[key] for key in both}


def test_every_row_of_the_table_is_about_some_release() -> None:
    """A row for no scenario, no step or no dialect would never be found stale."""
    played = {(s.name, m.dialect) for m in MEMBERS for s in SCENARIOS if m.family in s.families}
    for row in DIFFERENCES:
        assert any(name == row.scenario and row.covers(dialect) for name, dialect in played), row
        assert row.reason
