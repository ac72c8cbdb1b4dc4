"""AddOffsetsToTxn: the group's partition of ``__consumer_offsets`` joins the transaction."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.add_offsets_to_txn import API
from minibroker.broker.metadata.placement import OFFSETS_TOPIC, offsets_partition
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tests.broker.apis.transacting import begin, describe


def add(producer: tuple[int, int], transactional_id: str = "x") -> AddOffsetsToTxnRequest:
    return AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer[0],
        producer_epoch=producer[1],
        group_id="g",
    )


@pytest.mark.parametrize("version", range(5))
async def test_partition_of_group_is_added(transaction_apis: Any, version: int) -> None:
    producer = await begin(transaction_apis, "x", {"t": [0]})
    response = await transaction_apis.ask(API, add(producer), version)
    assert response.error_code == ErrorCode.NONE
    topics = (await describe(transaction_apis, "x")).topics
    assert [(each.topic, each.partitions) for each in topics] == [
        (OFFSETS_TOPIC, [offsets_partition("g", 50)]),
        ("t", [0]),
    ]


@pytest.mark.parametrize(
    ("version", "error"),
    [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)],
)
async def test_other_producer_is_rejected(transaction_apis: Any, version: int, error: int) -> None:
    producer_id, _ = await begin(transaction_apis, "x", {"t": [0]})
    for request, expected in (
        (add((producer_id, 7)), error),
        (add((1, 0)), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (add((1, 0), ""), ErrorCode.INVALID_REQUEST),
    ):
        response = await transaction_apis.ask(API, request, version)
        assert response.error_code == expected
