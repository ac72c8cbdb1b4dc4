"""Brokers with few descriptors: a shortage is shown and ends, and many partitions need few."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest
from confluent_kafka.admin import AdminClient

from system_tests.faults.conftest import Starter
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import ask
from system_tests.harness.waiting import wait_until

pytestmark = pytest.mark.minibroker

FEW = 100
"""Descriptors of each process, a third of which it needs for itself."""


def conditions(broker: RunningBroker) -> list[tuple[str, str]]:
    found = ask(broker, "GET", "/v1/health")["conditions"]
    return [(each["process"], each["kind"]) for each in found]


@pytest.mark.parametrize("mode", ["single", "sharded"])
def test_shortage_of_descriptors_is_shown_and_ends_while_the_clock_is_frozen(
    start: Starter, mode: str
) -> None:
    broker = start(
        settings={"acceptor.mode": mode, "num.network.threads": "1"},
        wrapper=("prlimit", f"--nofile={FEW}", "--"),
    )
    frozen_at_ms = ask(broker, "POST", "/v1/clock", {"freeze": True})["wall_ms"]
    with ExitStack() as clients:
        for _ in range(FEW):
            clients.enter_context(socket.create_connection(broker.address))
        wait_until(lambda: conditions(broker), "the shortage to be shown")
        assert conditions(broker) == [("processor-0", "descriptors_exhausted")]
        assert ask(broker, "GET", "/v1/health")["status"] == "degraded"
        assert broker.printed().count("descriptors are exhausted") == 1
    wait_until(lambda: not conditions(broker), "the shortage to end")
    assert "descriptors are available again" in broker.printed()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    assert len(admin.list_topics(timeout=60).brokers) == 1
    assert ask(broker, "GET", "/v1/clock")["wall_ms"] == frozen_at_ms
