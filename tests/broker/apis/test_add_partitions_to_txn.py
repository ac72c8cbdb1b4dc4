"""AddPartitionsToTxn: all partitions or none, from clients and from partition leaders."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.add_partitions_to_txn import API
from minibroker.broker.metadata.placement import OFFSETS_TOPIC
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tests.broker.apis.transacting import begin, describe

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
    return errors((await apis.ask(API, request, version)).results_by_topic_v3_and_below)


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
    response = await transaction_apis.ask(API, request, version)
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
    response = await transaction_apis.ask(API, request, 4)
    assert [errors(each.topic_results) for each in response.results_by_transaction] == expected
