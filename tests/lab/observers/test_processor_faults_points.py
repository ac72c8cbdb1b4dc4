"""Hold points of a running broker: what is held is shown, and continues when released."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from minibroker.testing import MiniBroker
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.network.raw_client import RawClient

WAIT_MS = 600_000


@pytest.fixture(scope="module")
def broker() -> Iterator[MiniBroker]:
    with MiniBroker(settings={"group.initial.rebalance.delay.ms": 0}) as started:
        started.create_topic("points")
        yield started


@pytest.fixture
def client(broker: MiniBroker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers, "held") as connected:
        yield connected


@pytest.fixture
def fresh_name() -> str:
    return f"n{uuid.uuid4().hex}"


def end_offset(broker: MiniBroker, topic: str) -> int:
    (partition,) = broker.control.get("v1", "topics", topic)["partitions"]
    return int(partition["log_end_offset"])


def producing(broker: MiniBroker, **config: object) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, **config})


def fetch(offset: int) -> FetchRequest:
    partitions = [FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=10**6)]
    topics = [FetchTopic(topic="points", partitions=partitions)]
    return FetchRequest(max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=10**6, topics=topics)


def test_appended_records_are_held_before_the_response(broker: MiniBroker) -> None:
    before = end_offset(broker, "points")
    producer = producing(broker, **{"client.id": "held"})
    with broker.faults as faults:
        appended = faults.add("hold", point="produce.appended", topic="points")
        producer.produce("points", b"one", partition=0)
        producer.poll(0)
        appended.wait()
        assert end_offset(broker, "points") == before + 1
        (held,) = appended.holds
        assert (held["api"], held["client_id"], held["topic"]) == ("PRODUCE", "held", "points")
        assert producer.flush(0) == 1
        assert appended.release() == 1
        assert producer.flush(30) == 0


def test_long_poll_is_held_while_records_come(broker: MiniBroker, client: RawClient) -> None:
    before = end_offset(broker, "points")
    with broker.faults as faults:
        waiting = faults.add("hold", point="fetch.waiting", topic="points", partition=0)
        client.send(fetch(before), 12)
        waiting.wait()
        (held,) = waiting.holds
        assert (held["api"], held["client_id"], held["partition"]) == ("FETCH", "held", 0)
        producer = producing(broker)
        producer.produce("points", b"one", partition=0)
        assert producer.flush(30) == 0
        assert not client.is_readable()
        waiting.release()
        response = client.receive(fetch(before), 12)
        assert response.responses[0].partitions[0].records


def test_fetch_that_need_not_wait_does_not_reach_the_point(
    broker: MiniBroker, client: RawClient
) -> None:
    producer = producing(broker)
    producer.produce("points", b"one", partition=0)
    assert producer.flush(30) == 0
    with broker.faults as faults:
        seen = faults.add("observe", api="Fetch", topic="points")
        waiting = faults.add("hold", point="fetch.waiting", topic="points", first=1)
        assert client.ask(fetch(0), 12).responses[0].partitions[0].records
        assert (seen.hits, waiting.matches) == (1, 0)
        client.send(fetch(end_offset(broker, "points")), 12)
        waiting.wait()


def join(group: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0\0\0\0\0")],
    )


def test_rebalance_is_held(broker: MiniBroker, client: RawClient, fresh_name: str) -> None:
    with broker.faults as faults:
        rebalance = faults.add("hold", point="group.preparing_rebalance", group=fresh_name)
        client.send(join(fresh_name), 3)
        rebalance.wait()
        assert rebalance.holds == [{"process": "worker-0", "group": fresh_name}]
        shown = broker.control.get("v1", "groups", fresh_name)
        assert (shown["state"], len(shown["members"])) == ("PreparingRebalance", 1)
        assert not client.is_readable()
        rebalance.release()
        assert client.receive(join(fresh_name), 3).generation_id == 1


@pytest.mark.parametrize("point", ["transaction.prepared", "transaction.completing"])
def test_transaction_is_held(broker: MiniBroker, point: str, fresh_name: str) -> None:
    before = end_offset(broker, "points")
    producer = producing(broker, **{"transactional.id": fresh_name})
    producer.init_transactions(30)
    with broker.faults as faults, ThreadPoolExecutor() as threads:
        held = faults.add("hold", point=point, transactional_id=fresh_name)
        producer.begin_transaction()
        producer.produce("points", b"one", partition=0)
        committing = threads.submit(producer.commit_transaction, 30)
        held.wait()
        assert held.holds == [{"process": "worker-0", "transactional_id": fresh_name}]
        markers = 1 if point == "transaction.completing" else 0
        assert end_offset(broker, "points") == before + 1 + markers
        held.release()
        committing.result(30)
    assert end_offset(broker, "points") == before + 2


def test_change_of_metadata_is_held(broker: MiniBroker, client: RawClient, fresh_name: str) -> None:
    create = CreateTopicsRequest(
        topics=[CreatableTopic(name=fresh_name, num_partitions=1, replication_factor=1)],
        timeout_ms=30_000,
    )
    describe = MetadataRequest(
        topics=[MetadataRequestTopic(name=fresh_name)], allow_auto_topic_creation=False
    )
    with broker.faults as faults, RawClient(broker.bootstrap_servers) as other:
        applied = faults.add("hold", point="controller.applied", topic=fresh_name)
        client.send(create, 5)
        applied.wait()
        assert applied.holds == [{"process": "controller", "topic": fresh_name}]
        (topic,) = other.ask(describe, 12).topics
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not client.is_readable()
        applied.release()
        assert client.receive(create, 5).topics[0].error_code == ErrorCode.NONE
        assert other.ask(describe, 12).topics[0].error_code == ErrorCode.NONE


class SharedTopic:
    """A topic with one record, which a share group reads from the start."""

    def __init__(self, broker: MiniBroker, name: str) -> None:
        self._broker, self.name = broker, name
        broker.create_topic(name)
        broker.produce(name, ["one"])
        entry = ConfigEntry(
            "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ConfigResource.Type.GROUP, name, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.incremental_alter_configs([resource])[resource].result()

    def consumer(self) -> ShareConsumer:
        consumer = ShareConsumer(
            {
                "bootstrap.servers": self._broker.bootstrap_servers,
                "group.id": self.name,
                "share.acknowledgement.mode": "explicit",
            }
        )
        consumer.subscribe([self.name])
        return consumer

    def in_flight(self) -> tuple[int, int]:
        """Records that members have, and the start offset."""
        view = self._broker.control.get("v1", "groups", self.name)
        (partition,) = view["share_partitions"]
        return int(partition["acquired"]), int(partition["start_offset"])


@pytest.fixture
def shared(broker: MiniBroker, fresh_name: str) -> SharedTopic:
    return SharedTopic(broker, fresh_name)


def poll(consumer: ShareConsumer) -> list[Any]:
    while not (found := list(consumer.poll(0.1) or ())):
        pass
    return found


def test_acquired_records_are_held_before_the_response(
    broker: MiniBroker, shared: SharedTopic
) -> None:
    consumer = shared.consumer()
    with broker.faults as faults:
        acquired = faults.add("hold", point="share.acquired", group=shared.name)
        while not acquired.holds:
            assert not list(consumer.poll(0.05) or ())
        (held,) = acquired.holds
        assert (held["api"], held["group"]) == ("SHARE_FETCH", shared.name)
        assert shared.in_flight() == (1, 0)
        acquired.release()
        (message,) = poll(consumer)
        assert message.delivery_count() == 1
    consumer.acknowledge(message)
    consumer.commit_sync(10)
    with broker.faults as faults:
        again = faults.add("hold", point="share.acquired", group=shared.name)
        seen = faults.add("observe", api="ShareFetch", group=shared.name, first=2)
        while seen.hits < 2:  # They have found nothing, so they do not reach the point.
            assert not list(consumer.poll(0.05) or ())
        assert again.matches == 0
        broker.produce(shared.name, ["two"])
        while not again.holds:
            assert not list(consumer.poll(0.05) or ())
    consumer.acknowledge(poll(consumer)[0])
    consumer.close()


def test_stored_acknowledgements_are_held_before_the_response(
    broker: MiniBroker, shared: SharedTopic
) -> None:
    consumer = shared.consumer()
    (message,) = poll(consumer)
    with broker.faults as faults, ThreadPoolExecutor(1) as pool:
        acknowledged = faults.add("hold", point="share.acknowledged", group=shared.name)
        consumer.acknowledge(message)
        committed = pool.submit(consumer.commit_sync, 30)
        acknowledged.wait()
        (held,) = acknowledged.holds
        assert (held["api"], held["group"]) == ("SHARE_ACKNOWLEDGE", shared.name)
        assert shared.in_flight() == (0, 1)
        assert not committed.done()
        acknowledged.release()
        assert list(committed.result(30).values()) == [None]
    consumer.close()
