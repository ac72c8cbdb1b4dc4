"""Elections and reassignments change nothing, and partitions get the errors that Kafka gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minibroker.broker.apis import produce
from minibroker.broker.apis.replicas import (
    ALTER_PARTITION_REASSIGNMENTS,
    ALTER_REPLICA_LOG_DIRS,
    DESCRIBE_LOG_DIRS,
    ELECT_LEADERS,
    LIST_PARTITION_REASSIGNMENTS,
    PREFERRED,
    UNCLEAN,
)
from minibroker.broker.metadata.image import Broker, BrokerChanged, apply
from minibroker.broker.metadata.topics import NewTopic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from minibroker_protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from minibroker_protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from minibroker_protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from minibroker_protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch

NOT_NEEDED = ErrorCode.ELECTION_NOT_NEEDED


@pytest.fixture
async def led(apis: Any) -> Any:
    await apis.create_topics([NewTopic("t", 2)])
    return apis


def led_by(apis: Any, leader: int, *replicas: int) -> None:
    """Show partition 0 of ``t`` with another leader."""
    image = apis.cluster.image
    topic = image.topics["t"]
    first = replace(topic.partitions[0], leader=leader, replicas=replicas)
    changed = topic._replace(partitions=(first, topic.partitions[1]))
    apis.image = replace(image, topics={**image.topics, "t": changed})


async def elect(
    apis: Any, topics: list[TopicPartitions] | None, kind: int = PREFERRED, version: int = 2
) -> tuple[int, dict[tuple[str, int], int]]:
    request = ElectLeadersRequest(topic_partitions=topics, election_type=kind)
    response = await apis.ask(ELECT_LEADERS, request, version)
    errors = {
        (topic.topic, partition.partition_id): partition.error_code
        for topic in response.replica_election_results
        for partition in topic.partition_result
    }
    return response.error_code, errors


@pytest.mark.parametrize("version", range(3))
async def test_partitions_of_the_request_need_no_election(led: Any, version: int) -> None:
    wanted = [
        TopicPartitions(topic="t", partitions=[1, 0, 2]),
        TopicPartitions(topic="none", partitions=[0]),
    ]
    assert await elect(led, wanted, version=version) == (
        ErrorCode.NONE,
        {
            ("t", 1): NOT_NEEDED,
            ("t", 0): NOT_NEEDED,
            ("t", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("none", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        },
    )


async def test_without_partitions_only_those_that_need_an_election_are_listed(led: Any) -> None:
    assert await elect(led, None) == (ErrorCode.NONE, {})
    led_by(led, 2, 1, 2)
    error = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert await elect(led, None) == (ErrorCode.NONE, {("t", 0): error})


@pytest.mark.parametrize(
    ("leader", "kind", "error"),
    [
        (2, PREFERRED, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (2, UNCLEAN, NOT_NEEDED),
        (-1, PREFERRED, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (-1, UNCLEAN, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
    ],
)
async def test_replica_of_another_broker_cannot_be_elected(
    led: Any, leader: int, kind: int, error: ErrorCode
) -> None:
    led_by(led, leader, 3, 2)
    wanted = [TopicPartitions(topic="t", partitions=[0])]
    assert await elect(led, wanted, kind) == (ErrorCode.NONE, {("t", 0): error})


@pytest.mark.parametrize("kind", [2, -1])
async def test_unknown_election_type_is_rejected(led: Any, kind: int) -> None:
    wanted = [TopicPartitions(topic="t", partitions=[0])]
    invalid = ErrorCode.INVALID_REQUEST
    assert await elect(led, wanted, kind) == (invalid, {("t", 0): invalid})


# Alter partition reassignments --------------------------------------------------------------------


INVALID = ErrorCode.INVALID_REPLICA_ASSIGNMENT
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture
async def settled(apis: Any) -> Any:
    await apis.create_topics([NewTopic("t", 2)])
    return apis


async def alter(
    apis: Any, name: str, index: int, replicas: list[int] | None, version: int = 1
) -> tuple[int, str | None]:
    part = ReassignablePartition(partition_index=index, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=name, partitions=[part])],
        allow_replication_factor_change=version == 0,
    )
    response = await apis.ask(ALTER_PARTITION_REASSIGNMENTS, request, version)
    assert response.error_code == ErrorCode.NONE
    assert response.allow_replication_factor_change == (version == 0)
    [topic] = response.responses
    [result] = topic.partitions
    assert (topic.name, result.partition_index) == (name, index)
    return result.error_code, result.error_message


@pytest.mark.parametrize("version", [0, 1])
async def test_present_assignment_changes_nothing(settled: Any, version: int) -> None:
    assert await alter(settled, "t", 1, [1], version) == (ErrorCode.NONE, None)


@pytest.mark.parametrize(
    ("replicas", "text"),
    [
        ([], "an empty replica list"),
        ([2], "broker 2, but no such broker is registered"),
        ([1, -1], "broker -1, but no such broker is registered"),
        ([1, 1], "the broker 1 more than once"),
    ],
)
async def test_other_assignment_is_invalid(settled: Any, replicas: list[int], text: str) -> None:
    error, message = await alter(settled, "t", 0, replicas)
    assert error == INVALID
    assert text in str(message)


async def test_assignment_to_another_broker_of_the_image_is_refused(settled: Any) -> None:
    settled.image = apply(settled.cluster.image, BrokerChanged(Broker(2, None, {})))
    error, message = await alter(settled, "t", 0, [2])
    assert error == INVALID
    assert "no other broker" in str(message)


async def test_cancellation_finds_no_reassignment(settled: Any) -> None:
    error, _ = await alter(settled, "t", 0, None)
    assert error == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


@pytest.mark.parametrize(("name", "index"), [("t", 2), ("t", -1), ("none", 0)])
@pytest.mark.parametrize("replicas", [[1], None])
async def test_unknown_partition_is_reported(
    settled: Any, name: str, index: int, replicas: list[int] | None
) -> None:
    error, _ = await alter(settled, name, index, replicas)
    assert error == UNKNOWN


# List partition reassignments ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "topics", [None, [], [ListPartitionReassignmentsTopics(name="t", partition_indexes=[0])]]
)
async def test_list_of_reassignments_is_empty(apis: Any, topics: Any) -> None:
    response = await apis.ask(
        LIST_PARTITION_REASSIGNMENTS, ListPartitionReassignmentsRequest(topics=topics), 0
    )
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    assert response.topics == []


# --------------------------------------------- The data directory is described, and logs stay in it


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
