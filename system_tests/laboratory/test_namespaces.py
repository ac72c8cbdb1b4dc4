"""Real clients with the same names in several namespaces of one broker do not see each other."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaAdminClient, TopicPartitionReplica
from kafka import TopicPartition as KafkaPythonPartition
from kafka.errors import (
    ElectionNotNeededError,
    LogDirNotFoundError,
    UnknownTopicOrPartitionError,
)

from minibroker.lab.verdicts.judging import ClientReport
from minibroker.testing import BrokerNamespace, MiniBroker
from minibroker.testing.verdicts import judge_client
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


def admin(namespace: BrokerNamespace | MiniBroker) -> AdminClient:
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


AUTHORIZED = {
    "group.initial.rebalance.delay.ms": 0,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": True,
}
DENIED_TOPICS = AclBinding(
    ResourceType.TOPIC,
    "*",
    ResourcePatternType.LITERAL,
    "User:ANONYMOUS",
    "*",
    AclOperation.WRITE,
    AclPermissionType.DENY,
)
ALL_ACLS = AclBindingFilter(
    ResourceType.ANY,
    None,
    ResourcePatternType.ANY,
    None,
    None,
    AclOperation.ANY,
    AclPermissionType.ANY,
)


def create_orders(namespace: BrokerNamespace) -> AdminClient:
    """Create a topic of one partition, and return the client."""
    client = admin(namespace)
    client.create_topics([NewTopic("orders", 1)])["orders"].result(PATIENCE_S)
    return client


def produce_error(servers: str) -> str:
    """Produce a record to a topic; return the name of the error, or an empty text."""
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": servers})
    producer.produce("orders", b"1", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    return "".join(error.name() for error in errors if error is not None)


def test_acls_for_all_topics_apply_to_one_namespace_only() -> None:
    with MiniBroker(settings=AUTHORIZED) as broker:
        broker.create_topic("orders")
        with broker.namespace() as first, broker.namespace() as second:
            client, other, whole = create_orders(first), create_orders(second), admin(broker)
            client.create_acls([DENIED_TOPICS])[DENIED_TOPICS].result(PATIENCE_S)
            assert client.describe_acls(ALL_ACLS).result(PATIENCE_S) == [DENIED_TOPICS]
            assert other.describe_acls(ALL_ACLS).result(PATIENCE_S) == []
            assert produce_error(first.bootstrap_servers) == "TOPIC_AUTHORIZATION_FAILED"
            assert produce_error(second.bootstrap_servers) == ""
            assert produce_error(broker.bootstrap_servers) == ""
            assert other.delete_acls([ALL_ACLS])[ALL_ACLS].result(PATIENCE_S) == []
            assert client.delete_acls([ALL_ACLS])[ALL_ACLS].result(PATIENCE_S) == [DENIED_TOPICS]
            assert produce_error(first.bootstrap_servers) == ""
            client.create_acls([DENIED_TOPICS])[DENIED_TOPICS].result(PATIENCE_S)
        assert whole.describe_acls(ALL_ACLS).result(PATIENCE_S) == []


def test_reassignments_name_topics_of_one_namespace_only(
    pair: tuple[BrokerNamespace, BrokerNamespace],
) -> None:
    first, second = pair
    create_orders(first)
    partition = KafkaPythonPartition("orders", 0)
    for namespace, error in ((first, None), (second, UnknownTopicOrPartitionError)):
        client = KafkaAdminClient(bootstrap_servers=namespace.bootstrap_servers)
        assert client.alter_partition_reassignments({partition: [1]}) == {partition: error}
        assert client.list_partition_reassignments() == {}
        client.close()


def test_elections_and_moves_between_directories_name_topics_of_one_namespace_only(
    pair: tuple[BrokerNamespace, BrokerNamespace],
) -> None:
    first, second = pair
    create_orders(first)
    replica = TopicPartitionReplica("orders", 0, 1)
    for namespace, error in (
        (first, ElectionNotNeededError),
        (second, UnknownTopicOrPartitionError),
    ):
        with closing(KafkaAdminClient(bootstrap_servers=namespace.bootstrap_servers)) as client:
            election = client.elect_leaders(0, {"orders": [0]}, raise_errors=False)
            (result,) = election.replica_election_results
            assert (result.topic, result.partition_result[0].error_code) == ("orders", error.errno)
            assert {each.topic for each in client.elect_leaders(0).replica_election_results} <= {
                "orders"
            }
            moved = client.alter_replica_log_dirs({replica: "/elsewhere"})
            assert moved == {replica: LogDirNotFoundError}


def test_rules_journal_and_verdicts_have_the_names_that_clients_know(
    broker: MiniBroker, pair: tuple[BrokerNamespace, BrokerNamespace]
) -> None:
    orders: dict[str, Any] = {"namespace": pair[0].name, "topic": "orders"}
    with broker.journal as journal, broker.faults as faults:
        failed = faults.add("error", api="Produce", error="NOT_ENOUGH_REPLICAS", first=1, **orders)
        for namespace in pair:
            servers = namespace.bootstrap_servers
            client = {"bootstrap.servers": servers, "client.id": "shop"}
            producer = Producer({**client, "enable.idempotence": True})
            producer.produce("orders", b"x")
            assert producer.flush(PATIENCE_S) == 0
        assert (failed.hits, failed.matches, failed.rule["topic"]) == (1, 2, "orders")
        sent = journal.entries(kind="request", api="Produce", decode=True, **orders)
        assert [each["body"]["topic_data"][0]["name"] for each in sent] == ["orders", "orders"]
        journal.assert_happened(kind="response", api="Metadata", **orders)
        journal.assert_absent(kind="request", topic="orders")
    whole = _batches(judge_client(broker, "shop"))
    in_each = [_batches(judge_client(broker, "shop", namespace=each.name)) for each in pair]
    assert min(in_each) > 0
    assert sum(in_each) == whole


def _batches(report: ClientReport) -> int:
    [found] = [each for each in report.verdicts if each.rule.id == "sequence-numbers"]
    return found.situations
