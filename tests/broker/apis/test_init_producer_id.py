"""InitProducerId: an unused id from one worker, or the next epoch of a transactional id."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, repeat
from typing import Any

import pytest
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.apis.init_producer_id import API
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.init_producer_id import InitProducerIdRequest
from tests.broker.apis.transacting import begin


class Worker:
    """A worker that hands out the ids of one block."""

    def __init__(self, first: int) -> None:
        self._ids: Iterator[int | None] = count(first)

    async def next_producer_id(self) -> int | None:
        return next(self._ids)


@pytest.fixture
async def staffed(apis: Any) -> Any:
    apis.workers = {0: Worker(0), 1: Worker(1000)}
    return apis


@pytest.mark.parametrize("version", range(6))
async def test_every_producer_gets_unique_id_with_epoch_0(staffed: Any, version: int) -> None:
    request = InitProducerIdRequest(transactional_id=None)
    first = await staffed.ask(API, request, version)
    second = await staffed.ask(API, request, version)
    assert len(staffed.asked) == 1
    assert (first.error_code, first.producer_epoch) == (ErrorCode.NONE, 0)
    assert first.producer_id != second.producer_id


async def test_existing_producer_id_is_replaced(staffed: Any) -> None:
    request = InitProducerIdRequest(transactional_id=None, producer_id=77, producer_epoch=3)
    response = await staffed.ask(API, request, 4)
    assert (response.error_code, response.producer_epoch) == (ErrorCode.NONE, 0)
    assert response.producer_id != 77


@pytest.mark.parametrize(
    "request_",
    [
        InitProducerIdRequest(transactional_id="", transaction_timeout_ms=1),
        InitProducerIdRequest(transactional_id=None, producer_id=5),
        InitProducerIdRequest(transactional_id=None, producer_epoch=5),
    ],
)
async def test_empty_transactional_id_or_incomplete_producer_id_is_rejected(
    staffed: Any, request_: InitProducerIdRequest
) -> None:
    response = await staffed.ask(API, request_, 4)
    assert staffed.asked == {}
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert (response.producer_id, response.producer_epoch) == (-1, -1)


async def test_init_producer_id_without_id_block_is_coordinator_load_in_progress(
    staffed: Any,
) -> None:
    for worker in staffed.workers.values():
        worker._ids = repeat(None)
    response = await staffed.ask(API, InitProducerIdRequest(transactional_id=None), 4)
    assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert (response.producer_id, response.producer_epoch) == (-1, -1)


def init(producer: tuple[int, int] = (-1, -1), timeout_ms: int = 60_000) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id="x",
        transaction_timeout_ms=timeout_ms,
        producer_id=producer[0],
        producer_epoch=producer[1],
    )


@pytest.mark.parametrize("version", range(6))
async def test_transactional_id_keeps_producer_id_and_gets_next_epoch(
    transaction_apis: Any, version: int
) -> None:
    first = await transaction_apis.ask(API, init(), version)
    second = await transaction_apis.ask(API, init(), version)
    assert (first.error_code, first.producer_epoch) == (ErrorCode.NONE, 0)
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, 1)


@pytest.mark.parametrize(
    ("version", "error"),
    [(3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED)],
)
async def test_older_producer_cannot_continue(
    transaction_apis: Any, version: int, error: int
) -> None:
    first = await transaction_apis.ask(API, init(), version)
    producer = (first.producer_id, first.producer_epoch)
    continued = await transaction_apis.ask(API, init(producer), version)
    assert (continued.error_code, continued.producer_epoch) == (ErrorCode.NONE, 1)
    await transaction_apis.ask(API, init(), version)
    rejected = await transaction_apis.ask(API, init(producer), version)
    assert (rejected.error_code, rejected.producer_id) == (error, -1)


async def test_ongoing_transaction_is_aborted_first(transaction_apis: Any) -> None:
    producer_id, _ = await begin(transaction_apis, "x", {"t": [0]})
    response = await transaction_apis.ask(API, init(), 4)
    assert response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    await wait_all_tasks_blocked()
    again = await transaction_apis.ask(API, init(), 4)
    assert (again.error_code, again.producer_id) == (ErrorCode.NONE, producer_id)
    assert again.producer_epoch == 2


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
async def test_invalid_timeout_is_rejected(transaction_apis: Any, timeout_ms: int) -> None:
    response = await transaction_apis.ask(API, init(timeout_ms=timeout_ms), 4)
    assert response.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    response = await transaction_apis.ask(API, init(timeout_ms=900_000), 4)
    assert response.error_code == ErrorCode.NONE
