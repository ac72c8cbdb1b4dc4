"""Authorization checks of the APIs that read and write records.

Defines the operation that each request requires on a topic, and the errors of denied partitions.
Invariant: if the caller may not describe a topic, the response does not reveal whether the topic
exists. Kafka has these checks in ``handleProduceRequest``, ``handleFetchRequest`` and
``handleListOffsetRequest``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minibroker.broker.apis.authorization.authorizer_check import ERRORS, Finish, allowed
from minibroker.broker.apis.base import CloseConnection, Context, Denied
from minibroker.broker.apis.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH
from minibroker.broker.apis.incremental_fetch import is_follower_fetch
from minibroker.broker.apis.write_txn_markers import refusal as markers_refusal
from minibroker.broker.security.acl import Operation, Resource
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsTopicResult,
)
from minibroker_protocol.messages.describe_producers import PartitionResponse
from minibroker_protocol.messages.describe_producers import TopicResponse as DescribedTopic
from minibroker_protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from minibroker_protocol.messages.init_producer_id import InitProducerIdResponse
from minibroker_protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsTopicResponse,
)
from minibroker_protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderTopicResult,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

TOPIC_IDS_SINCE = 13
"""First version of Produce and Fetch that gives topics by id."""

NO_ID = -1

_TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _name(ctx: Context, name: Callable[[Any], str]) -> Callable[[Any], str | None]:
    """Return a function for a topic's name; None for an unknown id, which the API rejects."""
    if ctx.version < TOPIC_IDS_SINCE:
        return name
    return lambda topic: ctx.image.topic_names.get(topic.topic_id)


def produce(ctx: Context, request: Any) -> Finish | Denied | None:
    """Require WRITE on each topic and on the transactional id."""
    if request.transactional_id is not None and not ctx.allows(
        Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id
    ):
        error = ERRORS[Resource.TRANSACTIONAL_ID]
        response = ProduceResponse(
            responses=[_not_written(topic, error) for topic in request.topic_data]
        )
        return Denied(_or_hang_up(request, response))
    permitted, rejected = allowed(
        ctx,
        Operation.WRITE,
        Resource.TOPIC,
        request.topic_data,
        _name(ctx, lambda topic: topic.name),
    )
    if not rejected:
        return None
    request.topic_data = permitted

    def finish(response: Any) -> Any:
        answers = [_not_written(topic, _TOPIC_DENIED) for topic in rejected]
        if response is None:
            return _or_hang_up(request, ProduceResponse(responses=answers))
        response.responses += answers
        return response

    return finish


def _not_written(topic: Any, error: ErrorCode) -> TopicProduceResponse:
    return TopicProduceResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_responses=[
            PartitionProduceResponse(index=data.index, error_code=error, base_offset=NO_ID)
            for data in topic.partition_data
        ],
    )


def _or_hang_up(request: Any, response: ProduceResponse) -> ProduceResponse:
    if request.acks == 0:
        raise CloseConnection("records with acks=0 were denied; the client gets no response")
    return response


def fetch(ctx: Context, request: Any) -> Finish | None:
    """Require READ on each topic, or CLUSTER_ACTION for a follower fetch.

    The partitions of a session are checked by ``incremental_fetch``.
    """
    if request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
        return None
    name = _name(ctx, lambda topic: topic.topic)
    if not is_follower_fetch(request):
        permitted, rejected = allowed(ctx, Operation.READ, Resource.TOPIC, request.topics, name)
    elif ctx.allows(Operation.CLUSTER_ACTION, Resource.CLUSTER):
        return None
    else:
        permitted, rejected = [], list(request.topics)
    if not rejected:
        return None
    request.topics, ctx.refused_topics = permitted, rejected
    request.max_wait_ms = 0  # A response with an error is sent immediately.

    def finish(response: FetchResponse) -> FetchResponse:
        if response.error_code == ErrorCode.NONE:
            response.responses += [_not_read(topic) for topic in rejected]
        return response

    return finish


def _not_read(topic: Any) -> FetchableTopicResponse:
    return FetchableTopicResponse(
        topic=topic.topic,
        topic_id=topic.topic_id,
        partitions=[
            PartitionData(
                partition_index=asked.partition,
                error_code=_TOPIC_DENIED,
                high_watermark=-1,
                records=b"",
            )
            for asked in topic.partitions
        ],
    )


