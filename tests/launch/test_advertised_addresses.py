"""The addresses that a running broker advertises: by connection, and changed while it runs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from minibroker.client.errors import BrokerError
from minibroker.client.kafka_client import KafkaClient
from minibroker.testing import MiniBroker
from minibroker_protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from minibroker_protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tests.launch.broker_configs import alter

BY_CONNECTION = {
    "listeners": "PLAINTEXT://0.0.0.0:0",
    "advertised.listeners": "PLAINTEXT://*:0",
}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with MiniBroker(settings=BY_CONNECTION) as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        assert host == "localhost"
        yield int(port)


def own_address() -> str:
    """An address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # Chooses the address, and sends nothing.
        except OSError:
            pytest.skip("this machine has no address but loopback")
        host: str = sock.getsockname()[0]
        return host


def advertised(client: KafkaClient) -> set[tuple[str, int]]:
    """The addresses of the broker in each kind of response that has one."""
    [broker] = client.metadata().brokers
    [described] = client.send(DescribeClusterRequest(), DescribeClusterResponse).brokers
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    [single] = client.send(request, FindCoordinatorResponse).coordinators
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["g", "h"])
    several = client.send(request, FindCoordinatorResponse).coordinators
    found: list[Any] = [broker, described, single, *several]
    return {(each.host, each.port) for each in found}


def test_client_gets_the_address_that_it_connected_to(port: int) -> None:
    with KafkaClient(f"127.0.0.1:{port}") as client:
        assert advertised(client) == {("127.0.0.1", port)}
    with KafkaClient(f"127.0.0.2:{port}") as client:
        assert advertised(client) == {("127.0.0.2", port)}


def test_client_of_a_forwarded_port_gets_localhost(port: int) -> None:
    # Some container engines forward from the container's own address.
    with KafkaClient(f"{own_address()}:{port}") as client:
        assert advertised(client) == {("localhost", port)}


def test_changed_advertised_listeners_reach_every_client(port: int) -> None:
    with KafkaClient(f"127.0.0.1:{port}") as before:
        connection = before._connection(None)
        alter(before, "advertised.listeners", "PLAINTEXT://broker.test:19092")
        assert advertised(before) == {("broker.test", 19092)}
        with KafkaClient(f"127.0.0.2:{port}") as after:
            assert advertised(after) == {("broker.test", 19092)}
            with pytest.raises(BrokerError, match="INVALID_REQUEST"):
                alter(before, "advertised.listeners", "OTHER://h:1")
            alter(before, "advertised.listeners", "PLAINTEXT://*:0")
            assert advertised(before) == {("127.0.0.1", port)}
            assert advertised(after) == {("127.0.0.2", port)}
        assert before._connection(None) is connection, "the broker has closed it"
