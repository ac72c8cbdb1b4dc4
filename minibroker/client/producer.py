"""A producer for one topic: one batch for each partition, one Produce request for each leader.

Owns the choice of partitions, and the meaning of Produce responses. It
must never know the source of the records. Invariant: `flush` raises, or returns when all
previous records are acknowledged (with acks 0: written to the socket). Kafka's
``RecordAccumulator`` and ``Sender`` do this in the background.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final, NamedTuple

from minibroker.client.errors import InvalidArgument, check
from minibroker.client.kafka_client import KafkaClient
from minibroker_protocol.compression import Compression
from minibroker_protocol.messages.metadata import MetadataResponseTopic
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch

PRODUCE_TIMEOUT_MS: Final = 10_000

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


class BatchAcknowledgement(NamedTuple):
    """A batch that the broker appended; its offset is -1 with acks 0."""

    partition: int
    first_offset: int
    records: int


class RecordProducer:
    """Sends records to one topic, and creates the topic if the broker allows it."""

    def __init__(
        self,
        client: KafkaClient,
        topic: str,
        *,
        acks: int,
        compression: Compression,
        partition: int | None = None,
    ) -> None:
        self._client = client
        self._topic = topic
        self._acks = acks
        self._compression = compression
        self._leaders = leaders(client.topic(topic, create=True))
        self._fixed_partition = partition
        if partition is not None and partition not in self._leaders:
            raise InvalidArgument(
                f"partition {partition} does not exist: topic {topic} has partitions 0 to "
                f"{len(self._leaders) - 1}"
            )
        self._rotation = 0
        self._buffered: dict[int, list[Record]] = defaultdict(list)

    def send(self, record: Record) -> None:
        """Buffer a record until the next `flush`."""
        self._buffered[self._partition(record.key)].append(record)

    def flush(self) -> list[BatchAcknowledgement]:
        """Send all buffered records. Raises `BrokerError` if the broker rejects a batch."""
        batches, self._buffered = self._buffered, defaultdict(list)
        self._rotation += 1
        by_leader: dict[int, list[PartitionProduceData]] = defaultdict(list)
        for partition, records in batches.items():
            batch = build_batch(records, compression=self._compression)
            data = PartitionProduceData(index=partition, records=batch)
            by_leader[self._leaders[partition]].append(data)
        sent = []
        for leader, parts in by_leader.items():
            offsets = self._produce(leader, parts)
            sent += [
                BatchAcknowledgement(
                    part.index, offsets.get(part.index, -1), len(batches[part.index])
                )
                for part in parts
            ]
        return sent

    def _produce(self, leader: int, parts: list[PartitionProduceData]) -> dict[int, int]:
        request = ProduceRequest(
            acks=self._acks,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            topic_data=[TopicProduceData(name=self._topic, partition_data=parts)],
        )
        if self._acks == 0:
            self._client.send_without_response(request, leader)
            return {}
        answers = self._client.send(request, ProduceResponse, leader).responses[0]
        for answer in answers.partition_responses:
            what = f"partition {answer.index} of topic {self._topic}"
            check(what, answer.error_code, answer.error_message)
        return {answer.index: answer.base_offset for answer in answers.partition_responses}

    def _partition(self, key: bytes | None) -> int:
        if self._fixed_partition is not None:
            return self._fixed_partition
        if key is None:
            return self._rotation % len(self._leaders)
        return partition_of(key, len(self._leaders))


def leaders(topic: MetadataResponseTopic) -> dict[int, int]:
    """Map each partition to the broker id of its leader."""
    return {item.partition_index: item.leader_id for item in topic.partitions}


def murmur2(data: bytes) -> int:
    """Hash ``data`` to a non-negative 32-bit number, as Kafka's ``Utils.murmur2``."""
    length = len(data)
    value = (_SEED ^ length) & _MASK
    whole = length & ~3
    for position in range(0, whole, 4):
        part = int.from_bytes(data[position : position + 4], "little")
        part = (part * _MULTIPLIER) & _MASK
        part ^= part >> 24
        part = (part * _MULTIPLIER) & _MASK
        value = ((value * _MULTIPLIER) & _MASK) ^ part
    if length > whole:
        value ^= int.from_bytes(data[whole:], "little")
        value = (value * _MULTIPLIER) & _MASK
    value ^= value >> 13
    value = (value * _MULTIPLIER) & _MASK
    return value ^ (value >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """Choose the partition for ``key``, as Kafka's Java client does (``BuiltInPartitioner``).

    Records with equal keys are sent to the same partition, by any client, while the number of
    partitions stays the same.
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions
