"""Records in: positions of partitions, and Fetch requests to their leaders.

Owns how far each partition has been read; it must never know groups or print. Invariant: a
partition's position is the offset after the last record handed out, so it is what a group would
commit. Kafka's ``Fetcher`` and ``SubscriptionState`` do the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from minibroker.cli.client import Client
from minibroker.cli.errors import check
from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.records import Record, iter_batches, iter_records

FETCH_BYTES_MAX: Final = 50 * 1024 * 1024
PARTITION_BYTES_MAX: Final = 1024 * 1024
MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Answers after which the leader is looked up again."""


class Message(NamedTuple):
    """A record and where it stands."""

    topic: str
    partition: int
    record: Record


class Reader:
    """Reads partitions of one topic from given positions on."""

    def __init__(self, client: Client, topic: str, positions: Mapping[int, int]) -> None:
        self._client = client
        self._topic = topic
        self.positions = dict(positions)
        self._leaders: dict[int, int] = {}

    def poll(self, wait_ms: int) -> Iterator[Message]:
        """What there is; waits up to ``wait_ms`` at each leader that has nothing."""
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
    ) -> Iterator[Message]:
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES_MAX,
            session_epoch=-1,
            topics=[FetchTopic(topic=self._topic, partitions=partitions)],
        )
        reply = self._client.ask(request, FetchResponse, leader)
        check(f"fetch from topic {self._topic}", reply.error_code)
        for topic in reply.responses:
            for answer in topic.partitions:
                if answer.error_code in MOVED:
                    self._leaders = {}
                    continue
                check(f"{self._topic}-{answer.partition_index}", answer.error_code)
                records = answer.records
                if isinstance(records, bytes | memoryview):
                    yield from self._messages(answer.partition_index, records)

    def _messages(self, partition: int, records: bytes | memoryview) -> Iterator[Message]:
        view = memoryview(records)
        for start, header in iter_batches(view):
            if header.is_control:
                self.positions[partition] = header.next_offset
                continue
            for record in iter_records(view[start : start + header.size]):
                if record.offset >= self.positions[partition]:
                    self.positions[partition] = record.offset + 1
                    yield Message(self._topic, partition, record)
