"""OffsetForLeaderEpoch (23): where the records of a leader epoch end.

Versions 2-4. A consumer asks after a change of the leader whether the records that it has read
still exist (KIP-320), and a follower where its log diverges (KIP-101). The answer is the end of the
requested epoch, or of the largest smaller one that has records; -1 if the epoch is not known.
Kafka's ``KafkaApis.handleOffsetForLeaderEpochRequest``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from minibroker.broker.apis.base import Api, Context, Owner, Requires, WorkerScope
from minibroker.broker.log.errors import LogError
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from minibroker_protocol.registry import ApiKey


class EpochQuery(NamedTuple):
    """One partition and the leader epoch whose end is requested."""

    topic: str
    partition: int
    current_leader_epoch: int
    leader_epoch: int


class EpochResult(NamedTuple):
    """The epoch that was found and its end offset, or an error; -1 where there is none."""

    error: int = ErrorCode.NONE
    leader_epoch: int = -1
    end_offset: int = -1


EpochPart = tuple[EpochQuery, ...]
EpochReply = dict[tuple[str, int], EpochResult]

_UNKNOWN = EpochResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def split(ctx: Context, request: OffsetForLeaderEpochRequest) -> Mapping[Owner, EpochPart]:
    """The partitions that exist, by owner."""
    parts: dict[Owner, list[EpochQuery]] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            if ctx.image.partition(topic.topic, partition.partition) is not None:
                owner = ctx.partition_owner(topic.topic, partition.partition)
                query = EpochQuery(
                    topic.topic,
                    partition.partition,
                    partition.current_leader_epoch,
                    partition.leader_epoch,
                )
                parts.setdefault(owner, []).append(query)
    return {owner: tuple(queries) for owner, queries in parts.items()}


def execute(scope: WorkerScope, part: EpochPart) -> EpochReply:
    """Look up each epoch in the log of its partition."""
    return {(query.topic, query.partition): _look_up(scope, query) for query in part}


def _look_up(scope: WorkerScope, query: EpochQuery) -> EpochResult:
    try:
        partition = scope.partition(query.topic, query.partition)
        if partition is None:
            return _UNKNOWN
        partition.check_leader(query.current_leader_epoch)
    except LogError as error:
        return EpochResult(error.code)
    return EpochResult(ErrorCode.NONE, *partition.end_offset_for_epoch(query.leader_epoch))


def merge(
    _ctx: Context, request: OffsetForLeaderEpochRequest, replies: Mapping[Owner, EpochReply]
) -> OffsetForLeaderEpochResponse:
    """All partitions in the order of the request."""
    results: EpochReply = {}
    for reply in replies.values():
        results.update(reply)
    topics = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            result = results.get((topic.topic, partition.partition), _UNKNOWN)
            partitions.append(
                EpochEndOffset(
                    error_code=result.error,
                    partition=partition.partition,
                    leader_epoch=result.leader_epoch,
                    end_offset=result.end_offset,
                )
            )
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions))
    return OffsetForLeaderEpochResponse(topics=topics)


API: Api[OffsetForLeaderEpochRequest, EpochPart, EpochReply, OffsetForLeaderEpochResponse] = Api(
    key=ApiKey.OFFSET_FOR_LEADER_EPOCH,
    versions=(2, 4),
    requires=(Requires(Operation.DESCRIBE, Meaning.TOPIC, or_cluster=Operation.CLUSTER_ACTION),),
    split=split,
    execute=execute,
    merge=merge,
)
