"""EndTxn: the decision is answered before the markers, in both transaction versions."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.apis.end_txn import API
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.end_txn import EndTxnRequest
from tests.broker.apis.transacting import begin, describe

OK = ErrorCode.NONE


def end(producer: tuple[int, int], transactional_id: str = "x", *, committed: bool = True) -> Any:
    return EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer[0],
        producer_epoch=producer[1],
        committed=committed,
    )


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("committed", [True, False])
async def test_transaction_ends_before_its_markers_are_written(
    transaction_apis: Any, version: int, committed: bool
) -> None:
    for worker in transaction_apis.workers.values():
        worker.markers_held = trio.Event()
    producer = await begin(transaction_apis, "x", {"t": [0, 1], "u": [0]})
    request = end(producer, committed=committed)
    response = await transaction_apis.ask(API, request, version)
    assert response.error_code == OK
    if version >= 5:
        assert (response.producer_id, response.producer_epoch) == (producer[0], 1)
    prepared = "PrepareCommit" if committed else "PrepareAbort"
    assert (await describe(transaction_apis, "x")).transaction_state == prepared
    again = await transaction_apis.ask(API, request, version)
    assert again.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    markers = []
    for worker in transaction_apis.workers.values():
        worker.markers_held.set()
        await wait_all_tasks_blocked()
        markers += worker.markers
    assert {marker.committed for marker in markers} == {committed}
    assert {each for marker in markers for each in marker.partitions} == {
        ("t", 0),
        ("t", 1),
        ("u", 0),
    }
    assert {marker.coordinator_epoch for marker in markers} == {4}
    assert {marker.producer_epoch for marker in markers} == {1 if version >= 5 else 0}
    complete = "CompleteCommit" if committed else "CompleteAbort"
    assert (await describe(transaction_apis, "x")).transaction_state == complete
    again = await transaction_apis.ask(API, request, version)
    assert (again.error_code, again.producer_epoch) == (OK, response.producer_epoch)


@pytest.mark.parametrize(
    ("version", "error"),
    [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)],
)
async def test_other_epoch_is_fenced(transaction_apis: Any, version: int, error: int) -> None:
    producer_id, _ = await begin(transaction_apis, "x", {"t": [0]})
    response = await transaction_apis.ask(API, end((producer_id, 9)), version)
    assert response.error_code == error


async def test_unknown_or_empty_id_is_rejected(transaction_apis: Any) -> None:
    response = await transaction_apis.ask(API, end((1, 0), "unknown"), 5)
    assert response.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    response = await transaction_apis.ask(API, end((1, 0), ""), 5)
    assert response.error_code == ErrorCode.INVALID_REQUEST
