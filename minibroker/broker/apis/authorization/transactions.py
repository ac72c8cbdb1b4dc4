"""Authorization checks of transactions.

Defines the operation that each request requires on a transactional id, and on the groups and topics
that take part. Invariant: a transaction is changed as a whole or not at all, so one topic without
authorization rejects all partitions of a request. Kafka has these checks in the transaction
handlers of ``KafkaApis``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from minibroker.broker.apis.add_partitions_to_txn import (
    SEVERAL_SINCE,
    partitions,
    rejected_partitions,
    response,
    result,
    transactions,
)
from minibroker.broker.apis.authorization.authorizer_check import ERRORS, Finish, allowed, require
from minibroker.broker.apis.base import Context, Denied
from minibroker.broker.apis.txn_offset_commit import TOPIC_IDS_SINCE
from minibroker.broker.security.acl import Operation, Resource
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from minibroker_protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from minibroker_protocol.messages.describe_transactions import TransactionState
from minibroker_protocol.messages.end_txn import EndTxnResponse
from minibroker_protocol.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_ID_DENIED: Final = ERRORS[Resource.TRANSACTIONAL_ID]
_TOPIC_DENIED: Final = ERRORS[Resource.TOPIC]


def _transactional_id(request: Any) -> str:
    transactional_id: str = request.transactional_id
    return transactional_id


end_txn: Final = require(
    Operation.WRITE,
    Resource.TRANSACTIONAL_ID,
    _transactional_id,
    lambda _, error: EndTxnResponse(error_code=error),
)


def add_offsets_to_txn(ctx: Context, request: Any) -> Denied | None:
    """Require WRITE on the transactional id and READ on the group."""
    error = _id_and_group_error(ctx, request)
    return None if error is None else Denied(AddOffsetsToTxnResponse(error_code=error))


def _id_and_group_error(ctx: Context, request: Any) -> ErrorCode | None:
    if not ctx.allows(Operation.WRITE, Resource.TRANSACTIONAL_ID, request.transactional_id):
        return _ID_DENIED
    if not ctx.allows(Operation.READ, Resource.GROUP, request.group_id):
        return ERRORS[Resource.GROUP]
    return None


def add_partitions_to_txn(ctx: Context, request: Any) -> Denied | None:
    """Require WRITE on the transactional id and each topic, or CLUSTER_ACTION for brokers."""
    if ctx.version >= SEVERAL_SINCE:
        if ctx.allows(Operation.CLUSTER_ACTION, Resource.CLUSTER):
            return None
        return Denied(AddPartitionsToTxnResponse(error_code=ERRORS[Resource.CLUSTER]))
    [transaction] = transactions(ctx, request)
    if not ctx.allows(Operation.WRITE, Resource.TRANSACTIONAL_ID, transaction.transactional_id):
        errors = dict.fromkeys(partitions(transaction.topics), _ID_DENIED)
        return Denied(response(ctx, [result(ctx, transaction, errors)]))
    _, denied = allowed(
        ctx, Operation.WRITE, Resource.TOPIC, transaction.topics, lambda topic: topic.name
    )
    if not denied:
        return None
    errors = rejected_partitions(ctx, transaction.topics, {topic.name for topic in denied})
    return Denied(response(ctx, [result(ctx, transaction, errors)]))


def txn_offset_commit(ctx: Context, request: Any) -> Finish | Denied | None:
    """Require WRITE on the transactional id, READ on the group and on each topic."""
    error = _id_and_group_error(ctx, request)
    if error is not None:
        topics = [_not_committed(topic, error) for topic in request.topics]
        return Denied(TxnOffsetCommitResponse(topics=topics))
    request.topics, denied = allowed(
        ctx,
        Operation.READ,
        Resource.TOPIC,
        request.topics,
        lambda topic: (
            ctx.image.topic_names.get(topic.topic_id)
            if ctx.version >= TOPIC_IDS_SINCE
            else topic.name
        ),
    )
    if not denied:
        return None

    def finish(answer: TxnOffsetCommitResponse) -> TxnOffsetCommitResponse:
        answer.topics += [_not_committed(topic, _TOPIC_DENIED) for topic in denied]
        return answer

    return finish


def _not_committed(topic: Any, error: ErrorCode) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
            for each in topic.partitions
        ],
    )


def describe_transactions(ctx: Context, request: Any) -> Finish:
    """Require DESCRIBE on each transactional id; omit topics without DESCRIBE."""
    resource = Resource.TRANSACTIONAL_ID
    request.transactional_ids, denied = allowed(
        ctx, Operation.DESCRIBE, resource, request.transactional_ids, str
    )

    def finish(answer: Any) -> Any:
        for state in answer.transaction_states:
            state.topics, _ = allowed(
                ctx,
                Operation.DESCRIBE,
                Resource.TOPIC,
                state.topics,
                lambda topic: topic.topic,
                quietly=True,
            )
        answer.transaction_states += [
            TransactionState(error_code=_ID_DENIED, transactional_id=each) for each in denied
        ]
        return answer

    return finish


def list_transactions(ctx: Context, _request: Any) -> Callable[[Any], Any]:
    """Omit transactional ids without DESCRIBE."""

    def finish(answer: Any) -> Any:
        answer.transaction_states, _ = allowed(
            ctx,
            Operation.DESCRIBE,
            Resource.TRANSACTIONAL_ID,
            answer.transaction_states,
            lambda listed: listed.transactional_id,
            quietly=True,
        )
        return answer

    return finish
