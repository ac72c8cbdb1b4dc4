"""AlterReplicaLogDirs: every directory but the own one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minibroker.broker.apis.alter_replica_log_dirs import API
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)


async def errors(apis: Any, path: str, name: str, *indexes: int, version: int = 2) -> list[int]:
    topics = [AlterReplicaLogDirTopic(name=name, partitions=list(indexes))]
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=topics)])
    [result] = (await apis.ask(API, request, version)).results
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
    response = await log_apis.ask(API, AlterReplicaLogDirsRequest(dirs=dirs), 2)
    [result] = response.results
    assert [partition.error_code for partition in result.partitions] == [ErrorCode.NONE]
