"""Real clients with the same names in several namespaces of one broker do not see each other."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from minibroker.testing import BrokerNamespace, MiniBroker
from system_tests.laboratory.clients import CLIENTS, PythonClient

pytestmark = pytest.mark.minibroker

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def broker() -> Iterator[MiniBroker]:
    with MiniBroker(settings={"group.initial.rebalance.delay.ms": 0}) as broker:
        broker.create_topic("orders")
        yield broker


@pytest.fixture
def pair(broker: MiniBroker) -> Iterator[tuple[BrokerNamespace, BrokerNamespace]]:
    with broker.namespace() as first, broker.namespace() as second:
        yield first, second


@pytest.mark.parametrize("kind", CLIENTS, ids=lambda kind: kind.name)
def test_groups_of_the_same_name_consume_topics_of_the_same_name(
    pair: tuple[BrokerNamespace, BrokerNamespace], kind: type[PythonClient]
) -> None:
    def use(namespace: BrokerNamespace) -> list[bytes | str]:
        client = kind(namespace.bootstrap_servers)
        values = [f"{namespace.name} {number}".encode() for number in range(4)]
        client.produce("orders", values[:3], idempotent=True)
        found = client.consume("orders", 3, group="shop")
        client.produce("orders", values[3:], idempotent=True)
        return [*found, *client.consume("orders", 1, group="shop")]

    with ThreadPoolExecutor() as threads:
        for namespace, found in zip(pair, threads.map(use, pair), strict=True):
            assert found == [f"{namespace.name} {number}".encode() for number in range(4)]


def admin(namespace: BrokerNamespace) -> AdminClient:
    return AdminClient({"bootstrap.servers": namespace.bootstrap_servers})


def test_administration_shows_one_namespace_only(
    pair: tuple[BrokerNamespace, BrokerNamespace],
) -> None:
    for namespace in pair:
        client = admin(namespace)
        topics = [NewTopic("orders", 2, 1, config={"retention.ms": "1234567"})]
        client.create_topics(topics)["orders"].result(PATIENCE_S)
        with pytest.raises(KafkaException, match="Topic 'orders' already exists"):
            client.create_topics(topics)["orders"].result(PATIENCE_S)
        consumer = Consumer({"bootstrap.servers": namespace.bootstrap_servers, "group.id": "g"})
        consumer.commit(offsets=[TopicPartition("orders", 1, 7)], asynchronous=False)
        consumer.close()
    for namespace in pair:
        client = admin(namespace)
        assert list(client.list_topics(timeout=PATIENCE_S).topics) == ["orders"]
        groups = client.list_consumer_groups().result(PATIENCE_S).valid
        assert [group.group_id for group in groups] == ["g"]
        resource = ConfigResource(ConfigResource.Type.TOPIC, "orders")
        (configs,) = client.describe_configs([resource]).values()
        assert configs.result(PATIENCE_S)["retention.ms"].value == "1234567"
        described = client.describe_consumer_groups(["g"])["g"].result(PATIENCE_S)
        assert described.group_id == "g"
    first = admin(pair[0])
    first.delete_topics(["orders"])["orders"].result(PATIENCE_S)
    assert first.list_topics(timeout=PATIENCE_S).topics == {}
    assert list(admin(pair[1]).list_topics(timeout=PATIENCE_S).topics) == ["orders"]


def test_transactions_of_the_same_id_do_not_fence_each_other(
    pair: tuple[BrokerNamespace, BrokerNamespace],
) -> None:
    producers = []
    for namespace in pair:
        producer = Producer(
            {"bootstrap.servers": namespace.bootstrap_servers, "transactional.id": "payments"}
        )
        producer.init_transactions(PATIENCE_S)
        producers.append(producer)
    for producer in producers:
        producer.begin_transaction()
        producer.produce("paid", b"value")
    for producer in producers:
        producer.commit_transaction(PATIENCE_S)


def test_subscription_by_pattern_matches_one_namespace_only(
    pair: tuple[BrokerNamespace, BrokerNamespace],
) -> None:
    for namespace in pair:
        producer = Producer({"bootstrap.servers": namespace.bootstrap_servers})
        producer.produce("orders-eu", namespace.name.encode())
        assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": pair[1].bootstrap_servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["^.*orders.*"])
    message = consumer.poll(PATIENCE_S)
    assert message is not None
    assert (message.topic(), message.value()) == ("orders-eu", pair[1].name.encode())
    assert {each.topic for each in consumer.assignment()} == {"orders-eu"}
    consumer.close()