def list_offsets(ctx: Context, request: Any) -> Finish | None:
    """Require DESCRIBE on each topic."""

    def refusal(topic: Any) -> ListOffsetsTopicResponse:
        return ListOffsetsTopicResponse(
            name=topic.name,
            partitions=[
                ListOffsetsPartitionResponse(
                    partition_index=asked.partition_index, error_code=_TOPIC_DENIED
                )
                for asked in topic.partitions
            ],
        )

    return _each_topic(ctx, Operation.DESCRIBE, request, refusal)


def delete_records(ctx: Context, request: Any) -> Finish | None:
    """Require DELETE on each topic."""

    def refusal(topic: Any) -> DeleteRecordsTopicResult:
        return DeleteRecordsTopicResult(
            name=topic.name,
            partitions=[
                DeleteRecordsPartitionResult(
                    partition_index=asked.partition_index,
                    low_watermark=-1,
                    error_code=_TOPIC_DENIED,
                )
                for asked in topic.partitions
            ],
        )

    return _each_topic(ctx, Operation.DELETE, request, refusal)


def offset_for_leader_epoch(ctx: Context, request: Any) -> Finish | None:
    """CLUSTER_ACTION, which followers have, or DESCRIBE of each topic."""
    if ctx.allows(Operation.CLUSTER_ACTION, Resource.CLUSTER, quietly=True):
        return None

    def refusal(topic: Any) -> OffsetForLeaderTopicResult:
        return OffsetForLeaderTopicResult(
            topic=topic.topic,
            partitions=[
                EpochEndOffset(partition=asked.partition, error_code=_TOPIC_DENIED)
                for asked in topic.partitions
            ],
        )

    return _each_topic(ctx, Operation.DESCRIBE, request, refusal, name=lambda topic: topic.topic)


def describe_producers(ctx: Context, request: Any) -> Finish | None:
    """Require READ on each topic."""

    def refusal(topic: Any) -> DescribedTopic:
        return DescribedTopic(
            name=topic.name,
            partitions=[
                PartitionResponse(
                    partition_index=index,
                    error_code=_TOPIC_DENIED,
                    error_message="Topic authorization failed.",
                )
                for index in topic.partition_indexes
            ],
        )

    return _each_topic(ctx, Operation.READ, request, refusal)


def write_txn_markers(ctx: Context, request: Any) -> Denied | None:
    """Require ALTER or CLUSTER_ACTION on the cluster."""
    if ctx.allows(Operation.ALTER, Resource.CLUSTER, quietly=True) or ctx.allows(
        Operation.CLUSTER_ACTION, Resource.CLUSTER
    ):
        return None
    return Denied(markers_refusal(request, ERRORS[Resource.CLUSTER]))


def _each_topic(
    ctx: Context,
    operation: Operation,
    request: Any,
    refusal: Callable[[Any], Any],
    name: Callable[[Any], str] = lambda topic: topic.name,
) -> Finish | None:
    """Remove denied topics from the request and add their errors to the response."""
    permitted, rejected = allowed(ctx, operation, Resource.TOPIC, request.topics, name)
    if not rejected:
        return None
    request.topics = permitted

    def finish(response: Any) -> Any:
        response.topics += map(refusal, rejected)
        return response

    return finish


def init_producer_id(ctx: Context, request: Any) -> Denied | None:
    """Require WRITE on the transactional id, else IDEMPOTENT_WRITE or WRITE on any topic."""
    if request.transactional_id is not None:
        resource = Resource.TRANSACTIONAL_ID
        permitted = ctx.allows(Operation.WRITE, resource, request.transactional_id)
    else:
        resource = Resource.CLUSTER
        permitted = ctx.allows_any(Operation.WRITE, Resource.TOPIC) or ctx.allows(
            Operation.IDEMPOTENT_WRITE, resource
        )
    if permitted:
        return None
    return Denied(
        InitProducerIdResponse(error_code=ERRORS[resource], producer_id=NO_ID, producer_epoch=NO_ID)
    )
