"""A consumer validates its position by leader epoch before it reads (KIP-320)."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, TopicPartition

from system_tests.clients.adapters.confluent import ConfluentClient
from system_tests.clients.conftest import ClientOf
from system_tests.clients.model import Record
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.waiting import wait_until


def test_consumer_that_seeks_with_leader_epoch_validates_its_position(
    broker: RunningBroker,
    client_of: ClientOf,
    fresh: Callable[[str], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    topic = fresh("validated")
    client = client_of(ConfluentClient)
    client.create_topic(topic)
    client.produce(topic, [Record(None, b"%d" % i) for i in range(5)])
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": fresh("group"),
        "debug": "fetch,topic",
    }
    consumer = Consumer(settings, logger=logging.getLogger("consumer"))
    offsets: list[int] = []

    def has_read(offset: int) -> bool:
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None
            offset_read = message.offset()
            assert offset_read is not None
            offsets.append(offset_read)
        return offset in offsets

    def has_validated() -> bool:
        consumer.poll(0)
        return "epoch validation succeeded: broker end offset 5" in caplog.text

    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        wait_until(lambda: has_read(0), "the first record")
        consumer.seek(TopicPartition(topic, 0, 3, leader_epoch=0))
        offsets.clear()
        wait_until(lambda: has_read(4), "the last record")
        wait_until(has_validated, "the result of the validation")
    finally:
        consumer.close()
    assert offsets[-2:] == [3, 4]
