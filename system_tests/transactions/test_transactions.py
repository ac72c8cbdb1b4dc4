"""Commit, abort, fence, time out, and offsets in transactions, with each client library.

`--broker kafka` runs the same scenarios against Apache Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import ask
from system_tests.harness.waiting import PATIENCE_S
from system_tests.transactions.producers import (
    Consumes,
    Failed,
    Fenced,
    TransactionalProducer,
)

if TYPE_CHECKING:
    from system_tests.transactions.conftest import MakeProducer, Reader

Names = Callable[[str], str]
TIMEOUT_AND_CHECK_MS = 12_000
"""A timeout of a second, and the ten seconds between two checks for timeouts."""
VERSION_2_END_TXN = 5
"""With this version of EndTxn, a client of transaction version 2 learns its next epoch."""
UNCOMMITTED = -1001
"""librdkafka's number for a group without a committed offset."""


@pytest.fixture
def topic(broker: RunningBroker, fresh: Names) -> str:
    """A new topic with two partitions."""
    name = fresh("transactions")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(PATIENCE_S)
    return name


def mark(broker: RunningBroker, topic: str, partition: int = 0) -> None:
    """Append a record outside of transactions, after which nothing else is written."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, "end", partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def send_and_commit(producer: TransactionalProducer, topic: str) -> None:
    producer.send(topic, "late")
    producer.commit()


def test_committed_records_are_read_and_aborted_ones_are_not(
    make_producer: MakeProducer, reader: Reader, broker: RunningBroker, topic: str, fresh: Names
) -> None:
    producer = make_producer(fresh("id"))
    for number in range(6):
        producer.begin()
        producer.send(topic, f"a{number}")
        producer.send(topic, f"b{number}", partition=1)
        if number % 3 == 1:
            producer.abort()
        else:
            producer.commit()
    for partition, letter in ((0, "a"), (1, "b")):
        mark(broker, topic, partition)
        expected = [f"{letter}{number}" for number in (0, 2, 3, 5)]
        assert reader.values(topic, until="end", partition=partition) == expected
        everything = reader.values(topic, committed=False, until="end", partition=partition)
        assert everything == [f"{letter}{number}" for number in range(6)]


def test_older_producer_is_fenced_and_its_transaction_aborted(
    make_producer: MakeProducer, reader: Reader, broker: RunningBroker, topic: str, fresh: Names
) -> None:
    name = fresh("id")
    older = make_producer(name)
    older.begin()
    older.send(topic, "lost")
    newer = make_producer(name)
    newer.begin()
    newer.send(topic, "kept")
    newer.commit()
    with pytest.raises(Fenced):
        send_and_commit(older, topic)
    mark(broker, topic)
    assert reader.values(topic, until="end") == ["kept"]


def test_transaction_is_aborted_after_its_timeout(
    make_producer: MakeProducer, reader: Reader, broker: RunningBroker, topic: str, fresh: Names
) -> None:
    producer = make_producer(fresh("id"), timeout_ms=1_000)
    producer.begin()
    producer.send(topic, "lost")
    if broker.kind == "minibroker":
        ask(broker, "POST", "/v1/clock", {"advance_ms": TIMEOUT_AND_CHECK_MS})
    else:
        time.sleep(TIMEOUT_AND_CHECK_MS / 1000)
    mark(broker, topic)
    # The record after the transaction is readable, so the transaction has ended.
    assert reader.values(topic, until="end") == []
    with pytest.raises(Failed):
        producer.commit()


def test_offsets_are_committed_with_transaction_or_not_at_all(
    make_producer: MakeProducer, reader: Reader, broker: RunningBroker, topic: str, fresh: Names
) -> None:
    group = fresh("group")
    for _ in range(8):
        mark(broker, topic)
    producer = make_producer(fresh("id"), consumes=Consumes(group, topic))
    producer.begin()
    producer.send(topic, "x", partition=1)
    producer.send_offset(group, topic, 0, 7)
    producer.abort()
    assert reader.committed(group, topic) == UNCOMMITTED
    producer.begin()
    producer.send_offset(group, topic, 0, 8)
    producer.send(topic, "y", partition=1)
    producer.commit()
    assert reader.committed(group, topic) == 8


def test_many_short_transactions_follow_each_other(
    make_producer: MakeProducer, reader: Reader, broker: RunningBroker, topic: str, fresh: Names
) -> None:
    producer = make_producer(fresh("id"))
    for number in range(50):
        producer.begin()
        producer.send(topic, str(number))
        producer.commit()
    mark(broker, topic)
    assert reader.values(topic, until="end") == [str(number) for number in range(50)]


def test_transactional_id_continues_after_restart_of_client(
    make_producer: MakeProducer, reader: Reader, broker: RunningBroker, topic: str, fresh: Names
) -> None:
    name = fresh("id")
    for number in range(3):
        producer = make_producer(name)
        producer.begin()
        producer.send(topic, str(number))
        producer.commit()
        producer.close()
    mark(broker, topic)
    assert reader.values(topic, until="end") == ["0", "1", "2"]


@pytest.mark.minibroker
def test_client_uses_the_newest_version_that_it_and_the_broker_have(
    make_producer: MakeProducer,
    broker: RunningBroker,
    transaction_version: int,
    topic: str,
    fresh: Names,
) -> None:
    name = fresh("id")
    start = ask(broker, "POST", "/v1/journal", {"enabled": True})["last"]
    try:
        producer = make_producer(name)
        for number in range(2):
            producer.begin()
            producer.send(topic, str(number))
            producer.commit()
        query = f"/v1/journal?kind=request&decode=true&limit=1000&after={start}"
        requests = [
            (each["api"], each["version"])
            for each in ask(broker, "GET", query)["entries"]
            if name in str(each["body"])
        ]
    finally:
        ask(broker, "POST", "/v1/journal", {"enabled": False})
    ends = [version for api, version in requests if api == "EndTxn"]
    is_version_2 = min(producer.newest_version, transaction_version) == 2
    assert [version >= VERSION_2_END_TXN for version in ends] == [is_version_2] * 2, requests
    # In version 2, the broker adds the partitions of produced records by itself.
    assert ("AddPartitionsToTxn" in dict(requests)) != is_version_2, requests
