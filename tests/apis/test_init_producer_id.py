"""InitProducerId: a fresh id from one worker, and an honest no to transactions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, repeat
from typing import Any

import pytest

from minibroker.apis.init_producer_id import API
from protocol.errors import ErrorCode
from protocol.messages.init_producer_id import InitProducerIdRequest


class Worker:
    """A worker that hands out the ids of one block."""

    def __init__(self, first: int) -> None:
        self._ids: Iterator[int | None] = count(first)

    async def next_producer_id(self) -> int | None:
        return next(self._ids)


@pytest.fixture
async def staffed(desk: Any) -> Any:
    desk.workers = {0: Worker(0), 1: Worker(1000)}
    return desk


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
        InitProducerIdRequest(transactional_id="t"),
        InitProducerIdRequest(transactional_id=""),
        InitProducerIdRequest(transactional_id=None, producer_id=5),
        InitProducerIdRequest(transactional_id=None, producer_epoch=5),
    ],
)
async def test_transactional_id_or_incomplete_producer_id_is_rejected(
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
