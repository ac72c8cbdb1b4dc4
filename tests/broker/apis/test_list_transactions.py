"""ListTransactions: filters by state, producer and duration, over all workers."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.list_transactions import API
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.list_transactions import ListTransactionsRequest
from tests.broker.apis.transacting import begin


async def listed(apis: Any, version: int = 1, **filters: Any) -> list[tuple[str, str]]:
    response = await apis.ask(API, ListTransactionsRequest(**filters), version)
    assert response.error_code == ErrorCode.NONE
    return [(each.transactional_id, each.transaction_state) for each in response.transaction_states]


@pytest.mark.parametrize("version", [0, 1])
async def test_ids_of_all_workers_are_listed(transaction_apis: Any, version: int) -> None:
    for name in ("c", "a", "b"):
        await begin(transaction_apis, name, {"t": [0]})
    assert len(transaction_apis.asked) == 1
    assert await listed(transaction_apis, version) == [
        ("a", "Ongoing"),
        ("b", "Ongoing"),
        ("c", "Ongoing"),
    ]
    assert len(transaction_apis.asked) == 2


async def test_filters_restrict_the_list(transaction_apis: Any) -> None:
    producer_id, _ = await begin(transaction_apis, "a", {"t": [0]})
    for worker in transaction_apis.workers.values():
        worker.time_ms += 5_000
    await begin(transaction_apis, "b", {"t": [0]})
    assert await listed(transaction_apis, producer_id_filters=[producer_id]) == [("a", "Ongoing")]
    assert await listed(transaction_apis, duration_filter=4_999) == [("a", "Ongoing")]
    assert await listed(transaction_apis, duration_filter=5_000) == []
    assert await listed(transaction_apis, state_filters=["Empty"]) == []
    assert len(await listed(transaction_apis, state_filters=["Ongoing", "Empty"])) == 2


@pytest.mark.parametrize(
    ("pattern", "names"),
    [("", ["app-1", "app-2", "b"]), ("app-.", ["app-1", "app-2"]), (None, ["app-1", "app-2", "b"])],
)
async def test_pattern_selects_whole_ids(
    transaction_apis: Any, pattern: str | None, names: list[str]
) -> None:
    for name in ("app-1", "app-2", "b"):
        await begin(transaction_apis, name, {"t": [0]})
    found = await listed(transaction_apis, 2, transactional_id_pattern=pattern)
    assert [name for name, _ in found] == names


async def test_invalid_pattern_is_rejected_without_asking_workers(transaction_apis: Any) -> None:
    transaction_apis.asked = {}
    request = ListTransactionsRequest(transactional_id_pattern="a**", state_filters=["no"])
    response = await transaction_apis.ask(API, request, 2)
    assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert (response.transaction_states, transaction_apis.asked) == ([], {})


async def test_unknown_state_is_returned_and_matches_nothing(transaction_apis: Any) -> None:
    await begin(transaction_apis, "a", {"t": [0]})
    request = ListTransactionsRequest(state_filters=["ongoing", "Dead"])
    response = await transaction_apis.ask(API, request, 1)
    assert response.unknown_state_filters == ["ongoing"]
    assert response.transaction_states == []
