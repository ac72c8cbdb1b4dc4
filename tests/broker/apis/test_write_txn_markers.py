"""WriteTxnMarkers: markers on partitions of several owners, and their errors."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.write_txn_markers import API, refusal
from minibroker_protocol.control_records import EndTransactionMarker, parse_marker
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

PID = 7
VERSIONS = [1, 2]


def marker(
    *partitions: tuple[str, int], epoch: int = 1, coordinator: int = 0, pid: int = PID
) -> Any:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return WritableTxnMarker(
        producer_id=pid,
        producer_epoch=epoch,
        transaction_result=True,
        topics=[
            WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
            for name, indexes in topics.items()
        ],
        coordinator_epoch=coordinator,
    )


def errors(response: Any) -> dict[tuple[int, str, int], int]:
    return {
        (result.producer_id, topic.name, each.partition_index): each.error_code
        for result in response.markers
        for topic in result.topics
        for each in topic.partitions
    }


@pytest.mark.parametrize("version", VERSIONS)
async def test_marker_is_appended_to_each_partition(log_apis: Any, version: int) -> None:
    wanted = WriteTxnMarkersRequest(markers=[marker(("t", 0), ("t", 1), ("u", 0))])
    response = await log_apis.ask(API, wanted, version)
    assert errors(response) == {(PID, "t", 0): 0, (PID, "t", 1): 0, (PID, "u", 0): 0}
    for topic, index in [("t", 0), ("t", 1), ("u", 0)]:
        partition = log_apis.hosted(topic, index)
        written = partition.read(0, 1000).load()
        assert parse_marker(written) == EndTransactionMarker(committed=True, coordinator_epoch=0)


async def test_errors_are_those_of_each_partition_and_producer(log_apis: Any) -> None:
    log_apis.hosted("t", 1).update_leadership(2, 1)
    first = WriteTxnMarkersRequest(markers=[marker(("t", 0), epoch=3, coordinator=2)])
    await log_apis.ask(API, first, 2)
    wanted = WriteTxnMarkersRequest(
        markers=[
            marker(("t", 0), ("t", 1), ("t", 9), ("no", 0), epoch=2, coordinator=2),
            marker(("t", 0), pid=8),
        ]
    )
    assert errors(await log_apis.ask(API, wanted, 2)) == {
        (PID, "t", 0): ErrorCode.INVALID_PRODUCER_EPOCH,
        (PID, "t", 1): ErrorCode.NOT_LEADER_OR_FOLLOWER,
        (PID, "t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (PID, "no", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (8, "t", 0): ErrorCode.NONE,
    }
    stale = WriteTxnMarkersRequest(markers=[marker(("t", 0), epoch=3, coordinator=1)])
    assert errors(await log_apis.ask(API, stale, 2)) == {
        (PID, "t", 0): ErrorCode.TRANSACTION_COORDINATOR_FENCED
    }


async def test_marker_without_partitions_has_no_result(log_apis: Any) -> None:
    wanted = WriteTxnMarkersRequest(markers=[marker(), marker(("t", 0), pid=8)])
    response = await log_apis.ask(API, wanted, 1)
    assert [result.producer_id for result in response.markers] == [8]


@pytest.mark.parametrize(
    ("producer", "error"),
    [
        ({"pid": -1}, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ({"epoch": -1}, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
async def test_marker_of_no_producer_is_not_written(
    log_apis: Any, producer: dict[str, int], error: ErrorCode
) -> None:
    wanted = WriteTxnMarkersRequest(markers=[marker(("t", 0), **producer)])
    assert set(errors(await log_apis.ask(API, wanted, 1)).values()) == {error}
    assert log_apis.hosted("t", 0).log.log_end_offset == 0


async def test_request_without_markers_has_empty_response(log_apis: Any) -> None:
    assert (await log_apis.ask(API, WriteTxnMarkersRequest(), 2)).markers == []


def test_denied_request_has_the_error_at_every_partition() -> None:
    wanted = WriteTxnMarkersRequest(markers=[marker(("t", 0), ("u", 3))])
    denied = refusal(wanted, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert set(errors(denied).values()) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
