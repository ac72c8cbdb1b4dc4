"""DeleteRecords (21): delete the records of partitions before an offset.

Versions 0-2. Offset -1 means the high watermark. Internal topics, and topics without
``delete`` in their cleanup policy, are rejected, as in Kafka. Segments that end before the new log
start are removed by the next retention. Kafka's ``ReplicaManager.deleteRecords``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from minibroker.broker.apis.base import Api, Context, Owner, Requires, WorkerScope
from minibroker.broker.log.errors import LogError
from minibroker.broker.security.acl import Operation
from minibroker.broker.settings.topics import CLEANUP_POLICY, topic_value
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from minibroker_protocol.registry import ApiKey

NO_WATERMARK = -1


class DeletionQuery(NamedTuple):
    """One partition and the first offset to keep."""

    topic: str
    partition: int
    offset: int


class DeletionResult(NamedTuple):
    """The new log start offset of a partition, or an error."""

    error: int = ErrorCode.NONE
    low_watermark: int = NO_WATERMARK


DeletionPart = tuple[DeletionQuery, ...]
DeletionReply = dict[tuple[str, int], DeletionResult]


def split(ctx: Context, request: DeleteRecordsRequest) -> Mapping[Owner, DeletionPart]:
    """The existing partitions by owner, without those whose topic is rejected."""
    parts: dict[Owner, list[DeletionQuery]] = {}
    for topic in request.topics:
        if _refuse(ctx, topic.name) != ErrorCode.NONE:
            continue
        for partition in topic.partitions:
            if ctx.image.partition(topic.name, partition.partition_index) is not None:
                owner = ctx.partition_owner(topic.name, partition.partition_index)
                query = DeletionQuery(topic.name, partition.partition_index, partition.offset)
                parts.setdefault(owner, []).append(query)
    return {owner: tuple(entries) for owner, entries in parts.items()}


def _refuse(ctx: Context, name: str) -> ErrorCode:
    topic = ctx.image.topics.get(name)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic.internal:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    settings = ctx.dynamic_settings.of(ctx.image.configs)
    policy = topic_value(settings, ctx.image.topic_overrides(name), CLEANUP_POLICY)
    return ErrorCode.NONE if "delete" in policy else ErrorCode.POLICY_VIOLATION


def execute(scope: WorkerScope, part: DeletionPart) -> DeletionReply:
    """Delete the records of each partition."""
    return {(query.topic, query.partition): _delete(scope, query) for query in part}


def _delete(scope: WorkerScope, query: DeletionQuery) -> DeletionResult:
    try:
        partition = scope.partition(query.topic, query.partition)
        if partition is None:
            return DeletionResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return DeletionResult(low_watermark=partition.delete_records(query.offset))
    except LogError as error:
        return DeletionResult(error.code)


def merge(
    ctx: Context, request: DeleteRecordsRequest, replies: Mapping[Owner, DeletionReply]
) -> DeleteRecordsResponse:
    """All partitions in the order of the request."""
    done: DeletionReply = {}
    for reply in replies.values():
        done.update(reply)
    results = []
    for topic in request.topics:
        error = _refuse(ctx, topic.name)
        missing = DeletionResult(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if error == ErrorCode.NONE else error
        )
        partitions = []
        for partition in topic.partitions:
            found = done.get((topic.name, partition.partition_index), missing)
            partitions.append(
                DeleteRecordsPartitionResult(
                    partition_index=partition.partition_index,
                    low_watermark=found.low_watermark,
                    error_code=found.error,
                )
            )
        results.append(DeleteRecordsTopicResult(name=topic.name, partitions=partitions))
    return DeleteRecordsResponse(topics=results)


API: Api[DeleteRecordsRequest, DeletionPart, DeletionReply, DeleteRecordsResponse] = Api(
    key=ApiKey.DELETE_RECORDS,
    versions=(0, 2),
    requires=(Requires(Operation.DELETE, Meaning.TOPIC),),
    split=split,
    execute=execute,
    merge=merge,
    left_out=("timeout_ms: there is no follower to wait for",),
)
