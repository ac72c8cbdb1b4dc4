"""Reads one topic: offsets, fetching, and membership in a consumer group.

Owns the position of each partition, joining a group, the leader's assignment, heartbeats and
commits. It must never print. Invariant: a position is the offset after the last returned record;
offsets are committed with the generation that assigned the partitions, so the broker rejects a
commit after a rebalance that this member missed. Listed offsets contain every partition of the
topic, committed offsets only those with a commit. Kafka's counterparts are ``Fetcher``,
``ConsumerCoordinator`` and ``RangeAssignor`` (KIP-394 for member ids), and ``listOffsets`` and
``listConsumerGroupOffsets`` of ``Admin``.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from minibroker.client.errors import BrokerError, check
from minibroker.client.kafka_client import KafkaClient
from minibroker_protocol.compiler import decoder, encode
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from minibroker_protocol.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from minibroker_protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from minibroker_protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from minibroker_protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from minibroker_protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from minibroker_protocol.messages.metadata import MetadataResponseTopic
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from minibroker_protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from minibroker_protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from minibroker_protocol.records import Record, iter_batches, iter_records

LATEST: Final = -1
EARLIEST: Final = -2


def list_offsets(
    client: KafkaClient, topic: MetadataResponseTopic, timestamp: int
) -> dict[int, int]:
    """List each partition's offset for `EARLIEST`, `LATEST` or a timestamp in milliseconds."""
    by_leader: dict[int, list[int]] = defaultdict(list)
    for partition in topic.partitions:
        by_leader[partition.leader_id].append(partition.partition_index)
    found: dict[int, int] = {}
    for leader, partitions in by_leader.items():
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(
                    name=topic.name or "",
                    partitions=[
                        ListOffsetsPartition(partition_index=index, timestamp=timestamp)
                        for index in partitions
                    ],
                )
            ],
        )
        for answer in client.send(request, ListOffsetsResponse, leader).topics[0].partitions:
            check(f"offsets of {topic.name}-{answer.partition_index}", answer.error_code)
            found[answer.partition_index] = answer.offset
    return found


def committed_offsets(
    client: KafkaClient, group_id: str, topic: str | None = None, partitions: Sequence[int] = ()
) -> dict[tuple[str, int], int]:
    """Fetch a group's committed offsets: of some partitions, or of all if no topic is given."""
    old = new = None
    if topic is not None:
        indexes = list(partitions)
        old = [OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)]
        new = [OffsetFetchRequestTopics(name=topic, partition_indexes=indexes)]
    request = OffsetFetchRequest(
        group_id=group_id,
        topics=old,
        groups=[OffsetFetchRequestGroup(group_id=group_id, topics=new)],
    )
    reply = client.send(request, OffsetFetchResponse, client.coordinator(group_id))
    found = reply.groups[0] if reply.groups else reply
    check(f"offsets of group {group_id}", found.error_code)
    return {
        (item.name, partition.partition_index): partition.committed_offset
        for item in found.topics
        for partition in item.partitions
        if partition.committed_offset >= 0 and not partition.error_code
    }


READ_COMMITTED: Final = 1
NO_OFFSET_MAX: Final = 2**63 - 1
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
    """Fetches partitions of one topic, starting at the given positions.

    With ``committed``, it returns no records of aborted and of open transactions.
    """

    def __init__(
        self,
        client: KafkaClient,
        topic: str,
        positions: Mapping[int, int],
        *,
        committed: bool = False,
    ) -> None:
        self._client = client
        self._topic = topic
        self.positions = dict(positions)
        self._committed = committed
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
            isolation_level=READ_COMMITTED if self._committed else 0,
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
                    aborted = answer.aborted_transactions if self._committed else None
                    yield from self._records(answer.partition_index, records, aborted or ())

    def _records(
        self,
        partition: int,
        records: bytes | memoryview,
        aborted: Sequence[AbortedTransaction],
    ) -> Iterator[ConsumerRecord]:
        view = memoryview(records)
        first_offsets = {each.producer_id: each.first_offset for each in reversed(aborted)}
        for start, header in iter_batches(view):
            first_offset = first_offsets.get(header.producer_id)
            is_aborted = first_offset is not None and header.base_offset >= first_offset
            if header.is_control and is_aborted:  # The next transaction may be committed.
                later = (
                    each.first_offset
                    for each in aborted
                    if each.producer_id == header.producer_id
                    and each.first_offset > header.base_offset
                )
                first_offsets[header.producer_id] = min(later, default=NO_OFFSET_MAX)
            if header.is_control or (header.is_transactional and is_aborted):
                self.positions[partition] = header.next_offset
                continue
            for record in iter_records(view[start : start + header.size]):
                if record.offset >= self.positions[partition]:
                    self.positions[partition] = record.offset + 1
                    yield ConsumerRecord(self._topic, partition, record)


SESSION_TIMEOUT_MS: Final = 10_000
REBALANCE_TIMEOUT_MS: Final = 8_000
"""Below the request timeout, because JoinGroup is answered when all members have joined."""
PROTOCOL_TYPE: Final = "consumer"
ASSIGNOR: Final = "range"
CONSUMER_PROTOCOL_VERSION: Final = 0
JOIN_ATTEMPTS_MAX: Final = 20

REJOIN: Final = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)


