"""What real clients do is in the journal, in the order in which it happened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from minibroker.testing import DidNotHappen, MiniBroker
from minibroker.testing.journal import RecordedJournal

pytestmark = pytest.mark.minibroker

WAIT_S = 60.0


@pytest.fixture(scope="module")
def broker() -> Iterator[MiniBroker]:
    with MiniBroker(settings={"group.initial.rebalance.delay.ms": 0}) as started:
        started.create_topic("orders")
        yield started


@pytest.fixture
def journal(broker: MiniBroker) -> Iterator[RecordedJournal]:
    with broker.journal as started:
        yield started


def produce(broker: MiniBroker, client_id: str, **configs: object) -> None:
    servers = {"bootstrap.servers": broker.bootstrap_servers, "client.id": client_id}
    producer = Producer({**servers, **configs})
    producer.produce("orders", b"one")
    assert producer.flush(WAIT_S) == 0


def test_retry_of_a_producer_follows_the_error(
    broker: MiniBroker, journal: RecordedJournal
) -> None:
    with broker.faults as faults:
        faults.add(
            "error", api="Produce", client_id="retries", error="NOT_ENOUGH_REPLICAS", first=1
        )
        produce(broker, "retries")
    steps = journal.assert_in_order(
        {"kind": "request", "api": "Produce", "client_id": "retries", "topic": "orders"},
        {"kind": "fault", "details": {"action": "error"}},
        {"kind": "response", "api": "Produce", "error": "NOT_ENOUGH_REPLICAS"},
        {"kind": "request", "api": "Produce", "client_id": "retries", "topic": "orders"},
        {"kind": "response", "api": "Produce", "error": "NONE"},
    )
    first, _, refused, again, _ = steps
    assert first["sequence"] < refused["sequence"] < again["sequence"]
    assert first["connection"] == again["connection"], "the connection stays open"
    journal.assert_absent(kind="connection_closed", details={"reason": "fault_rule"})


def test_lost_response_makes_a_producer_connect_again(
    broker: MiniBroker, journal: RecordedJournal
) -> None:
    with broker.faults as faults:
        faults.add("disconnect", api="Produce", client_id="loses", at="after", first=1)
        produce(broker, "loses", **{"enable.idempotence": True})
    journal.assert_in_order(
        {"kind": "request", "api": "Produce", "client_id": "loses"},
        {"kind": "connection_closed", "client_id": "loses", "details": {"reason": "fault_rule"}},
        {"kind": "connection_opened"},
        {"kind": "request", "api": "Produce", "client_id": "loses"},
        {"kind": "response", "api": "Produce", "client_id": "loses"},
    )


def test_consumer_joins_fetches_commits_and_leaves(
    broker: MiniBroker, journal: RecordedJournal
) -> None:
    produce(broker, "feeds")
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "client.id": "reads",
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    message = consumer.poll(WAIT_S)
    assert message is not None
    consumer.commit(asynchronous=False)
    consumer.close()
    client = {"client_id": "reads", "kind": "request"}
    group = {"kind": "state", "group": "readers"}
    journal.assert_in_order(
        {**client, "api": "JoinGroup", "group": "readers"},
        {**group, "details": {"to": "PreparingRebalance"}},
        {**group, "details": {"to": "CompletingRebalance"}},
        {**client, "api": "SyncGroup"},
        {**group, "details": {"to": "Stable"}},
        {**client, "api": "Fetch"},
        {**client, "api": "OffsetCommit", "group": "readers"},
        {**client, "api": "LeaveGroup"},
        {**group, "details": {"to": "Empty"}},
        timeout_s=WAIT_S,
    )


def test_transaction_passes_its_states(broker: MiniBroker, journal: RecordedJournal) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "copies"}
    )
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce("orders", b"two")
    producer.commit_transaction(WAIT_S)
    state = {"kind": "state"}
    names = {"what": "transaction", "name": "copies"}
    journal.assert_in_order(
        {**state, "details": {**names, "to": "Empty"}},
        {**state, "details": {**names, "to": "Ongoing"}},
        {"kind": "request", "api": "EndTxn"},
        {**state, "details": {**names, "to": "PrepareCommit"}},
        {**state, "details": {**names, "to": "CompleteCommit"}},
        timeout_s=WAIT_S,
    )


def test_no_fetch_is_answered_before_the_clock_reaches_its_wait(
    broker: MiniBroker, journal: RecordedJournal
) -> None:
    broker.freeze()
    try:
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "client.id": "waits",
                "group.id": "none",
                "fetch.wait.max.ms": 5000,
                "fetch.min.bytes": 1_000_000,
            }
        )
        consumer.assign([TopicPartition("orders", 0, 0)])
        consumer.poll(0)
        fetched = journal.wait_for(kind="request", api="Fetch", client_id="waits", timeout_s=WAIT_S)
        until_ms = fetched["clock_ms"] + 5000
        broker.advance(4999)
        journal.assert_absent(kind="response", api="Fetch", client_id="waits")
        with pytest.raises(DidNotHappen):
            journal.assert_absent(kind="request", api="Fetch", before_ms=until_ms)
        broker.advance(1)
        answered = journal.wait_for(
            kind="response", api="Fetch", client_id="waits", timeout_s=WAIT_S
        )
        assert answered["clock_ms"] >= until_ms
        journal.assert_absent(kind="response", api="Fetch", client_id="waits", before_ms=until_ms)
        consumer.close()
    finally:
        broker.freeze(False)
