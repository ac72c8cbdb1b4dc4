"""ListOffsets (2): find offsets by time, or the ends of a partition.

Versions 1-11. A timestamp finds the first record at or after it, -1 the end, -2 the start, -3
(since version 7) the record with the largest timestamp, -4 (8) the local start. -5 (9) and -6 (11)
concern tiered storage: no offset and no error, as from Kafka without tiered storage. With isolation
level ``read_committed`` the end is the last stable offset. Kafka's
``KafkaApis.handleListOffsetRequest`` and ``UnifiedLog.fetchOffsetByTimestamp``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping
from typing import NamedTuple

from minibroker.broker.apis.base import Api, Context, Owner, Requires, WorkerScope
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.log.segment import LargeBatchError, TimestampOffset
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from minibroker_protocol.registry import ApiKey

READ_COMMITTED = 1

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

SINCE_VERSION = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version with each special timestamp."""


STEP_SEARCHES_MAX = 4
"""Searches by time in one step of a worker's loop: each may read and decompress a megabyte."""


class OffsetQuery(NamedTuple):
    """One partition and the timestamp to search for."""

    topic: str
    partition: int
    timestamp: int
    leader_epoch: int
    committed: bool = False
    """Whether the end is the last stable offset."""


class OffsetResult(NamedTuple):
    """An offset or an error; -1 where there is none."""

    error: int = ErrorCode.NONE
    offset: int = -1
    timestamp: int = -1
    leader_epoch: int = -1


ListOffsetsPart = tuple[OffsetQuery, ...]
ListOffsetsReply = dict[tuple[str, int], OffsetResult]


def split(ctx: Context, request: ListOffsetsRequest) -> Mapping[Owner, ListOffsetsPart]:
    """The existing partitions by owner, without those that the request contains twice."""
    parts: dict[Owner, list[OffsetQuery]] = {}
    repeated = _repeated_partitions(request)
    for topic in request.topics:
        for partition in topic.partitions:
            if (
                (topic.name, partition.partition_index) in repeated
                or not _is_supported(ctx, partition)
                or ctx.image.partition(topic.name, partition.partition_index) is None
            ):
                continue
            owner = ctx.partition_owner(topic.name, partition.partition_index)
            query = OffsetQuery(
                topic.name,
                partition.partition_index,
                partition.timestamp,
                partition.current_leader_epoch,
                request.isolation_level == READ_COMMITTED,
            )
            parts.setdefault(owner, []).append(query)
    return {owner: tuple(entries) for owner, entries in parts.items()}


