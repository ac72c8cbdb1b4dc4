"""What brokers have stored of streams groups in `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from minibroker.broker.groups.records import RECORD_DECODERS, VERSION_BYTES
from minibroker.broker.groups.streams_records import (
    StreamsGroupMetadata,
    StreamsRecordKind,
    StreamsTargetMetadata,
)
from minibroker.broker.metadata.image import OFFSETS_TOPIC
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.waiting import PATIENCE_S

UNCERTAIN: Final = -2
"""The epoch of a description while Kafka's plug-in is about to store it."""

KINDS: Final = frozenset(kind.value for kind in StreamsRecordKind)


def stored_groups(broker: RunningBroker) -> dict[str, list[str]]:
    """All records of each group, without times and the ids of topics."""
    found: dict[str, list[str]] = {}
    for key, value in _offsets_records(broker):
        kind = int.from_bytes(key[:VERSION_BYTES], "big")
        if kind not in KINDS:
            continue
        record = RECORD_DECODERS[kind](key, value)
        stored = getattr(record, "value", None)
        if isinstance(stored, StreamsGroupMetadata):
            if stored.stored_description_topology_epoch == UNCERTAIN:
                continue
            stored.metadata_hash = bool(stored.metadata_hash)
        elif isinstance(stored, StreamsTargetMetadata):
            stored.assignment_timestamp = bool(stored.assignment_timestamp)
        found.setdefault(record.group_id, []).append(repr(record))
    return {group_id: sorted(records) for group_id, records in found.items()}


def _offsets_records(broker: RunningBroker) -> Iterator[tuple[bytes, bytes | None]]:
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "unused",
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    try:
        partitions = consumer.list_topics(OFFSETS_TOPIC).topics[OFFSETS_TOPIC].partitions
        consumer.assign([TopicPartition(OFFSETS_TOPIC, each, 0) for each in partitions])
        unread = len(partitions)
        while unread:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"{unread} partitions have no end"
            if message.error() is not None:
                unread -= 1
            else:
                yield message.key(), message.value()
    finally:
        consumer.close()
