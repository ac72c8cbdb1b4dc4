"""Throttles over real sockets and processes, to the millisecond on a frozen clock."""

from __future__ import annotations

import pytest

from system_tests.connections.conftest import Dial, Limited
from system_tests.connections.dialling import Client, change_clock, gauge, set_quota
from system_tests.faults.killing import kill, names_of
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import ask, wait_ready
from system_tests.quotas.quota_requests import VERSION, produce_of

pytestmark = pytest.mark.minibroker


def throttled(client: Client, size: int) -> int:
    """Return the throttle time of a client that sends so many bytes."""
    throttle_ms: int = client.ask(produce_of(size, client.client_id), VERSION).throttle_time_ms
    return throttle_ms


@pytest.fixture
def broker(limited: Limited, dial: Dial) -> RunningBroker:
    started = limited("num.network.threads=2")
    set_quota(dial(started)[0], {"client-id": "dialling"}, producer_byte_rate=1024)
    change_clock(started, freeze=True)
    return started


def test_throttled_connection_is_unmuted_at_exact_millisecond(
    broker: RunningBroker, dial: Dial
) -> None:
    client, neighbour = dial(broker, 2)
    neighbour.client_id = "neighbour"
    assert throttled(client, 20480) == 10_000
    client.send_first_request()
    assert throttled(neighbour, 20480) == 0
    change_clock(broker, advance_ms=9999)
    assert client.received_nothing()
    change_clock(broker, advance_ms=1)
    assert client.answered()


def test_processes_are_aggregated_as_one_broker(broker: RunningBroker, dial: Dial) -> None:
    clients = dial(broker, 8)
    throttles = [throttled(client, 2560) for client in clients]
    assert throttles == [0, 0, 0, 0, 2500, 5000, 7500, 10_000]
    [use] = [
        use
        for use in ask(broker, "GET", "/v1/quotas")["uses"]
        if use["client_id"] == "dialling" and use["type"] == "produce"
    ]
    assert (use["rate"], use["quota"], use["throttle_ms"]) == (2048, 1024, 6250)
    why = ask(broker, "GET", "/v1/quotas/explain?client_id=dialling&type=produce")
    assert (why["throttle_ms"], why["path"]) == (10_000, "/config/clients/dialling")
    average = "minibroker_quota_throttle_time_seconds"
    assert gauge(broker, average, type="Produce", client_id="dialling") == 6.25


@pytest.mark.parametrize("role", ["processor", "worker", "controller"])
def test_process_kill_keeps_quota_usage_and_unmutes_clients(
    role: str, broker: RunningBroker, dial: Dial
) -> None:
    (client,) = dial(broker)
    assert throttled(client, 20480) == 10_000
    change_clock(broker, freeze=False)
    for name in names_of(broker, role):
        kill(broker, name)
    wait_ready(broker)
    (again,) = dial(broker)
    # Some seconds have passed, by which the rest is less.
    assert 0 < throttled(again, 1024) <= 11_000
