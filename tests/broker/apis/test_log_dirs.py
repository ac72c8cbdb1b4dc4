"""The data directory is described, and logs stay in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minibroker.broker.apis import produce
from minibroker.broker.apis.log_dirs import ALTER_REPLICA_LOG_DIRS, DESCRIBE_LOG_DIRS
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from minibroker_protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch


async def fill(apis: Any, topic: str, index: int) -> int:
    """Append a batch, and return its size."""
    batch = build_batch([Record(0, 0, None, b"value")])
    data = PartitionProduceData(index=index, records=batch)
    topics = [TopicProduceData(name=topic, partition_data=[data])]
    await apis.ask(produce.API, ProduceRequest(acks=1, topic_data=topics), 9)
    return len(batch)


def sizes(result: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in result.topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", range(1, 6))
async def test_all_partitions_are_described_with_their_sizes(
    log_apis: Any, tmp_path: Path, version: int
) -> None:
    size = await fill(log_apis, "t", 1)
    response = await log_apis.ask(DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None), version)
    [result] = response.results
    assert (response.error_code, result.error_code) == (ErrorCode.NONE, ErrorCode.NONE)
    assert result.log_dir == str(tmp_path)
    found = sizes(result)
    assert found.pop(("t", 1)) == size
    assert {("t", 0), ("t", 2), ("u", 0)} <= found.keys()
    assert set(found.values()) == {0}
    assert (result.total_bytes >= result.usable_bytes > 0) == (version >= 4)


async def test_only_existing_requested_partitions_are_described_once(log_apis: Any) -> None:
    wanted = [
        DescribableLogDirTopic(topic="t", partitions=[2, 0, 2, 9, -1]),
        DescribableLogDirTopic(topic="none", partitions=[0]),
    ]
    response = await log_apis.ask(DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=wanted), 4)
    [result] = response.results
    [topic] = result.topics
    assert [partition.partition_index for partition in topic.partitions] == [0, 2]


async def test_directory_is_described_without_partitions(log_apis: Any) -> None:
    response = await log_apis.ask(DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=[]), 4)
    [result] = response.results
    assert result.topics == []
    assert result.total_bytes > 0


async def test_directory_that_cannot_be_examined_is_reported(log_apis: Any, tmp_path: Path) -> None:
    log_apis.workers[0].data_dir = tmp_path / "gone"
    response = await log_apis.ask(DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None), 4)
    [result] = response.results
    assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert result.topics == []


# Alter replica log dirs ---------------------------------------------------------------------------


async def errors(apis: Any, path: str, name: str, *indexes: int, version: int = 2) -> list[int]:
    topics = [AlterReplicaLogDirTopic(name=name, partitions=list(indexes))]
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=topics)])
    [result] = (await apis.ask(ALTER_REPLICA_LOG_DIRS, request, version)).results
    assert result.topic_name == name
    assert [partition.partition_index for partition in result.partitions] == list(indexes)
    return [partition.error_code for partition in result.partitions]


@pytest.mark.parametrize("version", [1, 2])
async def test_other_directory_is_refused_for_every_partition(log_apis: Any, version: int) -> None:
    found = await errors(log_apis, "/elsewhere", "t", 0, 1, 9, version=version)
    assert found == [ErrorCode.LOG_DIR_NOT_FOUND] * 3


async def test_own_directory_changes_nothing(log_apis: Any, tmp_path: Path) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await errors(log_apis, str(tmp_path), "t", 0, 9) == [ErrorCode.NONE, unknown]
    assert await errors(log_apis, str(tmp_path), "none", 0) == [unknown]


async def test_name_too_long_for_a_moving_log_is_invalid(log_apis: Any) -> None:
    for length, error in (
        (213, ErrorCode.LOG_DIR_NOT_FOUND),
        (214, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ):
        assert await errors(log_apis, "/elsewhere", "x" * length, 0) == [error]


async def test_last_directory_counts_for_a_repeated_partition(
    log_apis: Any, tmp_path: Path
) -> None:
    topics = [AlterReplicaLogDirTopic(name="t", partitions=[0])]
    dirs = [AlterReplicaLogDir(path=path, topics=topics) for path in ("/x", str(tmp_path))]
    response = await log_apis.ask(ALTER_REPLICA_LOG_DIRS, AlterReplicaLogDirsRequest(dirs=dirs), 2)
    [result] = response.results
    assert [partition.error_code for partition in result.partitions] == [ErrorCode.NONE]
