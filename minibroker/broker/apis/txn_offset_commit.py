"""TxnOffsetCommit (28): commit offsets of a group in a transaction.

Versions 0-6, with topic ids since version 6. The offsets are written as a transactional batch and
are in force when the transaction commits. First the transaction's coordinator is asked whether the
transaction is ongoing; since version 5 this also adds the partition of ``__consumer_offsets`` to it
(KIP-890). A partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION; the other offsets are
committed in one batch. In Kafka: ``KafkaApis.handleTxnOffsetCommitRequest`` and
``OffsetMetadataManager.commitTransactionalOffset``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from minibroker.broker.apis.base import Api, Context, Owner, Requires, WorkerScope
from minibroker.broker.apis.offset_commit import CommitPosition
from minibroker.broker.apis.topic_names import requested_name, unknown_topic
from minibroker.broker.apis.transaction_verification import (
    ProducerSession,
    TransactionSupport,
    requested_support,
    verify_transaction,
)
from minibroker.broker.groups.events import CommitRequested
from minibroker.broker.groups.offsets import CommittedOffset
from minibroker.broker.groups.state_log import OffsetsTransaction
from minibroker.broker.metadata.placement import OFFSETS_TOPIC, offsets_partition
from minibroker.broker.security.acl import Operation
from minibroker.broker.settings.definitions import OFFSETS_TOPIC_NUM_PARTITIONS
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from minibroker_protocol.records import NO_SEQUENCE
from minibroker_protocol.registry import ApiKey

LOAD_ERROR_SINCE: Final = 2
"""First version whose clients know COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296)."""

GENERIC_ERRORS_SINCE: Final = 4
TOPIC_IDS_SINCE: Final = 6
ADDED_SINCE: Final = 5
"""First version that adds the partition to the transaction."""

ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
"""Errors of groups, logs and coordinators as the clients of this API get them."""


class TxnOffsetCommitPart(NamedTuple):
    """The offsets that a group commits in a transaction."""

    group_id: str
    event: CommitRequested
    offsets: dict[tuple[str, int], CommitPosition]
    producer: ProducerSession
    support: TransactionSupport


TxnOffsetCommitReply = dict[tuple[str, int], ErrorCode]


def split(ctx: Context, request: TxnOffsetCommitRequest) -> Mapping[Owner, TxnOffsetCommitPart]:
    """Send the offsets of existing partitions to the group's owner."""
    offsets = {
        (name, each.partition_index): CommitPosition(
            each.committed_offset, each.committed_leader_epoch, each.committed_metadata or ""
        )
        for topic in request.topics
        if (name := topic_name(ctx, topic)) is not None
        for each in topic.partitions
        if ctx.image.partition(name, each.partition_index) is not None
    }
    if not offsets or not request.group_id:
        return {}
    part = TxnOffsetCommitPart(
        request.group_id,
        CommitRequested(
            member_id=request.member_id,
            generation=request.generation_id_or_member_epoch,
            group_instance_id=request.group_instance_id,
            transactional=True,
        ),
        offsets,
        ProducerSession(request.transactional_id, request.producer_id, request.producer_epoch),
        requested_support(ctx, generic_since=GENERIC_ERRORS_SINCE, add_since=ADDED_SINCE),
    )
    return {ctx.group_owner(request.group_id): part}


def topic_name(ctx: Context, topic: TxnOffsetCommitRequestTopic) -> str | None:
    """The name of a topic of the request; None if there is no such topic."""
    return requested_name(ctx, topic.name, topic.topic_id, by_id=ctx.version >= TOPIC_IDS_SINCE)


async def execute(scope: WorkerScope, part: TxnOffsetCommitPart) -> TxnOffsetCommitReply:
    """Write the offsets if the transaction is ongoing and the group accepts the commit."""
    count = scope.settings[OFFSETS_TOPIC_NUM_PARTITIONS]
    partition = OFFSETS_TOPIC, offsets_partition(part.group_id, count)
    guards, rejected = await verify_transaction(
        scope, part.producer, {partition: NO_SEQUENCE}, part.support
    )
    for error in rejected.values():
        return dict.fromkeys(part.offsets, ERRORS.get(error, error))
    now_ms = scope.wall_ms()
    offsets = {
        key: CommittedOffset(offset, leader_epoch, metadata, now_ms)
        for key, (offset, leader_epoch, metadata) in part.offsets.items()
    }
    transaction = OffsetsTransaction(
        part.producer.producer_id, part.producer.producer_epoch, guards[partition]
    )
    errors = scope.groups.commit_pending(part.group_id, part.event, offsets, transaction)
    return {key: ERRORS.get(error, error) for key, error in errors.items()}


def merge(
    ctx: Context, request: TxnOffsetCommitRequest, replies: Mapping[Owner, TxnOffsetCommitReply]
) -> TxnOffsetCommitResponse:
    """Return one error per partition, in the order of the request."""
    errors = {key: error for reply in replies.values() for key, error in reply.items()}

    return TxnOffsetCommitResponse(
        topics=[_topic(ctx, request, each, errors) for each in request.topics]
    )


def _topic(
    ctx: Context,
    request: TxnOffsetCommitRequest,
    topic: TxnOffsetCommitRequestTopic,
    errors: TxnOffsetCommitReply,
) -> TxnOffsetCommitResponseTopic:
    name = topic_name(ctx, topic)

    def error(index: int) -> ErrorCode:
        if name is None or ctx.image.partition(name, index) is None:
            return unknown_topic(name, by_id=ctx.version >= TOPIC_IDS_SINCE)
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        code = errors[name, index]
        is_loading = code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if is_loading and ctx.version < LOAD_ERROR_SINCE:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return code

    return TxnOffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            TxnOffsetCommitResponsePartition(
                partition_index=each.partition_index, error_code=error(each.partition_index)
            )
            for each in topic.partitions
        ],
    )


API: Api[
    TxnOffsetCommitRequest, TxnOffsetCommitPart, TxnOffsetCommitReply, TxnOffsetCommitResponse
] = Api(
    key=ApiKey.TXN_OFFSET_COMMIT,
    versions=(0, 6),
    requires=(
        Requires(Operation.WRITE, Meaning.TRANSACTIONAL_ID),
        Requires(Operation.READ, Meaning.GROUP),
        Requires(Operation.READ, Meaning.TOPIC),
    ),
    split=split,
    execute=execute,
    merge=merge,
    left_out=("member epochs of KIP-848: its groups are not served yet",),
)
