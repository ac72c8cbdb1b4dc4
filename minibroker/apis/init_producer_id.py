"""InitProducerId (22): allocate a producer id for an idempotent producer.

Versions 0-5. Without a transactional id a producer gets an unused id with epoch 0, whatever id it
had before. An I/O worker takes the id from a block that the controller allocated to it, so most
requests do not reach the controller. Transactions are not served: a transactional id is rejected
with an error that the Java client does not retry. In Kafka:
``KafkaApis.handleInitProducerIdRequest`` and ``TransactionCoordinator.handleInitProducerId``.
"""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

from minibroker.apis.base import Api, Context, Owner, WorkerScope
from minibroker.apis.unserved import TRANSACTIONS
from protocol.errors import ErrorCode
from protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from protocol.registry import ApiKey

NONE = -1
"""No producer id, and no epoch."""


def split(ctx: Context, request: InitProducerIdRequest) -> Mapping[Owner, None]:
    """Choose an I/O worker by connection; any of them can allocate an id."""
    if _is_refused(request):
        return {}
    return {crc32(ctx.caller.connection_id.encode()) % ctx.workers: None}


def _is_refused(request: InitProducerIdRequest) -> bool:
    is_inconsistent = (request.producer_id == NONE) != (request.producer_epoch == NONE)
    return request.transactional_id is not None or is_inconsistent


async def execute(scope: WorkerScope, _part: None) -> int | None:
    """Allocate a producer id; None if no block is available."""
    return await scope.next_producer_id()


def merge(
    ctx: Context, request: InitProducerIdRequest, replies: Mapping[Owner, int | None]
) -> InitProducerIdResponse:
    """Return the id with epoch 0, or the error."""
    for producer_id in replies.values():
        if producer_id is None:  # Kafka's error for this: clients retry after a pause.
            return InitProducerIdResponse(
                error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                producer_id=NONE,
                producer_epoch=NONE,
            )
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
    if request.transactional_id is not None:
        ctx.unserved = TRANSACTIONS
    return InitProducerIdResponse(
        error_code=ErrorCode.INVALID_REQUEST, producer_id=NONE, producer_epoch=NONE
    )


API: Api[InitProducerIdRequest, None, int | None, InitProducerIdResponse] = Api(
    key=ApiKey.INIT_PRODUCER_ID,
    versions=(0, 5),
    split=split,
    execute=execute,
    merge=merge,
    left_out=("transactions: a transactional id is refused with INVALID_REQUEST",),
)
