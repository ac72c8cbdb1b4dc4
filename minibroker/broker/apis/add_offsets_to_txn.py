"""AddOffsetsToTxn (25): make the committed offsets of a group part of a transaction.

Versions 0-4. It adds the group's partition of ``__consumer_offsets``. Only clients of transaction
versions 0 and 1 send it. Before version 2, PRODUCER_FENCED is reported as INVALID_PRODUCER_EPOCH.
In Kafka: ``KafkaApis.handleAddOffsetsToTxnRequest``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from minibroker.broker.apis.base import Api, Context, Owner, Requires, WorkerScope
from minibroker.broker.metadata.placement import OFFSETS_TOPIC, offsets_partition
from minibroker.broker.security.acl import Operation
from minibroker.broker.settings.definitions import OFFSETS_TOPIC_NUM_PARTITIONS
from minibroker.broker.transactions.state_machine import AddPartitions, ProducerIdAndEpoch
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from minibroker_protocol.registry import ApiKey

FENCED_SINCE: Final = 2
"""First version whose clients know PRODUCER_FENCED."""


class AddOffsetsPart(NamedTuple):
    """The transaction, and the partition to add."""

    transactional_id: str
    event: AddPartitions


def split(ctx: Context, request: AddOffsetsToTxnRequest) -> Mapping[Owner, AddOffsetsPart]:
    """Send the request to the coordinator of the transactional id."""
    if not request.transactional_id:
        return {}
    index = offsets_partition(request.group_id, ctx.settings[OFFSETS_TOPIC_NUM_PARTITIONS])
    event = AddPartitions(
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        frozenset({(OFFSETS_TOPIC, index)}),
        client_version=0,
    )
    owner = ctx.transaction_owner(request.transactional_id)
    return {owner: AddOffsetsPart(request.transactional_id, event)}


def execute(scope: WorkerScope, part: AddOffsetsPart) -> ErrorCode:
    """Add the partition."""
    return scope.transactions.add_partitions(part.transactional_id, part.event)


def merge(
    ctx: Context, _request: AddOffsetsToTxnRequest, replies: Mapping[Owner, ErrorCode]
) -> AddOffsetsToTxnResponse:
    """Return the error."""
    error = next(iter(replies.values()), ErrorCode.INVALID_REQUEST)
    if error is ErrorCode.PRODUCER_FENCED and ctx.version < FENCED_SINCE:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return AddOffsetsToTxnResponse(error_code=error)


API: Api[AddOffsetsToTxnRequest, AddOffsetsPart, ErrorCode, AddOffsetsToTxnResponse] = Api(
    key=ApiKey.ADD_OFFSETS_TO_TXN,
    versions=(0, 4),
    requires=(
        Requires(Operation.WRITE, Meaning.TRANSACTIONAL_ID),
        Requires(Operation.READ, Meaning.GROUP),
    ),
    split=split,
    execute=execute,
    merge=merge,
)
