"""Membership in a consumer group that reads one topic.

Owns joining, the leader's assignment of partitions, heartbeats and offset commits. It must never
fetch or print records. Invariant: offsets are committed with the generation that assigned the
partitions, so the broker rejects a commit after a rebalance that this member missed. Kafka's
counterparts are ``ConsumerCoordinator`` and ``RangeAssignor`` (KIP-394 for member ids).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from minibroker.client.errors import BrokerError, check
from minibroker.client.kafka_client import KafkaClient
from minibroker_protocol.compiler import decoder, encode
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
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
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from minibroker_protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

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
