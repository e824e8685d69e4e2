"""Every spelling of an address (operator cases 6 and 19)."""

from __future__ import annotations

import pytest

from bootstrap_grpc.client.target import parse_target


@pytest.mark.parametrize(
    ("text", "shown", "dialled"),
    [
        ("10.0.0.1", "10.0.0.1:18998", "ipv4:10.0.0.1:18998"),
        ("10.0.0.1:8998", "10.0.0.1:8998", "ipv4:10.0.0.1:8998"),
        ("prefill-0", "prefill-0:18998", "dns:///prefill-0:18998"),
        ("prefill-0.ns.svc:1", "prefill-0.ns.svc:1", "dns:///prefill-0.ns.svc:1"),
        ("2001:db8::1", "[2001:db8::1]:18998", "ipv6:[2001:db8::1]:18998"),
        ("[2001:db8::1]", "[2001:db8::1]:18998", "ipv6:[2001:db8::1]:18998"),
        ("[2001:db8::1]:8998", "[2001:db8::1]:8998", "ipv6:[2001:db8::1]:8998"),
        ("fe80::1%eth0", "[fe80::1%eth0]:18998", "ipv6:[fe80::1%25eth0]:18998"),
        ("::", "[::1]:18998", "ipv6:[::1]:18998"),
        ("[::]:7", "[::1]:7", "ipv6:[::1]:7"),
        ("0.0.0.0:8998", "127.0.0.1:8998", "ipv4:127.0.0.1:8998"),
        (" localhost:65535 ", "localhost:65535", "dns:///localhost:65535"),
    ],
)
def test_spellings(text: str, shown: str, dialled: str) -> None:
    target = parse_target(text)
    assert str(target) == shown
    assert target.grpc_target == dialled


@pytest.mark.parametrize(
    "text",
    [
        "", ":8998", "host:", "host:0", "host:65536", "host:-1", "host:8998x", "host:٣",
        "http://host:8998", "dns:///host:1", "[::1", "[::1]8998", "[10.0.0.1]:1", "[]:1",
        "a b:1", "1:2:3", "host:1:2", "unix:/run/sock",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_naming_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|port|host") as refused:
        parse_target(text)
    assert repr(text) in str(refused.value)