def _repeated_partitions(request: ListOffsetsRequest) -> set[tuple[str, int]]:
    counts = Counter(
        (topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    )
    return {partition for partition, count in counts.items() if count > 1}


def _is_supported(ctx: Context, partition: ListOffsetsPartition) -> bool:
    if partition.timestamp >= EARLIEST:
        return True
    since = SINCE_VERSION.get(partition.timestamp)
    return since is not None and ctx.version >= since


def execute(
    scope: WorkerScope, part: ListOffsetsPart
) -> ListOffsetsReply | Awaitable[ListOffsetsReply]:
    """Search the log of each partition, at once unless there is too much to search."""
    found: ListOffsetsReply = {}
    later: list[tuple[OffsetQuery, LargeBatchError | None]] = []
    searches = 0
    for query in part:
        searches += query.timestamp >= 0 or query.timestamp == MAX_TIMESTAMP
        if searches > STEP_SEARCHES_MAX:
            later.append((query, None))
            continue
        try:
            found[query.topic, query.partition] = _look_up(scope, query)
        except LargeBatchError as batch:
            later.append((query, batch))
    return _continue(scope, later, found) if later else found


async def _continue(
    scope: WorkerScope,
    later: list[tuple[OffsetQuery, LargeBatchError | None]],
    found: ListOffsetsReply,
) -> ListOffsetsReply:
    """Search one partition in a step; other requests are executed in between."""
    for query, batch in later:
        if batch is None:
            await scope.sleep_real(0)
            try:
                result = _look_up(scope, query)
            except LargeBatchError as large:
                result = await _search_one(scope, query, large)
        else:
            result = await _search_one(scope, query, batch)
        found[query.topic, query.partition] = result
    return found


async def _search_one(
    scope: WorkerScope, query: OffsetQuery, batch: LargeBatchError
) -> OffsetResult:
    """Search large batches in a thread, until one has the record."""
    while True:
        at = await scope.run_in_thread(batch.search)
        try:
            partition = scope.partition(query.topic, query.partition)
            if partition is None:
                return OffsetResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            partition.check_leader(query.leader_epoch)
            if at is None and query.timestamp != MAX_TIMESTAMP:
                at = partition.log.offset_for_time(query.timestamp, batch.next_offset)
        except LargeBatchError as following:
            batch = following
        except LogError as error:
            return OffsetResult(error.code)
        else:
            return _found_at(at, _end_offset(partition, query))


def _end_offset(partition: Partition, query: OffsetQuery) -> int:
    return partition.last_stable_offset if query.committed else partition.high_watermark


def _found_at(at: TimestampOffset | None, end_offset: int) -> OffsetResult:
    if at is None or at.offset >= end_offset:
        return OffsetResult()
    return OffsetResult(offset=at.offset, timestamp=at.timestamp, leader_epoch=at.leader_epoch)


def _look_up(scope: WorkerScope, query: OffsetQuery) -> OffsetResult:
    try:
        partition = scope.partition(query.topic, query.partition)
        if partition is None:
            return OffsetResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition.check_leader(query.leader_epoch)
        return _find(partition, query)
    except LogError as error:
        return OffsetResult(error.code)


def _find(partition: Partition, query: OffsetQuery) -> OffsetResult:
    log, timestamp = partition.log, query.timestamp
    end_offset = _end_offset(partition, query)
    if timestamp == LATEST:
        return OffsetResult(offset=end_offset, leader_epoch=partition.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        return OffsetResult(offset=start, leader_epoch=log.leader_epochs.epoch_for_offset(start))
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return OffsetResult()
    at = log.max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_time(timestamp)
    return _found_at(at, end_offset)


def merge(
    ctx: Context, request: ListOffsetsRequest, replies: Mapping[Owner, ListOffsetsReply]
) -> ListOffsetsResponse:
    """All partitions in the order of the request."""
    found: ListOffsetsReply = {}
    for reply in replies.values():
        found.update(reply)
    repeated = _repeated_partitions(request)
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name, partitions=list(_partitions(ctx, topic, found, repeated))
            )
            for topic in request.topics
        ]
    )


def _partitions(
    ctx: Context, topic: ListOffsetsTopic, found: ListOffsetsReply, repeated: set[tuple[str, int]]
) -> Iterator[ListOffsetsPartitionResponse]:
    for partition in topic.partitions:
        key = (topic.name, partition.partition_index)
        if key in repeated:
            result = OffsetResult(ErrorCode.INVALID_REQUEST)
        elif not _is_supported(ctx, partition):
            result = OffsetResult(ErrorCode.UNSUPPORTED_VERSION)
        else:
            result = found.get(key, OffsetResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        yield ListOffsetsPartitionResponse(
            partition_index=partition.partition_index,
            error_code=result.error,
            timestamp=result.timestamp,
            offset=result.offset,
            leader_epoch=result.leader_epoch,
        )


API: Api[ListOffsetsRequest, ListOffsetsPart, ListOffsetsReply, ListOffsetsResponse] = Api(
    key=ApiKey.LIST_OFFSETS,
    versions=(1, 11),
    requires=(Requires(Operation.DESCRIBE, Meaning.TOPIC),),
    split=split,
    execute=execute,
    merge=merge,
    left_out=("timeout_ms: no partition has remote segments to wait for",),
)
