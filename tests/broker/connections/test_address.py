"""One address, one spelling."""

from __future__ import annotations

import pytest

from minibroker.broker.connections.address import client_ip


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("::ffff:7f00:1", "127.0.0.1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("", ""),
        ("no:address", "no:address"),
    ],
)
def test_equivalent_address_spellings_are_one_address(host: str, expected: str) -> None:
    assert client_ip(host) == expected
