"""What authors of clients wanted of rules, each with a real client: what a rule selects and counts,
what it leaves as it is, and damage that a checksum does not show.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, ClusterMetadata

from minibroker.testing import MiniBroker
from system_tests.harness.waiting import PATIENCE_S

pytestmark = pytest.mark.minibroker

MAGIC = b"\0"
"""First byte of a value with an id of Confluent's schema registry."""


@pytest.fixture(scope="module")
def broker() -> Iterator[MiniBroker]:
    with MiniBroker(settings={"num.partitions": 2}) as made:
        yield made


@pytest.fixture
def topic(broker: MiniBroker, fresh: Callable[[str], str]) -> str:
    return broker.create_topic(fresh("selected"), partitions=2)


def produce(broker: MiniBroker, topic: str, *values: bytes, **config: object) -> None:
    servers = {"bootstrap.servers": broker.bootstrap_servers}
    producer = Producer({**servers, "linger.ms": 0, "retry.backoff.ms": 10, **config})
    for value in values:
        producer.produce(topic, value, partition=0)
        assert producer.flush(PATIENCE_S) == 0


def consumed(broker: MiniBroker, topic: str, count: int) -> list[bytes | None]:
    """The next records of a consumer that verifies checksums."""
    servers = {"bootstrap.servers": broker.bootstrap_servers}
    consumer = Consumer(
        {**servers, "group.id": topic, "auto.offset.reset": "earliest", "check.crcs": True}
    )
    consumer.subscribe([topic])
    try:
        messages = consumer.consume(count, PATIENCE_S)
        return [message.value() for message in messages if message.error() is None]
    finally:
        consumer.close()


def metadata(broker: MiniBroker) -> ClusterMetadata:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=30)


def test_patch_changes_one_partition_and_leaves_the_others(broker: MiniBroker, topic: str) -> None:
    other = broker.create_topic(f"{topic}-other", partitions=1)
    with broker.faults as faults:
        patched = {"topic": topic, "partition": 1, "fields": {"leader_id": -1}}
        faults.add("patch", api="Metadata", **patched)
        found = metadata(broker).topics
    leaders = {index: each.leader for index, each in found[topic].partitions.items()}
    assert leaders == {0: 1, 1: -1}
    assert found[other].partitions[0].leader == 1


def test_partition_without_a_leader_is_an_error_of_metadata(broker: MiniBroker, topic: str) -> None:
    with broker.faults as faults:
        missing = {"topic": topic, "partition": 1, "error": "LEADER_NOT_AVAILABLE"}
        faults.add("error", api="Metadata", **missing)
        partitions = metadata(broker).topics[topic].partitions
    assert partitions[0].error is None
    assert "LEADER_NOT_AVAILABLE" in str(partitions[1].error)


def test_first_produce_of_each_connection_fails(broker: MiniBroker, topic: str) -> None:
    with broker.faults as faults:
        failed = {"api": "Produce", "error": "NOT_ENOUGH_REPLICAS", "topic": topic}
        rule = faults.add("error", first=1, per="connection", **failed)
        for _ in range(2):
            produce(broker, topic, b"one", b"two")
        assert (rule.hits, rule.matches) == (2, 6)


def test_delays_add_up_and_vary_with_a_seed(broker: MiniBroker, topic: str) -> None:
    produce(broker, topic, b"one")
    delayed = {"api": "Produce", "topic": topic, "delay_ms": 150, "adds": True}
    with broker.faults as faults:
        faults.add("delay", **delayed)
        faults.add("delay", jitter_ms=50, distribution="exponential", seed=7, **delayed)
        started = time.monotonic()
        produce(broker, topic, b"two")
        assert time.monotonic() - started >= 0.3


def test_rule_starts_after_another_has_fired(broker: MiniBroker, topic: str) -> None:
    failed = {"api": "Produce", "error": "NOT_ENOUGH_REPLICAS", "topic": topic}
    with broker.faults as faults:
        first = faults.add("observe", name="second-one", api="Produce", topic=topic, nth=2)
        later = faults.add("error", after_rule="second-one", first=1, **failed)
        produce(broker, topic, b"one", b"two")
        assert (first.hits, later.hits) == (1, 0)
        produce(broker, topic, b"three")
        assert later.hits == 1


def test_rule_selects_by_a_field_of_the_request(broker: MiniBroker, topic: str) -> None:
    with broker.faults as faults:
        observed = faults.add("observe", api="Produce", topic=topic, request={"acks": 1})
        produce(broker, topic, b"all", acks="all")
        assert observed.hits == 0
        produce(broker, topic, b"leader", acks=1)
        assert observed.hits == 1


def test_batch_is_delivered_twice_to_a_consumer(broker: MiniBroker, topic: str) -> None:
    produce(broker, topic, b"one", b"two")
    with broker.faults as faults:
        faults.add("corrupt", api="Fetch", topic=topic, part="repeat", first=1)
        assert consumed(broker, topic, 2) == [b"one", b"one"]


def test_payload_is_damaged_under_a_right_checksum(broker: MiniBroker, topic: str) -> None:
    produce(broker, topic, b"value")
    with broker.faults as faults:
        faults.add("corrupt", api="Fetch", topic=topic, part="payload")
        [value] = consumed(broker, topic, 1)
    assert value is not None
    assert value != b"value"
    assert len(value) == len(b"value")


def test_schema_id_does_not_exist(broker: MiniBroker, topic: str) -> None:
    produce(broker, topic, MAGIC + b"\0\0\0\7payload")
    with broker.faults as faults:
        faults.add("corrupt", api="Fetch", topic=topic, part="schema_id")
        [value] = consumed(broker, topic, 1)
    assert value == MAGIC + b"\x7f\xff\xff\xffpayload"
