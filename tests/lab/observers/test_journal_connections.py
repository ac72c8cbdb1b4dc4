"""Connections that limits reject are recorded."""

from __future__ import annotations

import socket

import pytest

from minibroker.broker.settings.definitions import SHARDED
from minibroker.testing import MiniBroker
from tests.broker.network.raw_client import RawClient


@pytest.mark.parametrize(
    ("settings", "role", "expected"),
    [
        (
            {"max.connections.per.ip": 1},
            "acceptor",
            {"reason": "max_connections_per_ip", "limit": "max.connections.per.ip"},
        ),
        (
            {"acceptor.mode": SHARDED, "kafka_connections_max": 1},
            "processor-0",
            {"reason": "kafka_connections_max", "limit": "kafka_connections_max"},
        ),
    ],
)
def test_rejected_connection_is_recorded_with_its_limit(
    settings: dict[str, object], role: str, expected: dict[str, str]
) -> None:
    running = MiniBroker(settings={"journal.enable": True, "num.network.threads": 1, **settings})
    with running as broker, RawClient(broker.bootstrap_servers, "first"):
        host, port = broker.bootstrap_servers.split(":")
        with socket.create_connection((host, int(port)), timeout=30) as refused:
            assert refused.recv(1) == b""
            address = "{}:{}".format(*refused.getsockname())
        rejected = broker.journal.wait_for(kind="connection_rejected")
        assert (rejected["role"], rejected["address"]) == (role, address)
        details = {"listener": "PLAINTEXT", "value": 1, **expected}
        assert rejected["details"] == details
        assert rejected["connection"] is not None
