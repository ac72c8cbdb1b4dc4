"""Clients of protocols that are not served get an error, or at least a warning in the log."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer

from system_tests.faults.conftest import Starter
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import ask
from system_tests.harness.waiting import wait_until

pytestmark = pytest.mark.minibroker


def warnings(broker: RunningBroker) -> list[str]:
    return [line for line in broker.printed().splitlines() if "protocol that is not served" in line]


def test_consumer_of_the_consumer_protocol_fails_with_unsupported_version(start: Starter) -> None:
    broker = start("--set", "group.coordinator.rebalance.protocols=classic")
    errors: list[str] = []
    consumer = Consumer(
        {
            "error_cb": lambda error: errors.append(error.str()),
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "group.protocol": "consumer",
            "client.id": "modern",
        }
    )
    consumer.subscribe(["t"])

    def has_failed() -> bool:
        message = consumer.poll(0.1)
        if message is not None:
            errors.append(str(message.error()))
        return any("API version not supported" in error for error in errors)

    wait_until(has_failed, "the consumer to fail")
    consumer.close()
    (warning,) = warnings(broker)
    assert "client_id=modern" in warning
    assert "group.protocol=classic" in warning
    (shown,) = ask(broker, "GET", "/v1/connections")["unserved"]
    assert (shown["client_id"], shown["software_name"]) == ("modern", "confluent-kafka-python")
    assert "KIP-848" in shown["protocol"]
