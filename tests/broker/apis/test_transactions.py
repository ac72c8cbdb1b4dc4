"""Transactions begin, get partitions and offsets, end, and are described and listed."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import count, repeat
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.apis.transactions import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    PartitionsToAdd,
)
from minibroker.broker.metadata.image import OFFSETS_TOPIC, offsets_partition
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from minibroker_protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from minibroker_protocol.messages.describe_transactions import DescribeTransactionsRequest
from minibroker_protocol.messages.end_txn import EndTxnRequest
from minibroker_protocol.messages.init_producer_id import InitProducerIdRequest
from minibroker_protocol.messages.list_transactions import ListTransactionsRequest
from tests.broker.apis.transacting import begin, describe


def test_part_is_plain_data_of_transaction_version_2() -> None:
    part = PartitionsToAdd("x", 1, 0, True, (("t", 0),))
    assert pickle.loads(pickle.dumps(part)) == part
    assert part.client_version == 2


# Init producer id ---------------------------------------------------------------------------------


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
    first = await staffed.ask(INIT_PRODUCER_ID, request, version)
    second = await staffed.ask(INIT_PRODUCER_ID, request, version)
    assert len(staffed.asked) == 1
    assert (first.error_code, first.producer_epoch) == (ErrorCode.NONE, 0)
    assert first.producer_id != second.producer_id


async def test_existing_producer_id_is_replaced(staffed: Any) -> None:
    request = InitProducerIdRequest(transactional_id=None, producer_id=77, producer_epoch=3)
    response = await staffed.ask(INIT_PRODUCER_ID, request, 4)
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
    response = await staffed.ask(INIT_PRODUCER_ID, request_, 4)
    assert staffed.asked == {}
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert (response.producer_id, response.producer_epoch) == (-1, -1)


async def test_init_producer_id_without_id_block_is_coordinator_load_in_progress(
    staffed: Any,
) -> None:
    for worker in staffed.workers.values():
        worker._ids = repeat(None)
    response = await staffed.ask(INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None), 4)
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
    first = await transaction_apis.ask(INIT_PRODUCER_ID, init(), version)
    second = await transaction_apis.ask(INIT_PRODUCER_ID, init(), version)
    assert (first.error_code, first.producer_epoch) == (ErrorCode.NONE, 0)
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, 1)


@pytest.mark.parametrize(
    ("version", "error"),
    [(3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED)],
)
async def test_older_producer_cannot_continue(
    transaction_apis: Any, version: int, error: int
) -> None:
    first = await transaction_apis.ask(INIT_PRODUCER_ID, init(), version)
    producer = (first.producer_id, first.producer_epoch)
    continued = await transaction_apis.ask(INIT_PRODUCER_ID, init(producer), version)
    assert (continued.error_code, continued.producer_epoch) == (ErrorCode.NONE, 1)
    await transaction_apis.ask(INIT_PRODUCER_ID, init(), version)
    rejected = await transaction_apis.ask(INIT_PRODUCER_ID, init(producer), version)
    assert (rejected.error_code, rejected.producer_id) == (error, -1)


async def test_ongoing_transaction_is_aborted_first(transaction_apis: Any) -> None:
    producer_id, _ = await begin(transaction_apis, "x", {"t": [0]})
    response = await transaction_apis.ask(INIT_PRODUCER_ID, init(), 4)
    assert response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    await wait_all_tasks_blocked()
    again = await transaction_apis.ask(INIT_PRODUCER_ID, init(), 4)
    assert (again.error_code, again.producer_id) == (ErrorCode.NONE, producer_id)
    assert again.producer_epoch == 2


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
async def test_invalid_timeout_is_rejected(transaction_apis: Any, timeout_ms: int) -> None:
    response = await transaction_apis.ask(INIT_PRODUCER_ID, init(timeout_ms=timeout_ms), 4)
    assert response.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    response = await transaction_apis.ask(INIT_PRODUCER_ID, init(timeout_ms=900_000), 4)
    assert response.error_code == ErrorCode.NONE


# Add partitions to txn ----------------------------------------------------------------------------


OK = ErrorCode.NONE
Topics = dict[str, list[int]]


def add(producer: tuple[int, int], topics: Topics, transactional_id: str = "x") -> Any:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=named(topics),
    )


def named(topics: Topics) -> list[AddPartitionsToTxnTopic]:
    return [AddPartitionsToTxnTopic(name=name, partitions=each) for name, each in topics.items()]


def batch(
    producer: tuple[int, int], topics: Topics, transactional_id: str = "x", *, verify: bool = False
) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=producer[0],
        producer_epoch=producer[1],
        verify_only=verify,
        topics=named(topics),
    )


def errors(topics: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, each.partition_index): each.partition_error_code
        for topic in topics
        for each in topic.results_by_partition
    }


async def ask(apis: Any, request: Any, version: int) -> dict[tuple[str, int], int]:
    return errors(
        (await apis.ask(ADD_PARTITIONS_TO_TXN, request, version)).results_by_topic_v3_and_below
    )


@pytest.mark.parametrize("version", range(4))
async def test_partitions_are_part_of_transaction(transaction_apis: Any, version: int) -> None:
    producer = await begin(transaction_apis, "x", {"t": [1, 0], "u": [0]}, version)
    state = await describe(transaction_apis, "x")
    assert state.transaction_state == "Ongoing"
    assert (state.producer_id, state.producer_epoch) == producer
    assert [(topic.topic, topic.partitions) for topic in state.topics] == [
        ("t", [0, 1]),
        ("u", [0]),
    ]


@pytest.mark.parametrize("version", [0, 3])
async def test_missing_partition_rejects_all(transaction_apis: Any, version: int) -> None:
    producer = await begin(transaction_apis, "x", {"u": [0]}, version)
    request = add(producer, {"t": [0, 9], "no": [0], OFFSETS_TOPIC: [0]})
    assert await ask(transaction_apis, request, version) == {
        ("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        ("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("no", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (OFFSETS_TOPIC, 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
    [topic] = (await describe(transaction_apis, "x")).topics
    assert topic.topic == "u"


@pytest.mark.parametrize(
    ("version", "error"),
    [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)],
)
async def test_other_producer_is_rejected(transaction_apis: Any, version: int, error: int) -> None:
    producer_id, _ = await begin(transaction_apis, "x", {"t": [0]}, version)
    fenced = await ask(transaction_apis, add((producer_id, 5), {"t": [0]}), version)
    assert fenced == {("t", 0): error}
    for request in (add((1, 0), {"t": [0]}), add((1, 0), {"t": [0]}, "unknown")):
        unknown = await ask(transaction_apis, request, version)
        assert unknown == {("t", 0): ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    empty = await ask(transaction_apis, add((1, 0), {"t": [0]}, ""), version)
    assert empty == {("t", 0): ErrorCode.INVALID_REQUEST}


@pytest.mark.parametrize("version", [4, 5])
async def test_leaders_add_and_verify_several_transactions(
    transaction_apis: Any, version: int
) -> None:
    x = await begin(transaction_apis, "x", {"t": [0]})
    y = await begin(transaction_apis, "y", {"t": [0]})
    request = AddPartitionsToTxnRequest(
        transactions=[
            batch(x, {"t": [1], OFFSETS_TOPIC: [3]}),
            batch(y, {"t": [0, 1]}, "y", verify=True),
            batch((5, 5), {"t": [0]}, "z", verify=True),
            batch(x, {"no": [0], "t": [0]}, "w"),
        ]
    )
    response = await transaction_apis.ask(ADD_PARTITIONS_TO_TXN, request, version)
    assert response.error_code == OK
    found = {
        each.transactional_id: errors(each.topic_results)
        for each in response.results_by_transaction
    }
    assert found == {
        "x": {("t", 1): OK, (OFFSETS_TOPIC, 3): OK},
        "y": {("t", 0): OK, ("t", 1): ErrorCode.TRANSACTION_ABORTABLE},
        "z": {("t", 0): ErrorCode.INVALID_PRODUCER_ID_MAPPING},
        "w": {
            ("no", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        },
    }


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (
            {"t": [0]},
            {"t": [1]},
            [{("t", 0): OK}, {("t", 1): OK}],
        ),
        (
            {"no": [0]},
            {"t": [1]},
            [{("no", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}, {("t", 1): OK}],
        ),
    ],
    ids=["different partitions", "one is rejected"],
)
async def test_transaction_named_twice_has_two_results(
    transaction_apis: Any, first: Topics, second: Topics, expected: list[Any]
) -> None:
    producer = await begin(transaction_apis, "x", {"u": [0]}, 3)
    request = AddPartitionsToTxnRequest(
        transactions=[batch(producer, first), batch(producer, second)]
    )
    response = await transaction_apis.ask(ADD_PARTITIONS_TO_TXN, request, 4)
    assert [errors(each.topic_results) for each in response.results_by_transaction] == expected


# Add offsets to txn -------------------------------------------------------------------------------


def add_offsets(producer: tuple[int, int], transactional_id: str = "x") -> AddOffsetsToTxnRequest:
    return AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer[0],
        producer_epoch=producer[1],
        group_id="g",
    )


@pytest.mark.parametrize("version", range(5))
async def test_partition_of_group_is_added(transaction_apis: Any, version: int) -> None:
    producer = await begin(transaction_apis, "x", {"t": [0]})
    response = await transaction_apis.ask(ADD_OFFSETS_TO_TXN, add_offsets(producer), version)
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
async def test_offsets_of_other_producer_are_rejected(
    transaction_apis: Any, version: int, error: int
) -> None:
    producer_id, _ = await begin(transaction_apis, "x", {"t": [0]})
    for request, expected in (
        (add_offsets((producer_id, 7)), error),
        (add_offsets((1, 0)), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (add_offsets((1, 0), ""), ErrorCode.INVALID_REQUEST),
    ):
        response = await transaction_apis.ask(ADD_OFFSETS_TO_TXN, request, version)
        assert response.error_code == expected


# End txn ------------------------------------------------------------------------------------------


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
    response = await transaction_apis.ask(END_TXN, request, version)
    assert response.error_code == OK
    if version >= 5:
        assert (response.producer_id, response.producer_epoch) == (producer[0], 1)
    prepared = "PrepareCommit" if committed else "PrepareAbort"
    assert (await describe(transaction_apis, "x")).transaction_state == prepared
    again = await transaction_apis.ask(END_TXN, request, version)
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
    again = await transaction_apis.ask(END_TXN, request, version)
    assert (again.error_code, again.producer_epoch) == (OK, response.producer_epoch)


@pytest.mark.parametrize(
    ("version", "error"),
    [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)],
)
async def test_other_epoch_is_fenced(transaction_apis: Any, version: int, error: int) -> None:
    producer_id, _ = await begin(transaction_apis, "x", {"t": [0]})
    response = await transaction_apis.ask(END_TXN, end((producer_id, 9)), version)
    assert response.error_code == error


async def test_unknown_or_empty_id_is_rejected(transaction_apis: Any) -> None:
    response = await transaction_apis.ask(END_TXN, end((1, 0), "unknown"), 5)
    assert response.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    response = await transaction_apis.ask(END_TXN, end((1, 0), ""), 5)
    assert response.error_code == ErrorCode.INVALID_REQUEST


# Describe transactions ----------------------------------------------------------------------------


async def test_transactions_are_described_in_request_order(transaction_apis: Any) -> None:
    producer = await begin(transaction_apis, "x", {"t": [2, 0]})
    request = DescribeTransactionsRequest(transactional_ids=["no", "x", ""])
    missing, found, empty = (
        await transaction_apis.ask(DESCRIBE_TRANSACTIONS, request, 0)
    ).transaction_states
    assert missing.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert empty.error_code == ErrorCode.INVALID_REQUEST
    assert (found.error_code, found.transactional_id) == (ErrorCode.NONE, "x")
    assert (found.producer_id, found.producer_epoch) == producer
    assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 60_000)
    assert found.transaction_start_time_ms == 1_700_000_000_000
    assert [(each.topic, each.partitions) for each in found.topics] == [("t", [0, 2])]


# List transactions --------------------------------------------------------------------------------


async def listed(apis: Any, version: int = 1, **filters: Any) -> list[tuple[str, str]]:
    response = await apis.ask(LIST_TRANSACTIONS, ListTransactionsRequest(**filters), version)
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
    response = await transaction_apis.ask(LIST_TRANSACTIONS, request, 2)
    assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert (response.transaction_states, transaction_apis.asked) == ([], {})


async def test_unknown_state_is_returned_and_matches_nothing(transaction_apis: Any) -> None:
    await begin(transaction_apis, "a", {"t": [0]})
    request = ListTransactionsRequest(state_filters=["ongoing", "Dead"])
    response = await transaction_apis.ask(LIST_TRANSACTIONS, request, 1)
    assert response.unknown_state_filters == ["ongoing"]
    assert response.transaction_states == []
