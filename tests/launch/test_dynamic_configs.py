"""Dynamic broker configs of a running broker: a change never costs a process."""

from __future__ import annotations

from minibroker.client.kafka_client import BROKER, KafkaClient
from minibroker.testing import MiniBroker
from tests.launch.broker_configs import alter

PER_LISTENER = {"ssl.keystore.type", "ssl.truststore.type"}
"""Configs that are dynamic with the prefix of a listener only."""


def test_changes_of_all_configs_end_no_process() -> None:
    with MiniBroker() as broker, KafkaClient(broker.bootstrap_servers) as client:
        connection = client._connection(None)
        values = {
            config.name: other_value(config.value)
            for config in client.configs(BROKER, "1")
            if not config.read_only and config.value is not None and config.name not in PER_LISTENER
        }
        assert len(values) > 50
        values["advertised.listeners"] = "PLAINTEXT://broker.test:19092"
        for name, value in values.items():
            alter(client, name, value)
        assert client._connection(None) is connection, "a process ended, and the connection with it"


def other_value(value: str) -> str:
    """One less, if that is a number and stays one that every config allows."""
    return str(int(value) - 1) if value.isdecimal() and int(value) > 2 else value
