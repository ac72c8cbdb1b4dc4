"""Appends of a running broker fail, are torn and wait; acknowledged records survive."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from minibroker.testing import ControlError, MiniBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[MiniBroker]:
    with MiniBroker(settings={"process.mode": "separate", "num.io.threads": 2}) as started:
        yield started


@pytest.fixture
def topic(broker: MiniBroker) -> str:
    return broker.create_topic(f"t{uuid.uuid4().hex}")


def send(broker: MiniBroker, topic: str, *values: bytes, **config: object) -> list[str]:
    """Produce records one by one; the names of their errors."""
    errors: list[str] = []

    def delivered(error: Any, _: object) -> None:
        if error is not None:
            errors.append(error.name())

    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "retry.backoff.ms": 20,
            "log_level": 0,
            **config,
        }
    )
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=delivered)
        assert producer.flush(30) == 0
    return errors


def records(broker: MiniBroker, topic: str, count: int) -> list[bytes]:
    reader = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
        }
    )
    reader.subscribe([topic])
    found: list[bytes] = []
    while len(found) < count:
        message = reader.poll(0.2)
        if message is not None and not message.error():
            found.append(message.value() or b"")
    reader.close()
    return found


def conditions(broker: MiniBroker) -> list[str]:
    while True:
        try:
            return [each["kind"] for each in broker.control.get("v1", "health")["conditions"]]
        except ControlError:  # Until the broker is ready again.
            pass


def test_failed_appends_are_errors_shown_and_over_with_the_rule(
    broker: MiniBroker, topic: str
) -> None:
    while conditions(broker):  # Of an earlier test, in another process.
        pass
    with broker.faults as faults:
        full = faults.add("fail_append", topic=topic)
        failed = send(broker, topic, b"lost", retries=0)
        assert failed == ["KAFKA_STORAGE_ERROR"]
        assert full.wait()["hits"] == full.hits >= 1
        assert conditions(broker) == ["storage_failed"]
        other = broker.create_topic(f"o{uuid.uuid4().hex}")
        assert send(broker, other, b"kept") == []
    while conditions(broker):
        pass
    assert send(broker, topic, b"kept") == []
    assert records(broker, topic, 1) == [b"kept"]


def test_failed_append_is_counted_once_and_retried(broker: MiniBroker, topic: str) -> None:
    with broker.faults as faults:
        failing = faults.add("fail_append", topic=topic, first=2, errno="EIO")
        assert send(broker, topic, b"one", **{"enable.idempotence": True}) == []
        assert (failing.matches, failing.hits) == (3, 2)
    assert records(broker, topic, 1) == [b"one"]


def test_torn_append_and_crash_lose_no_acknowledged_record(broker: MiniBroker, topic: str) -> None:
    values = [b"one", b"two", b"three"]
    with broker.faults as faults:
        torn = faults.add("fail_append", topic=topic, bytes=40, crash=True, nth=2)
        assert send(broker, topic, *values, **{"enable.idempotence": True}) == []
        assert (torn.matches, torn.hits) == (4, 1)
    assert records(broker, topic, 3) == values


def test_append_that_waits_is_acknowledged(broker: MiniBroker, topic: str) -> None:
    with broker.faults as faults:
        faults.add("stall_append", topic=topic, pause_ms=50, first=1)
        assert send(broker, topic, b"one") == []


def test_rule_about_appends_selects_topics_and_partitions_only(broker: MiniBroker) -> None:
    with pytest.raises(ControlError, match="client_id: cannot select"):
        broker.faults.add("fail_append", client_id="c")
