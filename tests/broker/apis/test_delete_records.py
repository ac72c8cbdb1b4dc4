"""DeleteRecords: each partition at its owner, what may not lose records, and bad offsets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minibroker.broker.apis.delete_records import API
from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.log import Log
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.metadata.placement import partition_owner
from minibroker.broker.metadata.topics import NewTopic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from minibroker_protocol.records import Record, build_batch


class Worker:
    """A worker with real logs in a directory."""

    def __init__(self, directory: Path, index: int) -> None:
        self._directory = directory
        self._index = index
        self._partitions: dict[tuple[str, int], Partition] = {}

    def partition(self, topic: str, index: int) -> Partition:
        assert partition_owner(topic, index, 2) == self._index
        key = (topic, index)
        if key not in self._partitions:
            log = Log.open(self._directory, topic, index, LogConfig(), now_ms=0)
            self._partitions[key] = Partition(
                log, bytes(16), broker_id=1, leader_id=1, leader_epoch=0
            )
        return self._partitions[key]

    def close(self) -> None:
        for partition in self._partitions.values():
            partition.log.close(now_ms=0)


@pytest.fixture
async def staffed(apis: Any, tmp_path: Path) -> Any:
    apis.workers = {index: Worker(tmp_path, index) for index in range(2)}
    wanted = [NewTopic("a", 2), NewTopic("kept", 1, config=[("cleanup.policy", "compact")])]
    await apis.controller.publish((await apis.cluster.create_topics(wanted)).updates)
    for partition in range(2):
        led = apis.workers[partition_owner("a", partition, 2)].partition("a", partition)
        batch = build_batch([Record(value=b"x") for _ in range(10)])
        led.append_as_leader(memoryview(bytearray(batch)), now_ms=0)
    yield apis
    for worker in apis.workers.values():
        worker.close()


def delete(topic: str, *partitions: tuple[int, int]) -> DeleteRecordsTopic:
    return DeleteRecordsTopic(
        name=topic,
        partitions=[DeleteRecordsPartition(partition_index=p, offset=o) for p, o in partitions],
    )


@pytest.mark.parametrize("version", range(3))
async def test_delete_records_advances_log_start_offset(staffed: Any, version: int) -> None:
    request = DeleteRecordsRequest(topics=[delete("a", (0, 4), (1, -1))])
    response = await staffed.ask(API, request, version)
    assert len(staffed.asked) == 2
    [topic] = response.topics
    assert [(p.partition_index, p.low_watermark, p.error_code) for p in topic.partitions] == [
        (0, 4, 0),
        (1, 10, 0),
    ]
    assert staffed.workers[partition_owner("a", 0, 2)].partition("a", 0).log.log_start_offset == 4


async def test_invalid_delete_records_is_rejected_for_its_partition(staffed: Any) -> None:
    request = DeleteRecordsRequest(
        topics=[
            delete("a", (0, 11), (7, 0)),
            delete("missing", (0, 0)),
            delete("kept", (0, 0)),
            delete("__consumer_offsets", (0, 0)),
        ]
    )
    response = await staffed.ask(API, request, 2)
    assert [[p.error_code for p in topic.partitions] for topic in response.topics] == [
        [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.POLICY_VIOLATION],
        [ErrorCode.INVALID_TOPIC_EXCEPTION],
    ]
    assert all(p.low_watermark == -1 for topic in response.topics for p in topic.partitions)
