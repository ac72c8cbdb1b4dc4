"""Messages of group members for written journals."""

from __future__ import annotations

from minibroker_protocol.compiler import encode
from minibroker_protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from minibroker_protocol.messages.consumer_group_heartbeat import TopicPartitions as OwnedPartitions
from minibroker_protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    TopicPartition,
)
from minibroker_protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from minibroker_protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from minibroker_protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from minibroker_protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    TaskIds,
)
from minibroker_protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from minibroker_protocol.types import Uuid
from tests.lab.verdicts.written import WrittenJournal

GROUP, MEMBER, TOPIC = "g", "m", "t"
SESSION_MS = 6_000
INTERVAL_MS = 5_000
POLL_MS = 300_000
"""``max.poll.interval.ms`` of a member."""
TOPIC_ID = Uuid(bytes(15) + b"\1")


def assignment_of(*partitions: int) -> bytes:
    assigned = [TopicPartition(topic=TOPIC, partitions=list(partitions))]
    return b"\0\0" + encode(ConsumerProtocolAssignment(assigned_partitions=assigned), 0)


def join(
    journal: WrittenJournal,
    connection: str,
    *partitions: int,
    generation: int = 1,
    member: str = MEMBER,
    instance: str | None = None,
    protocol: str | None = None,
) -> None:
    """Join a classic group and get an assignment."""
    journal.ask(
        connection,
        JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=POLL_MS,
            member_id=member,
            group_instance_id=instance,
            protocol_type="consumer",
        ),
        7,
        JoinGroupResponse(
            generation_id=generation, member_id=member, leader=member, protocol_name=protocol
        ),
    )
    journal.ask(
        connection,
        SyncGroupRequest(group_id=GROUP, generation_id=generation, member_id=member),
        5,
        SyncGroupResponse(assignment=assignment_of(*partitions)),
    )


def beat(
    journal: WrittenJournal, connection: str, generation: int = 1, error_code: int = 0
) -> None:
    """Send a heartbeat of a classic member."""
    journal.ask(
        connection,
        HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=MEMBER),
        4,
        HeartbeatResponse(error_code=error_code),
    )


def commit(
    journal: WrittenJournal,
    connection: str,
    *partitions: int,
    generation: int = 1,
    error_code: int = 0,
) -> None:
    """Commit an offset of some partitions."""
    asked = [OffsetCommitRequestPartition(partition_index=each) for each in partitions]
    done = [
        OffsetCommitResponsePartition(partition_index=each, error_code=error_code)
        for each in partitions
    ]
    journal.ask(
        connection,
        OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=generation,
            member_id=MEMBER,
            topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=asked)],
        ),
        8,
        OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name=TOPIC, partitions=done)]),
    )


def leave(journal: WrittenJournal, connection: str) -> None:
    journal.ask(
        connection,
        LeaveGroupRequest(group_id=GROUP, members=[MemberIdentity(member_id=MEMBER)]),
        5,
        LeaveGroupResponse(),
    )


def get_metadata(journal: WrittenJournal, connection: str) -> None:
    """Get the name of the topic's id."""
    topics = [MetadataResponseTopic(name=TOPIC, topic_id=TOPIC_ID)]
    journal.ask(connection, MetadataRequest(topics=None), 12, MetadataResponse(topics=topics))


def beat_848(
    journal: WrittenJournal,
    connection: str,
    *,
    epoch: int = 1,
    owned: list[int] | None = None,
    assigned: list[int] | None = None,
    error_code: int = 0,
    timeout_ms: int = -1,
    member: str = MEMBER,
) -> None:
    """Send a heartbeat of a member of a KIP-848 group."""
    reported = None
    if owned is not None:
        reported = [OwnedPartitions(topic_id=TOPIC_ID, partitions=owned)]
    given = None
    if assigned is not None:
        given = Assignment(
            topic_partitions=[OwnedPartitions(topic_id=TOPIC_ID, partitions=assigned)]
        )
    journal.ask(
        connection,
        ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=member,
            member_epoch=epoch,
            topic_partitions=reported,
            rebalance_timeout_ms=timeout_ms,
        ),
        0,
        ConsumerGroupHeartbeatResponse(
            member_id=member,
            member_epoch=max(epoch, 1),
            heartbeat_interval_ms=INTERVAL_MS,
            assignment=given,
            error_code=error_code,
        ),
    )


def beat_1071(
    journal: WrittenJournal,
    connection: str,
    *,
    epoch: int = 1,
    owned: list[int] | None = None,
    assigned: list[int] | None = None,
    error_code: int = 0,
) -> None:
    """Send a heartbeat of a member of a streams group; its tasks are those of one subtopology."""

    def tasks(partitions: list[int] | None) -> list[TaskIds] | None:
        if partitions is None:
            return None
        return [TaskIds(subtopology_id="0", partitions=partitions)]

    journal.ask(
        connection,
        StreamsGroupHeartbeatRequest(
            group_id=GROUP, member_id=MEMBER, member_epoch=epoch, active_tasks=tasks(owned)
        ),
        1,
        StreamsGroupHeartbeatResponse(
            member_id=MEMBER,
            member_epoch=max(epoch, 1),
            heartbeat_interval_ms=INTERVAL_MS,
            active_tasks=tasks(assigned),
            error_code=error_code,
        ),
    )
