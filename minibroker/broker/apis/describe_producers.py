"""DescribeProducers (61): the producers whose state a partition keeps, and their transactions.

Version 0. Idempotent and transactional producers are described until they expire. With the start of
the open transaction, an admin client finds a transaction that keeps the last stable offset from
advancing. Kafka's ``KafkaApis.handleDescribeProducersRequest``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from minibroker.broker.apis.base import Api, Context, Owner, Requires, WorkerScope
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.producers import Producer
from minibroker.broker.metadata.topics import name_problem
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)
from minibroker_protocol.registry import ApiKey

UNKNOWN_TOPIC_TEXT: Final = "This server does not host this topic-partition."


class ProducersResult(NamedTuple):
    """The producers of a partition by id, or an error."""

    error: int = ErrorCode.NONE
    producers: tuple[tuple[int, Producer], ...] = ()


ProducersPart = tuple[tuple[str, int], ...]
ProducersReply = dict[tuple[str, int], ProducersResult]


def split(ctx: Context, request: DescribeProducersRequest) -> Mapping[Owner, ProducersPart]:
    """The existing partitions by owner."""
    parts: dict[Owner, list[tuple[str, int]]] = {}
    for topic in request.topics:
        for index in topic.partition_indexes:
            if ctx.image.partition(topic.name, index) is not None:
                owner = ctx.partition_owner(topic.name, index)
                parts.setdefault(owner, []).append((topic.name, index))
    return {owner: tuple(partitions) for owner, partitions in parts.items()}


def execute(scope: WorkerScope, part: ProducersPart) -> ProducersReply:
    """The producers of each partition."""
    return {(topic, index): _describe(scope, topic, index) for topic, index in part}


def _describe(scope: WorkerScope, topic: str, index: int) -> ProducersResult:
    try:
        partition = scope.partition(topic, index)
        if partition is None:
            return ProducersResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition.check_leader()
    except LogError as error:
        return ProducersResult(error.code)
    producers = partition.log.producers.producers
    return ProducersResult(
        producers=tuple(
            (producer_id, producer._replace(batches=producer.batches[-1:]))
            for producer_id, producer in producers.items()
        )
    )


def merge(
    ctx: Context, request: DescribeProducersRequest, replies: Mapping[Owner, ProducersReply]
) -> DescribeProducersResponse:
    """All partitions in the order of the request."""
    results: ProducersReply = {}
    for reply in replies.values():
        results.update(reply)
    return DescribeProducersResponse(
        topics=[_topic_response(ctx, topic, results) for topic in request.topics]
    )


def _topic_response(ctx: Context, topic: TopicRequest, results: ProducersReply) -> TopicResponse:
    missing, text = ProducersResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), None
    problem = name_problem(topic.name)
    if problem is not None:
        missing = ProducersResult(ErrorCode.INVALID_TOPIC_EXCEPTION)
        text = f"Topic name '{topic.name}' is invalid: {problem}."
    elif topic.name not in ctx.image.topics:
        text = UNKNOWN_TOPIC_TEXT
    return TopicResponse(
        name=topic.name,
        partitions=[
            _partition_response(index, results.get((topic.name, index), missing), text)
            for index in topic.partition_indexes
        ],
    )


def _partition_response(index: int, result: ProducersResult, text: str | None) -> PartitionResponse:
    return PartitionResponse(
        partition_index=index,
        error_code=result.error,
        error_message=text,
        active_producers=[
            ProducerState(
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.transaction_offset,
            )
            for producer_id, producer in result.producers
        ],
    )


API: Api[DescribeProducersRequest, ProducersPart, ProducersReply, DescribeProducersResponse] = Api(
    key=ApiKey.DESCRIBE_PRODUCERS,
    versions=(0, 0),
    requires=(Requires(Operation.READ, Meaning.TOPIC, text="Topic authorization failed."),),
    split=split,
    execute=execute,
    merge=merge,
)
