"""What real clients see when their broker returns to a snapshot."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer

from minibroker.testing import ControlError, MiniBroker
from system_tests.harness.waiting import wait_until
from system_tests.laboratory.clients import CLIENTS, PythonClient

pytestmark = pytest.mark.minibroker

SETTINGS = {"group.initial.rebalance.delay.ms": 0}
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def broker() -> Iterator[MiniBroker]:
    """A broker that returns to its first state before each test."""
    with MiniBroker(settings=SETTINGS) as broker:
        broker.create_topic("orders", 1)
        yield broker


@pytest.fixture(autouse=True)
def first_state(broker: MiniBroker) -> Iterator[None]:
    snapshot = broker.snapshot()
    yield
    broker.restore(snapshot)
    broker.remove_snapshot(snapshot)


def end_offset(broker: MiniBroker, topic: str = "orders") -> int:
    (partition,) = broker.control.get("v1", "topics", topic)["partitions"]
    return int(partition["log_end_offset"])


def running(broker: MiniBroker) -> dict[str, int]:
    """The processes by name, with their ids, once all are ready."""
    try:
        found = broker.control.get("v1", "health")["processes"]
    except ControlError:
        return {}
    return {each["name"]: each["pid"] for each in found if each["state"] == "running"}


@pytest.mark.parametrize("kind", CLIENTS, ids=lambda kind: kind.name)
def test_group_continues_from_the_offsets_of_the_snapshot(
    broker: MiniBroker, kind: type[PythonClient]
) -> None:
    assert end_offset(broker) == 0
    client = kind(broker.bootstrap_servers)
    client.produce("orders", [b"1", b"2"], idempotent=True)
    assert client.consume("orders", 2, group="shop") == [b"1", b"2"]
    client.produce("orders", [b"3"], idempotent=True)
    snapshot = broker.snapshot()
    for last in (b"4", b"5"):
        client.produce("orders", [last], idempotent=True)
        assert client.consume("orders", 2, group="shop") == [b"3", last]
        broker.restore(snapshot)
    assert client.consume("orders", 1, group="shop") == [b"3"]
    assert client.consume("orders", 3) == [b"1", b"2", b"3"]
    broker.remove_snapshot(snapshot)


def read(broker: MiniBroker, count: int) -> list[bytes | None]:
    """Committed records of a new consumer, up to a last one that is not transactional."""
    marker = Producer({"bootstrap.servers": broker.bootstrap_servers})
    marker.produce("orders", b"end", partition=0)
    assert marker.flush(PATIENCE_S) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": f"readers-{count}",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe(["orders"])
    found: list[bytes | None] = []
    while len(found) < count:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None, message.error()
        found.append(message.value())
    consumer.close()
    return found


def transactional(broker: MiniBroker) -> Producer:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "payments"}
    )
    producer.init_transactions(PATIENCE_S)
    return producer


def test_transaction_is_open_again_after_the_return(broker: MiniBroker) -> None:
    producer = transactional(broker)
    producer.begin_transaction()
    producer.produce("orders", b"paid", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    snapshot = broker.snapshot()
    producer.commit_transaction(PATIENCE_S)
    assert read(broker, 2) == [b"paid", b"end"]
    broker.restore(snapshot)
    assert end_offset(broker) == 1
    transactional(broker)  # It aborts what its predecessor has left.
    assert read(broker, 1) == [b"end"]
    broker.remove_snapshot(snapshot)


def test_waiting_consumer_and_idle_producer_continue_after_the_return(broker: MiniBroker) -> None:
    snapshot = broker.snapshot()
    errors: list[object] = []
    servers = {"bootstrap.servers": broker.bootstrap_servers, "error_cb": errors.append}
    producer = Producer({**servers, "enable.idempotence": False})
    consumer = Consumer({**servers, "group.id": "waiting", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    for value in (b"before", b"after"):
        producer.produce("orders", value, partition=0)
        assert producer.flush(PATIENCE_S) == 0
        while (message := consumer.poll(PATIENCE_S)) is None or message.error() is not None:
            assert message is not None
        assert message.value() == value
        broker.restore(snapshot)
        assert end_offset(broker) == 0
    consumer.close()
    broker.remove_snapshot(snapshot)


def test_killed_process_recovers_the_restored_state(broker: MiniBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("orders", b"kept", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    snapshot = broker.snapshot()
    producer.produce("orders", b"gone", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    broker.delete_topic("orders")
    broker.restore(snapshot)

    for name in ("worker-0", "controller"):
        killed = running(broker)[name]
        os.kill(killed, signal.SIGKILL)

        def is_restarted(name: str = name, killed: int = killed) -> bool:
            return running(broker).get(name, killed) != killed

        wait_until(is_restarted, f"{name} is restarted")
        assert end_offset(broker) == 1
    broker.restore(snapshot)
    assert read(broker, 2) == [b"kept", b"end"]
    broker.remove_snapshot(snapshot)
