"""Registration rule 7: which ``rank_ip`` a peer can dial, and which spellings are one address."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bootstrap_grpc.protos.errors import BootstrapError, ErrorCode
from bootstrap_grpc.server.addresses import Peer, canonical, check_rank_ip
from bootstrap_grpc.server.peers import peer_from_grpc, peer_from_ip
from support.registrations import LOCAL, REMOTE, refused

ANY, HOST_ONLY, NEVER = "from anywhere", "from this host", "never"

TABLE = {
    "0.0.0.0": NEVER,
    "0.0.0.1": NEVER,  # "this network", RFC 1122
    "::": NEVER,
    "[::]": NEVER,
    "::ffff:0.0.0.0": NEVER,
    "": NEVER,
    " ": NEVER,
    "[]": NEVER,
    "localhost": HOST_ONLY,
    "LOCALHOST.": HOST_ONLY,
    "localhost.localdomain": HOST_ONLY,
    "api.localhost": HOST_ONLY,  # RFC 6761
    "ip6-localhost": HOST_ONLY,  # Debian's /etc/hosts
    "ip6-loopback": HOST_ONLY,
    "127.0.0.1": HOST_ONLY,
    "127.255.255.254": HOST_ONLY,
    "[127.0.0.1]": HOST_ONLY,
    "::1": HOST_ONLY,
    "[::1]": HOST_ONLY,
    "0:0:0:0:0:0:0:1": HOST_ONLY,
    "::ffff:127.0.0.1": HOST_ONLY,
    "[::ffff:127.0.0.1]": HOST_ONLY,
    "::FFFF:7f00:1": HOST_ONLY,
    "224.0.0.1": NEVER,
    "239.255.255.255": NEVER,
    "::ffff:224.0.0.1": NEVER,
    "ff02::1": NEVER,
    "255.255.255.255": NEVER,
    "192.0.2.300": NEVER,
    "192.0.2": NEVER,  # resolvers read it as 192.0.0.2
    "127.1": NEVER,
    "0x7f.1": NEVER,
    "0x7f000001": NEVER,
    "2130706433": NEVER,
    "0177.0.0.1": NEVER,
    "127.0.0.1.": NEVER,
    " 10.0.0.1": NEVER,
    "10.0.0.1 ": NEVER,
    "10.0.0.1\n": NEVER,
    "10.0.0.1:17001": NEVER,
    "http://10.0.0.1": NEVER,
    "10.0.0.1/8": NEVER,
    "a b": NEVER,
    "a..b": NEVER,
    ".a": NEVER,
    "-a": NEVER,
    "[::1": NEVER,
    "[[::1]]": NEVER,
    "\u0661\u0662\u0667.0.0.1": NEVER,  # digits, but not ASCII's
    "a" * 64: NEVER,
    ".".join(["a" * 63] * 4): NEVER,
    "192.0.2.7": ANY,
    "::ffff:192.0.2.7": ANY,
    "2001:db8::7": ANY,
    "[2001:db8::7]": ANY,
    "fe80::1%eth0": ANY,
    "240.0.0.1": ANY,  # reserved, yet some clusters use it
    "node-7": ANY,
    "node_7.rack1.example.com.": ANY,
    "7up": ANY,
    "0xcafe.example": ANY,
    "a" * 63: ANY,
}


@pytest.mark.parametrize("rank_ip", TABLE, ids=lambda text: ascii(text)[:40])
def test_rule_7(rank_ip: str) -> None:
    if TABLE[rank_ip] is NEVER:
        with refused(ErrorCode.INVALID_FIELD) as caught:
            check_rank_ip(rank_ip, LOCAL)
        assert caught.value.fields[0].field == "rank_ip"
    else:
        check_rank_ip(rank_ip, LOCAL)
    if TABLE[rank_ip] is ANY:
        check_rank_ip(rank_ip, REMOTE)
    else:
        with refused(ErrorCode.INVALID_FIELD):
            check_rank_ip(rank_ip, REMOTE)


def test_loopback_from_elsewhere_names_both_addresses() -> None:
    with refused(ErrorCode.INVALID_FIELD) as caught:
        check_rank_ip("127.0.0.1", REMOTE)
    assert "127.0.0.1" in str(caught.value)
    assert REMOTE.address in str(caught.value)


def code_of_refusal(text: str, peer: Peer) -> ErrorCode | None:
    try:
        check_rank_ip(text, peer)
    except BootstrapError as error:
        return error.code
    return None


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=300) | st.from_regex(r"[0-9a-fx:.%\[\]]{0,45}"))
def test_any_text_is_taken_or_refused(text: str) -> None:
    here, elsewhere = code_of_refusal(text, LOCAL), code_of_refusal(text, REMOTE)
    assert {here, elsewhere} <= {None, ErrorCode.INVALID_FIELD}
    assert elsewhere is not None or here is None  # this host may whatever others may
    if here is None:
        assert canonical(canonical(text)) == canonical(text)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("10.0.0.1", "::ffff:10.0.0.1"),
        ("10.0.0.1", "[::ffff:a00:1]"),
        ("2001:DB8::0:7", "[2001:db8::7]"),
        ("Node-7.Example.", "node-7.example"),
    ],
)
def test_spellings_of_one_address(left: str, right: str) -> None:
    assert canonical(left) == canonical(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("10.0.0.1", "10.0.0.2"),
        ("fe80::1%eth0", "fe80::1%eth1"),
        ("localhost", "127.0.0.1"),  # names are never resolved
        ("node-7", "node-7.example"),
    ],
)
def test_two_addresses(left: str, right: str) -> None:
    assert canonical(left) != canonical(right)


# --- who is on this host ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peer", "address", "on_this_host"),
    [
        ("ipv4:127.0.0.1:5000", "127.0.0.1", True),
        ("ipv4:127.8.0.1:5000", "127.8.0.1", True),
        ("ipv6:[::1]:5000", "::1", True),
        ("ipv6:%5B::1%5D:5000", "::1", True),
        ("ipv6:[::ffff:127.0.0.1]:5000", "127.0.0.1", True),
        ("ipv4:192.0.2.7:5000", "192.0.2.7", False),
        ("ipv6:[2001:db8::7]:5000", "2001:db8::7", False),
        ("ipv6:%5Bfe80::1%25eth9%5D:5000", "fe80::1%eth9", False),
        ("unix:", "unix:", True),
        ("unix:/run/bootstrap.sock", "unix:/run/bootstrap.sock", True),
        ("unix-abstract:name", "unix-abstract:name", True),
        ("vsock:3:5000", "vsock:3:5000", False),
        ("unknown", "unknown", False),
        ("", "", False),
    ],
)
def test_a_peer_as_grpc_names_it(peer: str, address: str, on_this_host: bool) -> None:
    found = peer_from_grpc(peer)
    assert (found.address, found.on_this_host) == (address, on_this_host)


@pytest.mark.parametrize("ip", ["", "not an address", "localhost", "300.0.0.1"])
def test_what_is_no_address_is_elsewhere(ip: str) -> None:
    assert not peer_from_ip(ip).on_this_host
