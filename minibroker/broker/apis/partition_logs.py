"""The requests about logs of partitions that only their owners know: offsets, epochs, producers.

Each existing partition is looked up by its owner. Invariant: every partition of a request has a
result, in the order of the request; those that do not exist get UNKNOWN_TOPIC_OR_PARTITION. In
Kafka: ``KafkaApis`` and ``ReplicaManager``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping
from typing import Final, NamedTuple

from minibroker.broker.apis.base import (
    Api,
    Context,
    Owner,
    Requires,
    WorkerScope,
    all_results,
    parts_by_owner,
)
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.log.segment import LargeBatchError, TimestampOffset
from minibroker.broker.metadata.topics import name_problem
from minibroker.broker.security.acl import Operation
from minibroker.broker.settings.topics import CLEANUP_POLICY, topic_value
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from minibroker_protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)
from minibroker_protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from minibroker_protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from minibroker_protocol.registry import ApiKey

TopicPartition = tuple[str, int]

_UNKNOWN: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _hosted(scope: WorkerScope, topic: str, index: int) -> Partition:
    """A partition of this worker. Raises ``LogError`` if it is gone or its log cannot be opened."""
    partition = scope.partition(topic, index)
    if partition is None:
        raise LogError(_UNKNOWN, f"there is no partition {topic}-{index}")
    return partition


# ListOffsets (2) ----------------------------------------------------------------------------------
#
# Find offsets by time, or the ends of a partition. Versions 1-11. A timestamp finds the first
# record at or after it, -1 the end, -2 the start, -3 (since version 7) the record with the largest
# timestamp, -4 (8) the local start. -5 (9) and -6 (11) concern tiered storage: no offset and no
# error, as from Kafka without tiered storage. With isolation level ``read_committed`` the end is
# the last stable offset. Kafka's ``KafkaApis.handleListOffsetRequest`` and
# ``UnifiedLog.fetchOffsetByTimestamp``.


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


ListOffsetsPart = tuple[OffsetQuery, ...]
ListOffsetsReply = dict[TopicPartition, ListOffsetsPartitionResponse]


def _split_list(ctx: Context, request: ListOffsetsRequest) -> Mapping[Owner, ListOffsetsPart]:
    """The existing partitions by owner, without those that the request contains twice."""
    repeated = _repeated_partitions(request)
    return parts_by_owner(
        (
            ctx.partition_owner(topic.name, each.partition_index),
            OffsetQuery(
                topic.name,
                each.partition_index,
                each.timestamp,
                each.current_leader_epoch,
                request.isolation_level == READ_COMMITTED,
            ),
        )
        for topic in request.topics
        for each in topic.partitions
        if (topic.name, each.partition_index) not in repeated
        and _is_supported(ctx, each)
        and ctx.image.partition(topic.name, each.partition_index) is not None
    )


def _repeated_partitions(request: ListOffsetsRequest) -> set[TopicPartition]:
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


def _list_offsets(
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
            found[query.topic, query.partition] = _look_up_offset(scope, query)
        except LargeBatchError as batch:
            later.append((query, batch))
    return _list_later(scope, later, found) if later else found


async def _list_later(
    scope: WorkerScope,
    later: list[tuple[OffsetQuery, LargeBatchError | None]],
    found: ListOffsetsReply,
) -> ListOffsetsReply:
    """Search one partition in a step; other requests are executed in between."""
    for query, batch in later:
        if batch is None:
            await scope.sleep_real(0)
            try:
                result = _look_up_offset(scope, query)
            except LargeBatchError as large:
                result = await _search_large(scope, query, large)
        else:
            result = await _search_large(scope, query, batch)
        found[query.topic, query.partition] = result
    return found


async def _search_large(
    scope: WorkerScope, query: OffsetQuery, batch: LargeBatchError
) -> ListOffsetsPartitionResponse:
    """Search large batches in a thread, until one has the record."""
    while True:
        at = await scope.run_in_thread(batch.search)
        try:
            partition = _hosted(scope, query.topic, query.partition)
            partition.check_leader(query.leader_epoch)
            if at is None and query.timestamp != MAX_TIMESTAMP:
                at = partition.log.offset_for_time(query.timestamp, batch.next_offset)
        except LargeBatchError as following:
            batch = following
        except LogError as error:
            return _offset_error(query.partition, error.code)
        else:
            return _found_at(query, at, _end_offset(partition, query))


def _offset_error(index: int, error: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=index, error_code=error)


def _end_offset(partition: Partition, query: OffsetQuery) -> int:
    return partition.last_stable_offset if query.committed else partition.high_watermark


def _found_at(
    query: OffsetQuery, at: TimestampOffset | None, end_offset: int
) -> ListOffsetsPartitionResponse:
    result = ListOffsetsPartitionResponse(partition_index=query.partition)
    if at is not None and at.offset < end_offset:
        result.offset, result.timestamp, result.leader_epoch = (
            at.offset,
            at.timestamp,
            at.leader_epoch,
        )
    return result


def _look_up_offset(scope: WorkerScope, query: OffsetQuery) -> ListOffsetsPartitionResponse:
    try:
        partition = _hosted(scope, query.topic, query.partition)
        partition.check_leader(query.leader_epoch)
        return _find(partition, query)
    except LogError as error:
        return _offset_error(query.partition, error.code)


def _find(partition: Partition, query: OffsetQuery) -> ListOffsetsPartitionResponse:
    log, timestamp = partition.log, query.timestamp
    end_offset = _end_offset(partition, query)
    result = ListOffsetsPartitionResponse(partition_index=query.partition)
    if timestamp == LATEST:
        result.offset, result.leader_epoch = end_offset, partition.leader_epoch
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        result.offset = log.log_start_offset
        result.leader_epoch = log.leader_epochs.epoch_for_offset(result.offset)
    elif timestamp not in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        at = log.max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_time(timestamp)
        return _found_at(query, at, end_offset)
    return result


def _merge_list(
    ctx: Context, request: ListOffsetsRequest, replies: Mapping[Owner, ListOffsetsReply]
) -> ListOffsetsResponse:
    found = all_results(replies)
    repeated = _repeated_partitions(request)
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name, partitions=list(_listed_partitions(ctx, topic, found, repeated))
            )
            for topic in request.topics
        ]
    )


def _listed_partitions(
    ctx: Context, topic: ListOffsetsTopic, found: ListOffsetsReply, repeated: set[TopicPartition]
) -> Iterator[ListOffsetsPartitionResponse]:
    for partition in topic.partitions:
        index = partition.partition_index
        if (topic.name, index) in repeated:
            yield _offset_error(index, ErrorCode.INVALID_REQUEST)
        elif not _is_supported(ctx, partition):
            yield _offset_error(index, ErrorCode.UNSUPPORTED_VERSION)
        else:
            yield found.get((topic.name, index)) or _offset_error(index, _UNKNOWN)


LIST_OFFSETS = Api(
    key=ApiKey.LIST_OFFSETS,
    versions=(1, 11),
    requires=(Requires(Operation.DESCRIBE, Meaning.TOPIC),),
    split=_split_list,
    execute=_list_offsets,
    merge=_merge_list,
    left_out=("timeout_ms: no partition has remote segments to wait for",),
)


# OffsetForLeaderEpoch (23) ------------------------------------------------------------------------
#
# Where the records of a leader epoch end. Versions 2-4. A consumer asks after a change of the
# leader whether the records that it has read still exist (KIP-320), and a follower where its log
# diverges (KIP-101). The answer is the end of the requested epoch, or of the largest smaller one
# that has records; -1 if the epoch is not known. Kafka's
# ``KafkaApis.handleOffsetForLeaderEpochRequest``.


EpochPart = tuple[tuple[str, OffsetForLeaderPartition], ...]
EpochReply = dict[TopicPartition, EpochEndOffset]


def _split_epochs(ctx: Context, request: OffsetForLeaderEpochRequest) -> Mapping[Owner, EpochPart]:
    return parts_by_owner(
        (ctx.partition_owner(topic.topic, each.partition), (topic.topic, each))
        for topic in request.topics
        for each in topic.partitions
        if ctx.image.partition(topic.topic, each.partition) is not None
    )


def _find_epochs(scope: WorkerScope, part: EpochPart) -> EpochReply:
    """Look up each epoch in the log of its partition."""
    return {(topic, each.partition): _look_up_epoch(scope, topic, each) for topic, each in part}


def _look_up_epoch(
    scope: WorkerScope, topic: str, query: OffsetForLeaderPartition
) -> EpochEndOffset:
    result = EpochEndOffset(partition=query.partition)
    try:
        partition = _hosted(scope, topic, query.partition)
        partition.check_leader(query.current_leader_epoch)
    except LogError as error:
        result.error_code = error.code
    else:
        found = partition.end_offset_for_epoch(query.leader_epoch)
        result.leader_epoch, result.end_offset = found
    return result


def _merge_epochs(
    _ctx: Context, request: OffsetForLeaderEpochRequest, replies: Mapping[Owner, EpochReply]
) -> OffsetForLeaderEpochResponse:
    results = all_results(replies)
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    results.get((topic.topic, each.partition))
                    or EpochEndOffset(partition=each.partition, error_code=_UNKNOWN)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


OFFSET_FOR_LEADER_EPOCH = Api(
    key=ApiKey.OFFSET_FOR_LEADER_EPOCH,
    versions=(2, 4),
    requires=(Requires(Operation.DESCRIBE, Meaning.TOPIC, or_cluster=Operation.CLUSTER_ACTION),),
    split=_split_epochs,
    execute=_find_epochs,
    merge=_merge_epochs,
)


# DeleteRecords (21) -------------------------------------------------------------------------------
#
# Delete the records of partitions before an offset. Versions 0-2. Offset -1 means the high
# watermark. Internal topics, and topics without ``delete`` in their cleanup policy, are rejected,
# as in Kafka. Segments that end before the new log start are removed by the next retention. Kafka's
# ``ReplicaManager.deleteRecords``.


NO_WATERMARK = -1


DeletionPart = tuple[tuple[str, DeleteRecordsPartition], ...]
DeletionReply = dict[TopicPartition, DeleteRecordsPartitionResult]


def _split_deletion(ctx: Context, request: DeleteRecordsRequest) -> Mapping[Owner, DeletionPart]:
    """The existing partitions by owner, without those whose topic is rejected."""
    return parts_by_owner(
        (ctx.partition_owner(topic.name, each.partition_index), (topic.name, each))
        for topic in request.topics
        if _deletion_problem(ctx, topic.name) == ErrorCode.NONE
        for each in topic.partitions
        if ctx.image.partition(topic.name, each.partition_index) is not None
    )


def _deletion_problem(ctx: Context, name: str) -> ErrorCode:
    topic = ctx.image.topics.get(name)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic.internal:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    settings = ctx.dynamic_settings.of(ctx.image.configs)
    policy = topic_value(settings, ctx.image.topic_overrides(name), CLEANUP_POLICY)
    return ErrorCode.NONE if "delete" in policy else ErrorCode.POLICY_VIOLATION


def _delete_records(scope: WorkerScope, part: DeletionPart) -> DeletionReply:
    return {
        (topic, each.partition_index): _delete_before(scope, topic, each) for topic, each in part
    }


def _delete_before(
    scope: WorkerScope, topic: str, requested: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    index = requested.partition_index
    try:
        low_watermark = _hosted(scope, topic, index).delete_records(requested.offset)
    except LogError as error:
        return _deletion_error(index, error.code)
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=low_watermark)


def _deletion_error(index: int, error: ErrorCode) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=index, low_watermark=NO_WATERMARK, error_code=error
    )


def _merge_deletion(
    ctx: Context, request: DeleteRecordsRequest, replies: Mapping[Owner, DeletionReply]
) -> DeleteRecordsResponse:
    done = all_results(replies)
    results = []
    for topic in request.topics:
        missing = _deletion_problem(ctx, topic.name) or _UNKNOWN
        partitions = [
            done.get((topic.name, each.partition_index))
            or _deletion_error(each.partition_index, missing)
            for each in topic.partitions
        ]
        results.append(DeleteRecordsTopicResult(name=topic.name, partitions=partitions))
    return DeleteRecordsResponse(topics=results)


DELETE_RECORDS = Api(
    key=ApiKey.DELETE_RECORDS,
    versions=(0, 2),
    requires=(Requires(Operation.DELETE, Meaning.TOPIC),),
    split=_split_deletion,
    execute=_delete_records,
    merge=_merge_deletion,
    left_out=("timeout_ms: there is no follower to wait for",),
)


# DescribeProducers (61) ---------------------------------------------------------------------------
#
# The producers whose state a partition keeps, and their transactions. Version 0. Idempotent and
# transactional producers are described until they expire. With the start of the open transaction,
# an admin client finds a transaction that keeps the last stable offset from advancing. Kafka's
# ``KafkaApis.handleDescribeProducersRequest``.


UNKNOWN_TOPIC_TEXT: Final = "This server does not host this topic-partition."


ProducersPart = tuple[TopicPartition, ...]
ProducersReply = dict[TopicPartition, PartitionResponse]


def _split_producers(
    ctx: Context, request: DescribeProducersRequest
) -> Mapping[Owner, ProducersPart]:
    return parts_by_owner(
        (ctx.partition_owner(topic.name, index), (topic.name, index))
        for topic in request.topics
        for index in topic.partition_indexes
        if ctx.image.partition(topic.name, index) is not None
    )


def _describe_producers(scope: WorkerScope, part: ProducersPart) -> ProducersReply:
    return {(topic, index): _producers_of(scope, topic, index) for topic, index in part}


def _producers_of(scope: WorkerScope, topic: str, index: int) -> PartitionResponse:
    try:
        partition = _hosted(scope, topic, index)
        partition.check_leader()
    except LogError as error:
        return PartitionResponse(partition_index=index, error_code=error.code)
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.transaction_offset,
            )
            for producer_id, producer in partition.log.producers.producers.items()
        ],
    )


def _merge_producers(
    ctx: Context, request: DescribeProducersRequest, replies: Mapping[Owner, ProducersReply]
) -> DescribeProducersResponse:
    results = all_results(replies)
    return DescribeProducersResponse(
        topics=[_producers_topic(ctx, topic, results) for topic in request.topics]
    )


def _producers_topic(ctx: Context, topic: TopicRequest, results: ProducersReply) -> TopicResponse:
    missing, text = _UNKNOWN, None
    problem = name_problem(topic.name)
    if problem is not None:
        missing = ErrorCode.INVALID_TOPIC_EXCEPTION
        text = f"Topic name '{topic.name}' is invalid: {problem}."
    elif topic.name not in ctx.image.topics:
        text = UNKNOWN_TOPIC_TEXT
    response = TopicResponse(name=topic.name)
    for index in topic.partition_indexes:
        result = results.get((topic.name, index))
        if result is None:
            result = PartitionResponse(partition_index=index, error_code=missing)
        result.error_message = text
        response.partitions.append(result)
    return response


DESCRIBE_PRODUCERS = Api(
    key=ApiKey.DESCRIBE_PRODUCERS,
    versions=(0, 0),
    requires=(Requires(Operation.READ, Meaning.TOPIC, text="Topic authorization failed."),),
    split=_split_producers,
    execute=_describe_producers,
    merge=_merge_producers,
)


APIS = (
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
    DELETE_RECORDS,
    DESCRIBE_PRODUCERS,
)