class ConsumerCoordinator:
    """One member of a consumer group."""

    def __init__(self, client: KafkaClient, group_id: str, topic: str) -> None:
        self._client = client
        self._group_id = group_id
        self._topic = topic
        self._member_id = ""
        self._generation = -1
        self._coordinator = client.coordinator(group_id)

    def join(self) -> list[int]:
        """Join or rejoin the group; return the assigned partitions, which may be none."""
        for _ in range(JOIN_ATTEMPTS_MAX):
            reply = self._join_once()
            if reply.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self._member_id = reply.member_id
                continue
            if reply.error_code in REJOIN:
                self._prepare_rejoin(reply.error_code)
                continue
            check(f"group {self._group_id}", reply.error_code)
            self._member_id, self._generation = reply.member_id, reply.generation_id
            partitions = self._sync(reply)
            if partitions is not None:
                return partitions
        raise BrokerError(f"group {self._group_id}", ErrorCode.REBALANCE_IN_PROGRESS)

    def must_rejoin(self) -> bool:
        """Send a heartbeat; return whether this member must rejoin."""
        request = HeartbeatRequest(
            group_id=self._group_id, generation_id=self._generation, member_id=self._member_id
        )
        code = self._client.send(request, HeartbeatResponse, self._coordinator).error_code
        if code in REJOIN:
            self._prepare_rejoin(code)
            return True
        check(f"group {self._group_id}", code)
        return False

    def commit(self, positions: Mapping[int, int]) -> None:
        """Commit the next offset to read of each partition."""
        if not positions:
            return
        partitions = [
            OffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_metadata=""
            )
            for index, offset in positions.items()
        ]
        request = OffsetCommitRequest(
            group_id=self._group_id,
            generation_id_or_member_epoch=self._generation,
            member_id=self._member_id,
            topics=[OffsetCommitRequestTopic(name=self._topic, partitions=partitions)],
        )
        reply = self._client.send(request, OffsetCommitResponse, self._coordinator)
        for item in reply.topics[0].partitions:
            if item.error_code not in REJOIN:
                what = f"commit of {self._topic}-{item.partition_index} in group {self._group_id}"
                check(what, item.error_code)

    def leave(self) -> None:
        """Leave the group, so that it rebalances before the session times out."""
        identity = MemberIdentity(member_id=self._member_id, reason="the command ended")
        request = LeaveGroupRequest(
            group_id=self._group_id, member_id=self._member_id, members=[identity]
        )
        self._client.send(request, LeaveGroupResponse, self._coordinator)

    def _join_once(self) -> JoinGroupResponse:
        subscription = ConsumerProtocolSubscription(topics=[self._topic])
        metadata = _versioned(encode(subscription, CONSUMER_PROTOCOL_VERSION))
        request = JoinGroupRequest(
            group_id=self._group_id,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self._member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(name=ASSIGNOR, metadata=metadata)],
        )
        return self._client.send(request, JoinGroupResponse, self._coordinator)

    def _sync(self, joined: JoinGroupResponse) -> list[int] | None:
        assignments = []
        if joined.leader == joined.member_id:
            count = len(self._client.topic(self._topic).partitions)
            assignments = self._assign(joined.members, count)
        request = SyncGroupRequest(
            group_id=self._group_id,
            generation_id=self._generation,
            member_id=self._member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        reply = self._client.send(request, SyncGroupResponse, self._coordinator)
        if reply.error_code in REJOIN:
            self._prepare_rejoin(reply.error_code)
            return None
        check(f"group {self._group_id}", reply.error_code)
        return self._read_assignment(reply.assignment)

    def _assign(
        self, members: Sequence[JoinGroupResponseMember], count: int
    ) -> list[SyncGroupRequestAssignment]:
        ids = [member.member_id for member in members if self._subscribes_topic(member.metadata)]
        shares = assign_range(ids, count)
        return [
            SyncGroupRequestAssignment(
                member_id=member.member_id,
                assignment=self._write_assignment(shares.get(member.member_id, [])),
            )
            for member in members
        ]

    def _subscribes_topic(self, metadata: bytes) -> bool:
        read = decoder(ConsumerProtocolSubscription, CONSUMER_PROTOCOL_VERSION)
        subscription, _ = read(metadata, 2)
        return self._topic in subscription.topics

    def _write_assignment(self, partitions: list[int]) -> bytes:
        assigned = [TopicPartition(topic=self._topic, partitions=partitions)] if partitions else []
        assignment = ConsumerProtocolAssignment(assigned_partitions=assigned)
        return _versioned(encode(assignment, CONSUMER_PROTOCOL_VERSION))

    def _read_assignment(self, assignment: bytes) -> list[int]:
        if not assignment:
            return []
        read = decoder(ConsumerProtocolAssignment, CONSUMER_PROTOCOL_VERSION)
        decoded, _ = read(assignment, 2)
        return [
            partition
            for item in decoded.assigned_partitions
            if item.topic == self._topic
            for partition in item.partitions
        ]

    def _prepare_rejoin(self, code: int) -> None:
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        elif code != ErrorCode.REBALANCE_IN_PROGRESS:
            self._coordinator = self._client.coordinator(self._group_id)


def _versioned(body: bytes) -> bytes:
    return struct.pack(">h", CONSUMER_PROTOCOL_VERSION) + body


def assign_range(member_ids: Sequence[str], partitions: int) -> dict[str, list[int]]:
    """Assign contiguous ranges in the order of ids; the first members receive the remainder."""
    shares: dict[str, list[int]] = {}
    start = 0
    ordered = sorted(member_ids)
    for place, member_id in enumerate(ordered):
        size = partitions // len(ordered) + (place < partitions % len(ordered))
        shares[member_id] = list(range(start, start + size))
        start += size
    return shares
