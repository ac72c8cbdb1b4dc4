"""OffsetCommit (8): commit offsets of a group.

Versions 2-10, with topic ids since version 10. In versions 2 to 4, the request may contain a
retention time. A partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION, and an unknown id
UNKNOWN_TOPIC_ID; the other offsets are committed in one batch. A member of a group that does not
exist gets GROUP_ID_NOT_FOUND since version 9, and ILLEGAL_GENERATION before. Kafka's counterparts
are ``KafkaApis.handleOffsetCommitRequest`` and ``OffsetMetadataManager.commitOffset``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from minibroker.broker.apis.base import (
    Api,
    Context,
    Owner,
    Requires,
    SingleForm,
    SingleScope,
    WorkerScope,
)
from minibroker.broker.apis.topic_names import requested_name, unknown_topic
from minibroker.broker.groups.events import CommitRequested
from minibroker.broker.groups.offsets import CommittedOffset
from minibroker.broker.security.acl import Operation
from minibroker_protocol.compiler.single import Shape
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from minibroker_protocol.registry import ApiKey

TOPIC_IDS_SINCE: Final = 10
NO_SUCH_GROUP_SINCE: Final = 9
NO_RETENTION: Final = -1
EXPIRY_MAX_MS: Final = 2**63 - 1
"""Latest expiry time. A client may request a time beyond the range of the record."""


class CommitPosition(NamedTuple):
    """The offset to commit for one partition."""

    offset: int
    leader_epoch: int
    metadata: str


class OffsetCommitPart(NamedTuple):
    """The offsets that a group commits. ``retention_ms`` of None means the broker's retention."""

    group_id: str
    event: CommitRequested
    offsets: dict[tuple[str, int], CommitPosition]
    retention_ms: int | None


OffsetCommitReply = dict[tuple[str, int], ErrorCode]


def split(ctx: Context, request: OffsetCommitRequest) -> Mapping[Owner, OffsetCommitPart]:
    """Send the offsets of existing partitions to the group's owner."""
    offsets: dict[tuple[str, int], CommitPosition] = {}
    for topic in request.topics:
        name = _name(ctx, topic)
        for each in topic.partitions:
            if name is not None and ctx.image.partition(name, each.partition_index) is not None:
                offsets[name, each.partition_index] = CommitPosition(
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.committed_metadata or "",
                )
    if not offsets:
        return {}
    event = CommitRequested(
        member_id=request.member_id,
        generation=request.generation_id_or_member_epoch,
        group_instance_id=request.group_instance_id,
    )
    retention_ms = None
    if request.retention_time_ms != NO_RETENTION:
        retention_ms = request.retention_time_ms
    part = OffsetCommitPart(request.group_id, event, offsets, retention_ms)
    return {ctx.group_owner(request.group_id): part}


def _name(ctx: Context, topic: OffsetCommitRequestTopic) -> str | None:
    return requested_name(ctx, topic.name, topic.topic_id, by_id=ctx.version >= TOPIC_IDS_SINCE)


def execute(scope: WorkerScope, part: OffsetCommitPart) -> OffsetCommitReply:
    """Write the offsets if the group accepts the commit."""
    now_ms = scope.wall_ms()
    expire_ms = None
    if part.retention_ms is not None:
        expire_ms = min(now_ms + part.retention_ms, EXPIRY_MAX_MS)
    offsets = {
        key: CommittedOffset(offset, leader_epoch, metadata, now_ms, expire_ms)
        for key, (offset, leader_epoch, metadata) in part.offsets.items()
    }
    return scope.groups.commit(part.group_id, part.event, offsets)


def merge(
    ctx: Context, request: OffsetCommitRequest, replies: Mapping[Owner, OffsetCommitReply]
) -> OffsetCommitResponse:
    """Return one error per partition, in the order of the request."""
    errors = {key: error for reply in replies.values() for key, error in reply.items()}
    return OffsetCommitResponse(topics=[_topic(ctx, topic, errors) for topic in request.topics])


def _topic(
    ctx: Context, topic: OffsetCommitRequestTopic, errors: OffsetCommitReply
) -> OffsetCommitResponseTopic:
    name = _name(ctx, topic)
    missing = unknown_topic(name, by_id=ctx.version >= TOPIC_IDS_SINCE)
    partitions = []
    for each in topic.partitions:
        error = missing if name is None else errors.get((name, each.partition_index), missing)
        if error is ErrorCode.GROUP_ID_NOT_FOUND and ctx.version < NO_SUCH_GROUP_SINCE:
            error = ErrorCode.ILLEGAL_GENERATION
        partitions.append(
            OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
        )
    return OffsetCommitResponseTopic(
        name=topic.name, topic_id=topic.topic_id, partitions=partitions
    )


def execute_single(
    scope: SingleScope, version: int, request: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """Commit offsets of one topic if its partitions exist, and the group is in this process."""
    group_id, generation, member_id, group_instance_id, retention_ms, name, topic_id, found = (
        request
    )
    worker = scope.worker
    topic = (
        scope.image.topics.get(name)
        if version < TOPIC_IDS_SINCE
        else scope.image.topic_by_id(topic_id)
    )
    if (
        topic is None
        or not found
        or retention_ms != NO_RETENTION
        or not worker.groups.has(group_id)
    ):
        return None
    now_ms, offsets = worker.wall_ms(), {}
    for index, offset, leader_epoch, metadata in found:
        if not 0 <= index < len(topic.partitions) or not worker.groups.accepts(metadata or ""):
            return None
        offsets[topic.name, index] = CommittedOffset(offset, leader_epoch, metadata or "", now_ms)
    event = CommitRequested(member_id, generation, group_instance_id)
    # All offsets are written or none: then the three steps find the error again.
    if any(worker.groups.commit(group_id, event, offsets).values()):
        return None
    return 0, name, topic_id, [(each[0], ErrorCode.NONE) for each in found]


SINGLE: Final = SingleForm(Shape(frozenset({"topics"}), frozenset({"partitions"})), execute_single)

API: Api[OffsetCommitRequest, OffsetCommitPart, OffsetCommitReply, OffsetCommitResponse] = Api(
    key=ApiKey.OFFSET_COMMIT,
    versions=(2, 10),
    requires=(
        Requires(Operation.READ, Meaning.GROUP),
        Requires(Operation.READ, Meaning.TOPIC),
    ),
    split=split,
    execute=execute,
    merge=merge,
    single=SINGLE,
    left_out=("member epochs of KIP-848: its groups are not served yet",),
)
