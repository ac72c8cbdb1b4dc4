"""Records out: one batch a partition, one Produce request a leader.

Owns where records without a key go and what an answer to Produce means; it must never know where
records come from. Invariant: `flush` returns only when every record given before has been
acknowledged (with acks 0: handed to the system), or raises. Kafka's ``RecordAccumulator`` and
``Sender`` do the same in the background.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final, NamedTuple

from minibroker.cli.client import Client
from minibroker.cli.errors import UsageMistake, check
from minibroker.cli.partitioner import partition_of
from protocol.compression import Compression
from protocol.messages.metadata import MetadataResponseTopic
from protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from protocol.records import Record, build_batch

PRODUCE_TIMEOUT_MS: Final = 10_000


class Acknowledged(NamedTuple):
    """One batch that the broker took; offsets are -1 with acks 0."""

    partition: int
    first_offset: int
    records: int


class Sender:
    """Sends records to one topic, which is created at need if the broker allows it."""

    def __init__(
        self,
        client: Client,
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
        self._fixed = partition
        if partition is not None and partition not in self._leaders:
            raise UsageMistake(
                f"--partition {partition}: topic {topic} has partitions 0 to "
                f"{len(self._leaders) - 1}"
            )
        self._turn = 0
        self._waiting: dict[int, list[Record]] = defaultdict(list)

    def add(self, record: Record) -> None:
        """Keep a record for the next `flush`."""
        self._waiting[self._partition(record.key)].append(record)

    def flush(self) -> list[Acknowledged]:
        """Send what was added since the last flush; `Refused` if the broker takes not all of it."""
        waiting, self._waiting = self._waiting, defaultdict(list)
        self._turn += 1
        by_leader: dict[int, list[PartitionProduceData]] = defaultdict(list)
        for partition, records in waiting.items():
            batch = build_batch(records, compression=self._compression)
            data = PartitionProduceData(index=partition, records=batch)
            by_leader[self._leaders[partition]].append(data)
        sent = []
        for leader, parts in by_leader.items():
            offsets = self._send(leader, parts)
            sent += [
                Acknowledged(part.index, offsets.get(part.index, -1), len(waiting[part.index]))
                for part in parts
            ]
        return sent

    def _send(self, leader: int, parts: list[PartitionProduceData]) -> dict[int, int]:
        request = ProduceRequest(
            acks=self._acks,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            topic_data=[TopicProduceData(name=self._topic, partition_data=parts)],
        )
        if self._acks == 0:
            self._client.tell(request, leader)
            return {}
        answers = self._client.ask(request, ProduceResponse, leader).responses[0]
        for answer in answers.partition_responses:
            what = f"partition {answer.index} of topic {self._topic}"
            check(what, answer.error_code, answer.error_message)
        return {answer.index: answer.base_offset for answer in answers.partition_responses}

    def _partition(self, key: bytes | None) -> int:
        if self._fixed is not None:
            return self._fixed
        if key is None:
            return self._turn % len(self._leaders)
        return partition_of(key, len(self._leaders))


def leaders(topic: MetadataResponseTopic) -> dict[int, int]:
    """Leader's broker id by partition."""
    return {item.partition_index: item.leader_id for item in topic.partitions}
