"""Topics through each client: creating, describing, refusing, deleting, creating by use."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from system_tests.clients.model import Client, Code, Record, Refused
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.waiting import wait_until

Names = Callable[[str], str]


def test_created_topic_is_described_with_its_configs(client: Client, fresh: Names) -> None:
    topic = fresh("topic")
    client.create_topic(topic, 3, configs={"retention.ms": "12345", "cleanup.policy": "delete"})

    wait_until(lambda: topic in client.topics(), f"{topic} to be listed")
    [broker_id] = [node_id for node_id, _, _ in client.cluster().brokers]
    assert client.leaders(topic) == {0: broker_id, 1: broker_id, 2: broker_id}
    configs = client.topic_configs(topic)
    assert configs["retention.ms"] == "12345"
    assert configs["max.message.bytes"] == "1048588"  # Kafka's default
    assert configs["compression.type"] == "producer"


def test_deleted_topic_can_be_recreated_empty(client: Client, fresh: Names) -> None:
    topic = fresh("topic")
    client.create_topic(topic, 2)
    client.produce(topic, [Record(b"k", b"old")])
    client.delete_topic(topic)
    wait_until(lambda: topic not in client.topics(), f"{topic} to be gone")
    client.create_topic(topic, 1)
    wait_until(lambda: topic in client.topics(), f"{topic} to be listed")
    # A producer may know the topic that was; another topic of the name has another id.
    assert client.bounds(topic, 0) == (0, 0)


@pytest.mark.parametrize(
    ("name", "partitions", "replicas", "configs", "code"),
    [
        ("spaces are refused", 1, 1, {}, Code.INVALID_TOPIC_EXCEPTION),
        ("x" * 250, 1, 1, {}, Code.INVALID_TOPIC_EXCEPTION),
        ("no-partitions", 0, 1, {}, Code.INVALID_PARTITIONS),
        ("too-many-replicas", 1, 3, {}, Code.INVALID_REPLICATION_FACTOR),
        ("bad-config", 1, 1, {"retention.ms": "soon"}, Code.INVALID_CONFIG),
        ("unknown-config", 1, 1, {"no.such.setting": "1"}, Code.INVALID_CONFIG),
    ],
)
def test_invalid_topic_is_rejected_with_kafka_error_code(
    *,
    client: Client,
    name: str,
    partitions: int,
    replicas: int,
    configs: dict[str, str],
    code: Code,
) -> None:
    if partitions == 0 and not client.sends_zero_partitions:
        pytest.skip("does not apply: the client refuses this itself")
    with pytest.raises(Refused) as refused:
        client.create_topic(name, partitions, replicas=replicas, configs=configs)
    assert refused.value.code == code


def test_creating_existing_topic_is_rejected(client: Client, fresh: Names) -> None:
    topic = fresh("topic")
    client.create_topic(topic)
    with pytest.raises(Refused) as refused:
        client.create_topic(topic)
    assert refused.value.code == Code.TOPIC_ALREADY_EXISTS


def test_deleting_unknown_topic_is_rejected(client: Client, fresh: Names) -> None:
    with pytest.raises(Refused) as refused:
        client.delete_topic(fresh("nowhere"))
    assert refused.value.code == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_asking_about_an_unknown_topic_does_not_create_it(client: Client, fresh: Names) -> None:
    if not client.reports_config_errors:
        pytest.skip(f"does not apply: {client.name} drops the error")
    topic = fresh("nowhere")
    with pytest.raises(Refused) as refused:
        client.topic_configs(topic)
    assert refused.value.code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert topic not in client.topics()


def test_producing_to_an_unknown_topic_creates_it(client: Client, fresh: Names) -> None:
    topic = fresh("by-use")
    assert client.produce(topic, [Record(b"k", b"v")]) == [0]
    assert topic in client.topics()
    assert len(client.leaders(topic)) == 1
    assert [each.value for each in client.read(topic, 0, 0, 1)] == [b"v"]


def test_cluster_and_broker_are_described(client: Client, broker: RunningBroker) -> None:
    cluster = client.cluster()
    [(broker_id, host, port)] = cluster.brokers
    assert (host, port) == broker.address
    assert cluster.controller_id == broker_id
    assert cluster.cluster_id is None or cluster.cluster_id
    configs = client.broker_configs(broker_id)
    assert configs["num.network.threads"]
    assert configs["message.max.bytes"] == "1048588"
    assert configs["auto.create.topics.enable"] == "true"
