"""EndTxn (26): commit or abort a transaction.

Versions 0-5. The answer is sent when the decision is stored, before the markers are written, so the
next request of the producer may get CONCURRENT_TRANSACTIONS for a while. Version 5 is sent by
clients of transaction version 2 and returns the epoch of the next transaction (KIP-890). Before
version 2, PRODUCER_FENCED is reported as INVALID_PRODUCER_EPOCH. In Kafka:
``KafkaApis.handleEndTxnRequest``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from minibroker.broker.apis.base import (
    Api,
    Context,
    Owner,
    Requires,
    SingleForm,
    SingleScope,
    WorkerScope,
)
from minibroker.broker.security.acl import Operation
from minibroker.broker.transactions.service import TransactionAnswer
from minibroker.broker.transactions.state_machine import EndTransaction, ProducerIdAndEpoch
from minibroker_protocol.compiler.single import Shape
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from minibroker_protocol.registry import ApiKey

FENCED_SINCE: Final = 2
"""First version whose clients know PRODUCER_FENCED."""

EPOCH_BUMP_SINCE: Final = 5
"""First version of clients that continue with the epoch in the response."""


class EndTxnPart(NamedTuple):
    """The transaction to end, and how."""

    transactional_id: str
    event: EndTransaction


def split(ctx: Context, request: EndTxnRequest) -> Mapping[Owner, EndTxnPart]:
    """Send the request to the coordinator of the transactional id."""
    if not request.transactional_id:
        return {}
    event = _event(
        ctx.version, request.producer_id, request.producer_epoch, committed=request.committed
    )
    owner = ctx.transaction_owner(request.transactional_id)
    return {owner: EndTxnPart(request.transactional_id, event)}


def _event(
    version: int, producer_id: int, producer_epoch: int, *, committed: bool
) -> EndTransaction:
    client_version = 2 if version >= EPOCH_BUMP_SINCE else 0
    return EndTransaction(
        ProducerIdAndEpoch(producer_id, producer_epoch), committed, client_version
    )


async def execute(scope: WorkerScope, part: EndTxnPart) -> TransactionAnswer:
    """Decide, and start to write markers."""
    return await scope.transactions.end(part.transactional_id, part.event)


def merge(
    ctx: Context, _request: EndTxnRequest, replies: Mapping[Owner, TransactionAnswer]
) -> EndTxnResponse:
    """Return the producer id and epoch to continue with, or the error."""
    for error, producer in replies.values():
        if error is ErrorCode.PRODUCER_FENCED and ctx.version < FENCED_SINCE:
            return EndTxnResponse(error_code=ErrorCode.INVALID_PRODUCER_EPOCH)
        return EndTxnResponse(
            error_code=error, producer_id=producer.producer_id, producer_epoch=producer.epoch
        )
    return EndTxnResponse(error_code=ErrorCode.INVALID_REQUEST)


def execute_single(
    scope: SingleScope, version: int, request: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """Decide at once, if this worker coordinates the transaction and nothing is wrong."""
    transactional_id, producer_id, producer_epoch, committed = request
    if not transactional_id:
        return None
    event = _event(version, producer_id, producer_epoch, committed=committed)
    answer = scope.worker.transactions.end_at_once(transactional_id, event)
    if answer is None or answer.error is not ErrorCode.NONE:
        return None
    return 0, ErrorCode.NONE, *answer.producer


API: Api[EndTxnRequest, EndTxnPart, TransactionAnswer, EndTxnResponse] = Api(
    key=ApiKey.END_TXN,
    versions=(0, 5),
    requires=(Requires(Operation.WRITE, Meaning.TRANSACTIONAL_ID),),
    split=split,
    execute=execute,
    merge=merge,
    single=SingleForm(Shape(), execute_single),
)
