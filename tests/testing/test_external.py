"""An existing Kafka has the helpers, and skips what only minibroker has."""

from __future__ import annotations

import pytest

from minibroker.client.errors import BrokerError, BrokerUnreachable
from minibroker.testing import MiniBroker, external
from minibroker.testing.external import ExternalKafka
from minibroker.testing.faults import Faults


@pytest.fixture
def kafka(minibroker: MiniBroker) -> ExternalKafka:
    return ExternalKafka(minibroker.bootstrap_servers).start()


@pytest.mark.parametrize("call", ["advance", "reset", "restart"])
def test_calls_of_minibroker_skip_with_the_reason(kafka: ExternalKafka, call: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=rf"{call}\(\) needs minibroker; the tests use"):
        getattr(kafka, call)()
    with pytest.raises(pytest.skip.Exception, match="faults needs minibroker"):
        _ = kafka.faults
    with pytest.raises(AttributeError):
        _ = kafka.no_such_call


def test_produce_waits_for_the_leader_of_a_new_topic(
    kafka: ExternalKafka, minibroker_topic: str, minibroker_faults: Faults
) -> None:
    error = "NOT_LEADER_OR_FOLLOWER"
    minibroker_faults.add("error", api="Produce", topic=minibroker_topic, error=error, first=1)
    assert kafka.produce(minibroker_topic, ["a"])[0].offset == 0


def test_rejected_message_is_an_error(
    kafka: ExternalKafka, minibroker_group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external, "TIMEOUT_MS", 100)
    topic = kafka.create_topic(minibroker_group, configs={"cleanup.policy": "compact"})
    with pytest.raises(BrokerError, match="INVALID_RECORD"):
        kafka.produce(topic, ["without a key"])
    kafka.delete_topic(topic)
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        kafka.messages(topic)


def test_kafka_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(BrokerUnreachable, match="nothing listens on"):
        ExternalKafka("127.0.0.1:1").start()
