"""DescribeTransactions: states with their partitions, and an error for each unknown id."""

from __future__ import annotations

from typing import Any

from minibroker.broker.apis.describe_transactions import API
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.describe_transactions import DescribeTransactionsRequest
from tests.broker.apis.transacting import begin


async def test_transactions_are_described_in_request_order(transaction_apis: Any) -> None:
    producer = await begin(transaction_apis, "x", {"t": [2, 0]})
    request = DescribeTransactionsRequest(transactional_ids=["no", "x", ""])
    missing, found, empty = (await transaction_apis.ask(API, request, 0)).transaction_states
    assert missing.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert empty.error_code == ErrorCode.INVALID_REQUEST
    assert (found.error_code, found.transactional_id) == (ErrorCode.NONE, "x")
    assert (found.producer_id, found.producer_epoch) == producer
    assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 60_000)
    assert found.transaction_start_time_ms == 1_700_000_000_000
    assert [(each.topic, each.partitions) for each in found.topics] == [("t", [0, 2])]
