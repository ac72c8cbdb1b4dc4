"""OffsetForLeaderEpoch: epoch ends from each owner, epoch checks, and missing partitions."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.offset_for_leader_epoch import API
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from minibroker_protocol.records import Record, build_batch

VERSIONS = [2, 3, 4]


@pytest.fixture
def apis(log_apis: Any) -> Any:
    """Partition 0 of ``t`` has two records of epoch 0, one of epoch 3, and epoch 5 without any."""
    partition = log_apis.hosted("t", 0)
    for epoch, count in ((0, 2), (3, 1)):
        partition.update_leadership(1, epoch)
        batch = build_batch([Record(value=b"v") for _ in range(count)])
        partition.append_as_leader(batch, now_ms=0)
    partition.update_leadership(1, 5)
    return log_apis


def request(*asked: tuple[str, int, int], current: int = -1) -> OffsetForLeaderEpochRequest:
    """Topic, partition and leader epoch each."""
    topics: dict[str, OffsetForLeaderTopic] = {}
    for name, index, epoch in asked:
        topic = topics.setdefault(name, OffsetForLeaderTopic(topic=name))
        topic.partitions.append(
            OffsetForLeaderPartition(
                partition=index, current_leader_epoch=current, leader_epoch=epoch
            )
        )
    return OffsetForLeaderEpochRequest(topics=list(topics.values()))


def results(response: Any) -> list[tuple[int, int, int, int]]:
    """Partition, error, epoch and end offset of each partition."""
    return [
        (each.partition, each.error_code, each.leader_epoch, each.end_offset)
        for topic in response.topics
        for each in topic.partitions
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("epoch", "found", "end"),
    [(0, 0, 2), (1, 0, 2), (3, 3, 3), (4, 3, 3), (5, 5, 3), (6, -1, -1), (-1, -1, -1)],
)
async def test_end_of_epoch_is_found(
    apis: Any, version: int, epoch: int, found: int, end: int
) -> None:
    response = await apis.ask(API, request(("t", 0, epoch)), version)
    assert results(response) == [(0, 0, found, end)]


async def test_deleted_epoch_ends_at_log_start(apis: Any) -> None:
    apis.hosted("t", 0).delete_records(3)
    response = await apis.ask(API, request(("t", 0, 0), ("t", 0, 5)), 4)
    assert results(response)[-1] == (0, 0, 5, 3)
    assert results(await apis.ask(API, request(("t", 0, 0)), 4)) == [(0, 0, 0, 3)]


@pytest.mark.parametrize("version", VERSIONS)
async def test_each_partition_has_its_own_result(apis: Any, version: int) -> None:
    asked = request(("t", 1, 0), ("t", 0, 0), ("t", 9, 0), ("no", 0, 0), ("u", 0, 0))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    response = await apis.ask(API, asked, version)
    assert [topic.topic for topic in response.topics] == ["t", "no", "u"]
    assert results(response) == [
        *((1, 0, 0, 0), (0, 0, 0, 2), (9, unknown, -1, -1)),
        *((0, unknown, -1, -1), (0, 0, 0, 0)),
    ]
    assert set(apis.asked) == {0, 1}


@pytest.mark.parametrize(
    ("leader", "current", "error"),
    [
        (1, 5, 0),
        (1, 4, ErrorCode.FENCED_LEADER_EPOCH),
        (1, 6, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (2, 5, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (2, 4, ErrorCode.FENCED_LEADER_EPOCH),
        (2, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
async def test_current_leader_epoch_is_checked(
    apis: Any, leader: int, current: int, error: int
) -> None:
    apis.hosted("t", 0).update_leadership(leader, 5)
    response = await apis.ask(API, request(("t", 0, 3), current=current), 4)
    assert results(response) == [(0, error, *((-1, -1) if error else (3, 3)))]


async def test_partition_that_is_deleted_meanwhile_is_unknown(apis: Any) -> None:
    for worker in apis.workers.values():
        worker.partition = lambda _topic, _index: None
    response = await apis.ask(API, request(("t", 0, 0)), 4)
    assert results(response) == [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)]
