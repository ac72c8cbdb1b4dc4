"""ListOffsets (2): find offsets by time, or the ends of a partition.

Versions 1-11. A timestamp gets the first record at or after it; -1 the end, -2 the start, -3
(from 7 on) the record with the largest timestamp, -4 (8) the local start. -5 (9) and -6 (11) ask
about tiered storage, which there is none of: no offset, no error, as Kafka without it answers.
Echoes ``KafkaApis.handleListOffsetRequest`` and ``UnifiedLog.fetchOffsetByTimestamp``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping
from typing import NamedTuple

from minibroker.apis.base import Api, Context, Owner, WorkerScope
from minibroker.storage.batch_search import LargeBatchError, TimestampOffset
from minibroker.storage.errors import LogError
from minibroker.storage.partition import Partition
from protocol.errors import ErrorCode
from protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from protocol.registry import ApiKey

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
"""The first version in which a special timestamp may be asked for."""


class Wanted(NamedTuple):
    """One partition and what is sought in it."""

    topic: str
    partition: int
    timestamp: int
    leader_epoch: int


class Found(NamedTuple):
    """An offset, or the error instead; -1 where there is none."""

    error: int = ErrorCode.NONE
    offset: int = -1
    timestamp: int = -1
    leader_epoch: int = -1


Part = tuple[Wanted, ...]
Reply = dict[tuple[str, int], Found]


def split(ctx: Context, request: ListOffsetsRequest) -> Mapping[Owner, Part]:
    """By owner, the partitions that exist and are asked for once."""
    parts: dict[Owner, list[Wanted]] = {}
    twice = _asked_twice(request)
    for topic in request.topics:
        for asked in topic.partitions:
            if (
                (topic.name, asked.partition_index) in twice
                or not _may_ask(ctx, asked)
                or ctx.image.partition(topic.name, asked.partition_index) is None
            ):
                continue
            owner = ctx.partition_owner(topic.name, asked.partition_index)
            wanted = Wanted(
                topic.name, asked.partition_index, asked.timestamp, asked.current_leader_epoch
            )
            parts.setdefault(owner, []).append(wanted)
    return {owner: tuple(entries) for owner, entries in parts.items()}


def _asked_twice(request: ListOffsetsRequest) -> set[tuple[str, int]]:
    counts = Counter(
        (topic.name, asked.partition_index)
        for topic in request.topics
        for asked in topic.partitions
    )
    return {partition for partition, count in counts.items() if count > 1}


def _may_ask(ctx: Context, asked: ListOffsetsPartition) -> bool:
    if asked.timestamp >= EARLIEST:
        return True
    since = SINCE_VERSION.get(asked.timestamp)
    return since is not None and ctx.version >= since


def execute(scope: WorkerScope, part: Part) -> Reply | Awaitable[Reply]:
    """Look each up in its log."""
    found: Reply = {}
    large: list[tuple[Wanted, LargeBatchError]] = []
    for wanted in part:
        try:
            found[wanted.topic, wanted.partition] = _look_up(scope, wanted)
        except LargeBatchError as batch:
            large.append((wanted, batch))
    return _search(scope, large, found) if large else found


async def _search(
    scope: WorkerScope, large: list[tuple[Wanted, LargeBatchError]], found: Reply
) -> Reply:
    """Search large batches in a thread, and go on behind those that do not have the record."""
    for wanted, batch in large:
        found[wanted.topic, wanted.partition] = await _search_one(scope, wanted, batch)
    return found


async def _search_one(scope: WorkerScope, wanted: Wanted, batch: LargeBatchError) -> Found:
    while True:
        at = await scope.off_loop(batch.search)
        try:
            partition = scope.partition(wanted.topic, wanted.partition)
            if partition is None:
                return Found(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            partition.check_leader(wanted.leader_epoch)
            if at is None and wanted.timestamp != MAX_TIMESTAMP:
                at = partition.log.offset_for_time(wanted.timestamp, batch.next_offset)
        except LargeBatchError as following:
            batch = following
        except LogError as error:
            return Found(error.code)
        else:
            return _found_at(partition, at)


def _found_at(partition: Partition, at: TimestampOffset | None) -> Found:
    if at is None or at.offset >= partition.high_watermark:
        return Found()
    return Found(offset=at.offset, timestamp=at.timestamp, leader_epoch=at.leader_epoch)


def _look_up(scope: WorkerScope, wanted: Wanted) -> Found:
    try:
        partition = scope.partition(wanted.topic, wanted.partition)
        if partition is None:
            return Found(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition.check_leader(wanted.leader_epoch)
        return _find(partition, wanted.timestamp)
    except LogError as error:
        return Found(error.code)


def _find(partition: Partition, timestamp: int) -> Found:
    log = partition.log
    if timestamp == LATEST:
        return Found(offset=partition.high_watermark, leader_epoch=partition.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        return Found(offset=start, leader_epoch=log.leader_epochs.epoch_for_offset(start))
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return Found()
    at = log.max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_time(timestamp)
    return _found_at(partition, at)


def merge(
    ctx: Context, request: ListOffsetsRequest, replies: Mapping[Owner, Reply]
) -> ListOffsetsResponse:
    """Every partition in the order of the request."""
    found: Reply = {}
    for reply in replies.values():
        found.update(reply)
    twice = _asked_twice(request)
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name, partitions=list(_partitions(ctx, topic, found, twice))
            )
            for topic in request.topics
        ]
    )


def _partitions(
    ctx: Context, topic: ListOffsetsTopic, found: Reply, twice: set[tuple[str, int]]
) -> Iterator[ListOffsetsPartitionResponse]:
    for asked in topic.partitions:
        key = (topic.name, asked.partition_index)
        if key in twice:
            result = Found(ErrorCode.INVALID_REQUEST)
        elif not _may_ask(ctx, asked):
            result = Found(ErrorCode.UNSUPPORTED_VERSION)
        else:
            result = found.get(key, Found(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        yield ListOffsetsPartitionResponse(
            partition_index=asked.partition_index,
            error_code=result.error,
            timestamp=result.timestamp,
            offset=result.offset,
            leader_epoch=result.leader_epoch,
        )


API: Api[ListOffsetsRequest, Part, Reply, ListOffsetsResponse] = Api(
    key=ApiKey.LIST_OFFSETS,
    versions=(1, 11),
    split=split,
    execute=execute,
    merge=merge,
    left_out=(
        "isolation_level: without transactions the last stable offset is the high watermark",
        "timeout_ms: no partition has remote segments to wait for",
    ),
)
