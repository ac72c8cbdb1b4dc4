"""AddPartitionsToTxn (24): make partitions part of a transaction.

Versions 0-5. Clients send one transaction in versions 0-3. If one of its partitions cannot be
added, none is, and the others get OPERATION_NOT_ATTEMPTED. Partition leaders send several in
version 4 and 5; they add partitions, or with verify_only ask whether they were added (KIP-890).
Before version 2, PRODUCER_FENCED is reported as INVALID_PRODUCER_EPOCH. In Kafka:
``KafkaApis.handleAddPartitionsToTxnRequest``.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any, Final

from minibroker.broker.apis.base import (
    SPECIAL,
    Api,
    Context,
    Owner,
    SingleForm,
    SingleScope,
    WorkerScope,
)
from minibroker.broker.apis.transaction_parts import (
    AddPartitionsPart,
    AddPartitionsReply,
    PartitionsToAdd,
)
from minibroker.broker.metadata.topics import INTERNAL_TO_CLIENTS
from minibroker.broker.transactions.state_machine import (
    AddPartitions,
    ProducerIdAndEpoch,
    VerifyPartitions,
)
from minibroker_protocol.compiler.single import Shape
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from minibroker_protocol.registry import ApiKey

FENCED_SINCE: Final = 2
"""First version whose clients know PRODUCER_FENCED."""

SEVERAL_SINCE: Final = 4
"""First version with several transactions; only brokers send it."""

Errors = dict[tuple[str, int], ErrorCode]


def transactions(
    ctx: Context, request: AddPartitionsToTxnRequest
) -> list[AddPartitionsToTxnTransaction]:
    """The transactions of a request, in the format of the newer versions."""
    if ctx.version >= SEVERAL_SINCE:
        return request.transactions
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        verify_only=False,
        topics=request.v3_and_below_topics,
    )
    return [transaction]


def split(ctx: Context, request: AddPartitionsToTxnRequest) -> Mapping[Owner, AddPartitionsPart]:
    """Send each transaction to its coordinator, unless one of its partitions is rejected."""
    parts: dict[Owner, list[PartitionsToAdd]] = {}
    for each in transactions(ctx, request):
        if each.transactional_id and not rejected_partitions(ctx, each.topics):
            part = PartitionsToAdd(
                each.transactional_id,
                each.producer_id,
                each.producer_epoch,
                each.verify_only,
                tuple(partitions(each.topics)),
                client_version=2 if ctx.version >= SEVERAL_SINCE else 0,
            )
            parts.setdefault(ctx.transaction_owner(each.transactional_id), []).append(part)
    return {owner: tuple(added) for owner, added in parts.items()}


def partitions(topics: list[AddPartitionsToTxnTopic]) -> Iterator[tuple[str, int]]:
    """The partitions of a transaction, in the order of the request."""
    return ((topic.name, index) for topic in topics for index in topic.partitions)


def rejected_partitions(
    ctx: Context, topics: list[AddPartitionsToTxnTopic], denied: Container[str] = ()
) -> Errors:
    """An error for each partition if one of them does not exist or is ``denied``."""
    internal = INTERNAL_TO_CLIENTS if ctx.version < SEVERAL_SINCE else frozenset()
    errors: Errors = {}
    for name, index in partitions(topics):
        error = ErrorCode.OPERATION_NOT_ATTEMPTED
        if name in denied or name in internal:
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif ctx.image.partition(name, index) is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        errors[name, index] = error
    attempted = all(error is ErrorCode.OPERATION_NOT_ATTEMPTED for error in errors.values())
    return {} if attempted else errors


def execute(scope: WorkerScope, part: AddPartitionsPart) -> AddPartitionsReply:
    """Add the partitions of each transaction, or verify them."""
    errors: dict[str, Errors] = {}
    for each in part:  # A request may name a transaction twice.
        errors.setdefault(each.transactional_id, {}).update(_execute_one(scope, each))
    return errors


def _execute_one(scope: WorkerScope, part: PartitionsToAdd) -> Errors:
    producer = ProducerIdAndEpoch(part.producer_id, part.producer_epoch)
    added = frozenset(part.partitions)
    if part.verify_only:
        return scope.transactions.verify(part.transactional_id, VerifyPartitions(producer, added))
    event = AddPartitions(producer, added, part.client_version)
    error = scope.transactions.add_partitions(part.transactional_id, event)
    return dict.fromkeys(part.partitions, error)


def merge(
    ctx: Context, request: AddPartitionsToTxnRequest, replies: Mapping[Owner, AddPartitionsReply]
) -> AddPartitionsToTxnResponse:
    """Return an error for each partition, in the order of the request."""
    found = {key: errors for reply in replies.values() for key, errors in reply.items()}
    results = []
    for each in transactions(ctx, request):
        errors = dict.fromkeys(partitions(each.topics), INVALID)
        errors |= rejected_partitions(ctx, each.topics)
        errors |= found.get(each.transactional_id, {})
        results.append(result(ctx, each, errors))
    return response(ctx, results)


INVALID: Final = ErrorCode.INVALID_REQUEST
"""Error of a transaction without a transactional id."""


def result(
    ctx: Context, transaction: AddPartitionsToTxnTransaction, errors: Errors
) -> AddPartitionsToTxnResult:
    """The result of one transaction."""

    def error(name: str, index: int) -> ErrorCode:
        code = errors[name, index]
        fenced = code is ErrorCode.PRODUCER_FENCED and ctx.version < FENCED_SINCE
        return ErrorCode.INVALID_PRODUCER_EPOCH if fenced else code

    return AddPartitionsToTxnResult(
        transactional_id=transaction.transactional_id,
        topic_results=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=error(topic.name, index)
                    )
                    for index in topic.partitions
                ],
            )
            for topic in transaction.topics
        ],
    )


def response(ctx: Context, results: list[AddPartitionsToTxnResult]) -> AddPartitionsToTxnResponse:
    """The response in the format of the request's version."""
    if ctx.version >= SEVERAL_SINCE:
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results[0].topic_results)


def execute_single(
    scope: SingleScope, version: int, request: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """Add partitions of one topic if they exist and this worker coordinates the transaction."""
    transactional_id, producer_id, producer_epoch, name, indexes = request
    topic = scope.image.topics.get(name)
    if version >= SEVERAL_SINCE or not transactional_id or not indexes:
        return None
    if topic is None or name in INTERNAL_TO_CLIENTS:
        return None
    if not all(0 <= index < len(topic.partitions) for index in indexes):
        return None
    added = tuple((name, index) for index in indexes)
    part = PartitionsToAdd(
        transactional_id, producer_id, producer_epoch, False, added, client_version=0
    )
    if any(_execute_one(scope.worker, part).values()):
        return None  # None was added: the three steps find the error again.
    return 0, ErrorCode.NONE, name, [(index, ErrorCode.NONE) for index in indexes]


SINGLE: Final = SingleForm(
    Shape(
        frozenset({"v3_and_below_topics", "results_by_topic_v3_and_below"}),
        frozenset({"partitions", "results_by_partition"}),
    ),
    execute_single,
)

API: Api[
    AddPartitionsToTxnRequest, AddPartitionsPart, AddPartitionsReply, AddPartitionsToTxnResponse
] = Api(
    key=ApiKey.ADD_PARTITIONS_TO_TXN,
    versions=(0, 5),
    requires=SPECIAL,
    split=split,
    execute=execute,
    merge=merge,
    single=SINGLE,
)
