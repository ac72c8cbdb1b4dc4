"""Fetches records of one topic from the leaders of its partitions.

Owns the position of each partition; it must never know groups or print. Invariant: a partition's
position is the offset after the last returned record, which is the offset that a group commits.
Kafka's counterparts are ``Fetcher`` and ``SubscriptionState``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from minibroker.client.errors import check
from minibroker.client.kafka_client import KafkaClient
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from minibroker_protocol.records import Record, iter_batches, iter_records

FETCH_BYTES_MAX: Final = 50 * 1024 * 1024
PARTITION_BYTES_MAX: Final = 1024 * 1024
LEADER_CHANGED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors after which the leader is looked up again."""


class ConsumerRecord(NamedTuple):
    """A record with its topic and partition."""

    topic: str
    partition: int
    record: Record


class Fetcher:
    """Fetches partitions of one topic, starting at the given positions."""

    def __init__(self, client: KafkaClient, topic: str, positions: Mapping[int, int]) -> None:
        self._client = client
        self._topic = topic
        self.positions = dict(positions)
        self._leaders: dict[int, int] = {}

    def poll(self, wait_ms: int) -> Iterator[ConsumerRecord]:
        """Fetch available records; a leader without any waits up to ``wait_ms``."""
        if not self._leaders:
            found = self._client.topic(self._topic).partitions
            self._leaders = {item.partition_index: item.leader_id for item in found}
        by_leader: dict[int, list[FetchPartition]] = defaultdict(list)
        for partition, offset in self.positions.items():
            wanted = FetchPartition(
                partition=partition,
                fetch_offset=offset,
                current_leader_epoch=-1,
                log_start_offset=-1,
                partition_max_bytes=PARTITION_BYTES_MAX,
            )
            by_leader[self._leaders[partition]].append(wanted)
        for leader, partitions in by_leader.items():
            yield from self._fetch(leader, partitions, wait_ms)

    def _fetch(
        self, leader: int, partitions: list[FetchPartition], wait_ms: int
    ) -> Iterator[ConsumerRecord]:
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES_MAX,
            session_epoch=-1,
            topics=[FetchTopic(topic=self._topic, partitions=partitions)],
        )
        reply = self._client.send(request, FetchResponse, leader)
        check(f"fetch from topic {self._topic}", reply.error_code)
        for topic in reply.responses:
            for answer in topic.partitions:
                if answer.error_code in LEADER_CHANGED:
                    self._leaders = {}
                    continue
                check(f"{self._topic}-{answer.partition_index}", answer.error_code)
                records = answer.records
                if isinstance(records, bytes | memoryview):
                    yield from self._records(answer.partition_index, records)

    def _records(self, partition: int, records: bytes | memoryview) -> Iterator[ConsumerRecord]:
        view = memoryview(records)
        for start, header in iter_batches(view):
            if header.is_control:
                self.positions[partition] = header.next_offset
                continue
            for record in iter_records(view[start : start + header.size]):
                if record.offset >= self.positions[partition]:
                    self.positions[partition] = record.offset + 1
                    yield ConsumerRecord(self._topic, partition, record)
