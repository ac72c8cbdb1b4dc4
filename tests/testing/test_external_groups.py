"""Groups of each type are awaited at any Kafka, as at a broker of ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from minibroker.client.kafka_client import KafkaClient
from minibroker.testing import MiniBroker, WaitTimedOut
from minibroker.testing.external import ExternalKafka
from minibroker.testing.external_groups import describe_group
from minibroker.testing.messages import MessageHelpers

SETTINGS = {
    "group.consumer.min.heartbeat.interval.ms": 50,
    "group.consumer.heartbeat.interval.ms": 50,
    "group.consumer.assignment.interval.ms": 0,
    "group.share.min.heartbeat.interval.ms": 50,
    "group.share.heartbeat.interval.ms": 50,
    "group.share.assignment.interval.ms": 0,
}


@pytest.fixture(scope="module")
def broker() -> Iterator[MiniBroker]:
    with MiniBroker(settings=SETTINGS) as broker:
        yield broker


@pytest.fixture(params=["broker", "external"])
def kafka(request: pytest.FixtureRequest, broker: MiniBroker) -> MessageHelpers:
    """The same broker, over its control API and over Kafka's protocol."""
    return broker if request.param == "broker" else ExternalKafka(broker.bootstrap_servers)


@pytest.fixture
def group(broker: MiniBroker, request: pytest.FixtureRequest) -> str:
    """A group, which has the name of a topic with two records, and starts with them."""
    name = str(request.node.name).translate(str.maketrans("[]", "--"))
    broker.create_topic(name)
    broker.produce(name, ["a", "b"])
    entry = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ConfigResource.Type.GROUP, name, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result()
    return name


def test_consumer_group_is_awaited(kafka: MessageHelpers, broker: MiniBroker, group: str) -> None:
    with pytest.raises(WaitTimedOut, match=r"to have state Stable, and"):
        kafka.wait_for_group(group, timeout_s=0.05)
    config = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group}
    consumer = Consumer({**config, "group.protocol": "consumer", "auto.offset.reset": "earliest"})
    consumer.subscribe([group])
    record = consumer.poll(30)
    assert record is not None
    view = kafka.wait_for_group(group, members=1)
    assert (view["state"], view["type"], len(view["members"])) == ("Stable", "consumer", 1)
    consumer.commit(record, asynchronous=False)
    with pytest.raises(WaitTimedOut, match=r"to have lag 0, and .*members 1"):
        kafka.wait_for_group(group, lag=0, timeout_s=0.05)
    record = consumer.poll(30)
    assert record is not None
    consumer.commit(record, asynchronous=False)
    assert kafka.wait_for_group(group, "Stable", lag=0)["state"] == "Stable"
    consumer.close()
    assert kafka.wait_for_group(group, "Empty")["members"] == []


def share_consumer(broker: MiniBroker, group: str) -> ShareConsumer:
    consumer = ShareConsumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
        }
    )
    consumer.subscribe([group])
    return consumer


def accept(consumer: ShareConsumer, count: int) -> None:
    while count > 0:
        for message in consumer.poll(0.1) or ():
            consumer.acknowledge(message)
            count -= 1
    consumer.commit_sync(10)


def test_share_group_is_awaited(kafka: MessageHelpers, broker: MiniBroker, group: str) -> None:
    consumer = share_consumer(broker, group)
    accept(consumer, 2)
    view = kafka.wait_for_group(group, "Stable", members=1)
    assert view["type"] == "share"
    consumer.close()
    assert kafka.wait_for_group(group, "Empty")["members"] == []


def test_lag_of_a_share_group_is_awaited(broker: MiniBroker, group: str) -> None:
    external = ExternalKafka(broker.bootstrap_servers)
    consumer = share_consumer(broker, group)
    while not list(consumer.poll(0.1) or ()):
        pass
    with pytest.raises(WaitTimedOut, match=r"to have members 1, lag 0, and .*lag None"):
        external.wait_for_group(group, members=1, lag=0, timeout_s=0.05)
    consumer.close()
    consumer = share_consumer(broker, group)
    accept(consumer, 2)
    assert external.wait_for_group(group, members=1, lag=0)["lag"] == 0
    consumer.close()


def test_kafka_without_the_new_types_has_classic_groups() -> None:
    with MiniBroker(persona="kafka-2.0") as old, KafkaClient(old.bootstrap_servers) as client:
        assert describe_group(client, "g")["state"] == "Dead"
