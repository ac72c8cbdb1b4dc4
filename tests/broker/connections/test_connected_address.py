"""Which address a client of a listener that is advertised by connection gets."""

from __future__ import annotations

import pytest

from minibroker.broker.connections.connected_address import (
    ROUTES_KEPT_S,
    ConnectedAddresses,
    Route,
    is_direct,
)

CONTAINER = "172.17.0.2"
ROUTES: list[Route] = [
    ("0.0.0.0/0.0.0.0", "172.17.0.1"),
    ("172.17.0.0/255.255.0.0", None),
    ("fd00::/64", None),
    ("::/0", "fd00::1"),
]
"""A container's, as `own_routes` returns them."""


@pytest.mark.parametrize(
    ("local", "client", "is_directly_connected"),
    [
        pytest.param(CONTAINER, "172.17.0.3", True, id="another container of the network"),
        pytest.param(CONTAINER, "172.17.0.1", False, id="the gateway, for a published port"),
        pytest.param(CONTAINER, CONTAINER, False, id="the container's own address"),
        pytest.param(CONTAINER, "192.168.65.1", False, id="Docker Desktop"),
        pytest.param(CONTAINER, "140.82.112.4", False, id="another host"),
        pytest.param("127.0.0.1", "127.0.0.1", True, id="inside of the container"),
        pytest.param("::1", "::1", True, id="inside of the container with IPv6"),
        pytest.param("fd00::2", "fd00::3", True, id="another container with IPv6"),
        pytest.param("fd00::2", "fd00::1", False, id="the gateway with IPv6"),
        pytest.param("fd00::2", "2001:db8::7", False, id="another host with IPv6"),
    ],
)
def test_client_connected_directly_if_it_is_in_a_network_of_the_broker(
    local: str, client: str, is_directly_connected: bool
) -> None:
    assert is_direct(local, client, ROUTES) == is_directly_connected


def test_default_route_without_gateway_is_no_network() -> None:
    assert not is_direct(CONTAINER, "8.8.8.8", [("0.0.0.0/0", None), ("172.17.0.0/16", None)])


def test_every_other_host_connects_directly_if_no_route_is_known() -> None:
    assert is_direct(CONTAINER, "10.0.0.7", [])
    assert not is_direct(CONTAINER, CONTAINER, [])


def test_address_of_direct_client_is_that_of_its_connection() -> None:
    addresses = ConnectedAddresses(lambda: ROUTES)
    assert addresses.find((CONTAINER, 9092), "172.17.0.3", 0.0) == (CONTAINER, 9092)
    assert addresses.find((CONTAINER, 9092), "172.17.0.1", 0.0) is None
    mapped = addresses.find((f"::ffff:{CONTAINER}", 9092), "::ffff:172.17.0.3", 0.0)
    assert mapped == (CONTAINER, 9092)


def test_routes_are_read_again_after_a_second() -> None:
    later: list[list[Route]] = [ROUTES, [*ROUTES, ("10.5.0.0/16", None)]]
    addresses = ConnectedAddresses(lambda: later.pop(0))
    local, client = ("10.5.0.2", 9092), "10.5.0.9"
    assert addresses.find(local, client, 7.0) is None
    assert addresses.find(local, client, 7.0 + ROUTES_KEPT_S / 2) is None
    assert addresses.find(local, client, 7.0 + ROUTES_KEPT_S) == local
