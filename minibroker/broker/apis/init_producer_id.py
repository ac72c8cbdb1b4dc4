"""InitProducerId (22): allocate a producer id, or a new epoch for a transactional id.

Versions 0-5. Without a transactional id a producer gets an unused id with epoch 0, whatever id it
had before. An I/O worker takes the id from a block that the controller allocated to it, so most
requests do not reach the controller. With a transactional id, its coordinator fences earlier
producers and aborts their transaction; meanwhile clients get CONCURRENT_TRANSACTIONS and retry.
Before version 4, PRODUCER_FENCED is reported as INVALID_PRODUCER_EPOCH. In Kafka:
``KafkaApis.handleInitProducerIdRequest`` and ``TransactionCoordinator.handleInitProducerId``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from zlib import crc32

from minibroker.broker.apis.base import SPECIAL, Api, Context, Owner, WorkerScope
from minibroker.broker.metadata.features import TRANSACTION_VERSION, level
from minibroker.broker.settings.definitions import TRANSACTION_MAX_TIMEOUT_MS
from minibroker.broker.transactions.state_machine import InitProducer, ProducerIdAndEpoch
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from minibroker_protocol.registry import ApiKey

NONE: Final = -1
"""No producer id, and no epoch."""

FENCED_SINCE: Final = 4
"""First version whose clients know PRODUCER_FENCED."""


class InitProducerPart(NamedTuple):
    """A transactional id, and the producer that continues if there is one."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch | None


class InitProducerReply(NamedTuple):
    """The producer id and epoch, or the error."""

    error: ErrorCode
    producer_id: int = NONE
    epoch: int = NONE


Part = InitProducerPart | None


def split(ctx: Context, request: InitProducerIdRequest) -> Mapping[Owner, Part]:
    """Choose the coordinator of the transactional id.

    Without one, choose an I/O worker by connection; any of them can allocate a producer id.
    """
    if _validate(ctx, request) is not ErrorCode.NONE:
        return {}
    transactional_id = request.transactional_id
    if transactional_id is None:
        return {crc32(ctx.caller.connection_id.encode()) % ctx.workers: None}
    expected = None
    if request.producer_id != NONE:
        expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    part = InitProducerPart(transactional_id, request.transaction_timeout_ms, expected)
    return {ctx.transaction_owner(transactional_id): part}


def _validate(ctx: Context, request: InitProducerIdRequest) -> ErrorCode:
    only_one_given = (request.producer_id == NONE) != (request.producer_epoch == NONE)
    if only_one_given or request.transactional_id == "":
        return ErrorCode.INVALID_REQUEST
    timeout_ms_max = ctx.settings[TRANSACTION_MAX_TIMEOUT_MS]
    if request.transactional_id is not None and not (
        0 < request.transaction_timeout_ms <= timeout_ms_max
    ):
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return ErrorCode.NONE


async def execute(scope: WorkerScope, part: Part) -> InitProducerReply:
    """Allocate a producer id, or the next epoch of a transactional id."""
    if part is not None:
        version = level(scope.image.features, TRANSACTION_VERSION)
        event = InitProducer(part.timeout_ms, part.expected, version)
        error, producer = await scope.transactions.init_producer(part.transactional_id, event)
        return InitProducerReply(error, *producer)
    producer_id = await scope.next_producer_id()
    if producer_id is None:  # Kafka's error for this: clients retry after a pause.
        return InitProducerReply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return InitProducerReply(ErrorCode.NONE, producer_id, 0)


def merge(
    ctx: Context, request: InitProducerIdRequest, replies: Mapping[Owner, InitProducerReply]
) -> InitProducerIdResponse:
    """Return the producer id and epoch, or the error."""
    reply = next(iter(replies.values()), None) or InitProducerReply(_validate(ctx, request))
    error = reply.error
    if error is ErrorCode.PRODUCER_FENCED and ctx.version < FENCED_SINCE:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return InitProducerIdResponse(
        error_code=error, producer_id=reply.producer_id, producer_epoch=reply.epoch
    )


API: Api[InitProducerIdRequest, Part, InitProducerReply, InitProducerIdResponse] = Api(
    key=ApiKey.INIT_PRODUCER_ID,
    versions=(0, 5),
    requires=SPECIAL,
    split=split,
    execute=execute,
    merge=merge,
)
