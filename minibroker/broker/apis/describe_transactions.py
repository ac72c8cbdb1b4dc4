"""DescribeTransactions (65): describe transactional ids and their transactions.

Version 0. A transaction whose markers are being written lists the partitions that have none yet. In
Kafka: ``KafkaApis.handleDescribeTransactionsRequest``.
"""

from __future__ import annotations

from collections.abc import Mapping

from minibroker.broker.apis.base import SPECIAL, Api, Context, Owner, WorkerScope
from minibroker.broker.transactions.metadata import STATE_NAMES, TransactionMetadata, by_topic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from minibroker_protocol.registry import ApiKey

DescribeTransactionsPart = tuple[str, ...]
DescribeTransactionsReply = dict[str, TransactionMetadata | ErrorCode]


def split(
    ctx: Context, request: DescribeTransactionsRequest
) -> Mapping[Owner, DescribeTransactionsPart]:
    """Send to each coordinator its transactional ids."""
    parts: dict[Owner, list[str]] = {}
    for transactional_id in filter(None, dict.fromkeys(request.transactional_ids)):
        parts.setdefault(ctx.transaction_owner(transactional_id), []).append(transactional_id)
    return {owner: tuple(ids) for owner, ids in parts.items()}


def execute(scope: WorkerScope, part: DescribeTransactionsPart) -> DescribeTransactionsReply:
    """Return the state of each transactional id, or the error."""
    return {each: scope.transactions.describe(each) for each in part}


def merge(
    _ctx: Context,
    request: DescribeTransactionsRequest,
    replies: Mapping[Owner, DescribeTransactionsReply],
) -> DescribeTransactionsResponse:
    """Return the transactional ids in the order of the request."""
    found = {key: state for reply in replies.values() for key, state in reply.items()}
    return DescribeTransactionsResponse(
        transaction_states=[
            _described(each, found.get(each, ErrorCode.INVALID_REQUEST))
            for each in request.transactional_ids
        ]
    )


def _described(
    transactional_id: str, described: TransactionMetadata | ErrorCode
) -> TransactionState:
    if isinstance(described, ErrorCode):
        return TransactionState(error_code=described, transactional_id=transactional_id)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=STATE_NAMES[described.state],
        transaction_timeout_ms=described.timeout_ms,
        transaction_start_time_ms=described.start_ms,
        producer_id=described.producer_id,
        producer_epoch=described.producer_epoch,
        topics=[
            TopicData(topic=topic, partitions=numbers)
            for topic, numbers in by_topic(described.partitions)
        ],
    )


API: Api[
    DescribeTransactionsRequest,
    DescribeTransactionsPart,
    DescribeTransactionsReply,
    DescribeTransactionsResponse,
] = Api(
    key=ApiKey.DESCRIBE_TRANSACTIONS,
    versions=(0, 0),
    requires=SPECIAL,
    split=split,
    execute=execute,
    merge=merge,
)
