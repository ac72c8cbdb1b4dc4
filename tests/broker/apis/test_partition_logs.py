"""Logs of partitions find offsets and epochs, delete records, and describe producers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minibroker.broker.apis import produce
from minibroker.broker.apis.partition_logs import (
    DELETE_RECORDS,
    DESCRIBE_PRODUCERS,
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    LIST_OFFSETS,
    MAX_TIMESTAMP,
    OFFSET_FOR_LEADER_EPOCH,
    STEP_SEARCHES_MAX,
    UNKNOWN_TOPIC_TEXT,
)
from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.log import Log
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.log.segment import SEARCH_STEP_RECORDS_MAX
from minibroker.broker.metadata.image import partition_owner
from minibroker.broker.metadata.topics import NewTopic
from minibroker_protocol.compression import Compression
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from minibroker_protocol.messages.describe_producers import (
    DescribeProducersRequest,
    ProducerState,
    TopicRequest,
)
from minibroker_protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from minibroker_protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from tests.broker.apis.conftest import WORKERS
from tests.broker.apis.transactional import PID, WALL_MS, producer_at

VERSIONS = [1, 4, 7, 11]
PARTITIONS = 20
TIMES = (1000, 3000, 2000)


@pytest.fixture
async def timed_apis(log_apis: Any) -> Any:
    """Partition 0 of ``t`` has three records, at 1000, 3000 and 2000 ms."""
    for time in TIMES:
        data = PartitionProduceData(index=0, records=build_batch([Record(0, time, None, b"v")]))
        topics = [TopicProduceData(name="t", partition_data=[data])]
        await log_apis.ask(produce.API, ProduceRequest(acks=1, topic_data=topics), 9)
    return log_apis


def request(*wanted: tuple[str, int, int], epoch: int = -1) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for name, index, timestamp in wanted:
        topic = topics.setdefault(name, ListOffsetsTopic(name=name))
        topic.partitions.append(
            ListOffsetsPartition(
                partition_index=index, timestamp=timestamp, current_leader_epoch=epoch
            )
        )
    return ListOffsetsRequest(replica_id=-1, topics=list(topics.values()))


def found(response: Any) -> list[tuple[int, int, int]]:
    """Error, offset and timestamp of each partition."""
    return [
        (each.error_code, each.offset, each.timestamp)
        for topic in response.topics
        for each in topic.partitions
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("timestamp", "offset", "time"),
    [
        (LATEST, 3, -1),
        (EARLIEST, 0, -1),
        (0, 0, 1000),
        (1000, 0, 1000),
        (1001, 1, 3000),
        (3000, 1, 3000),
        (3001, -1, -1),
    ],
)
async def test_offset_is_found_by_timestamp(
    timed_apis: Any, version: int, timestamp: int, offset: int, time: int
) -> None:
    response = await timed_apis.ask(LIST_OFFSETS, request(("t", 0, timestamp)), version)
    assert found(response) == [(0, offset, time)]


@pytest.mark.parametrize(
    ("timestamp", "since", "offset", "time"),
    [
        (MAX_TIMESTAMP, 7, 1, 3000),
        (EARLIEST_LOCAL, 8, 0, -1),
        (LATEST_TIERED, 9, -1, -1),
        (EARLIEST_PENDING_UPLOAD, 11, -1, -1),
    ],
)
async def test_special_timestamp_in_older_version_is_unsupported(
    timed_apis: Any, timestamp: int, since: int, offset: int, time: int
) -> None:
    wanted = request(("t", 0, timestamp))
    assert found(await timed_apis.ask(LIST_OFFSETS, wanted, since)) == [(0, offset, time)]
    too_old = await timed_apis.ask(LIST_OFFSETS, wanted, since - 1)
    assert found(too_old) == [(ErrorCode.UNSUPPORTED_VERSION, -1, -1)]


async def test_offset_has_leader_epoch_of_its_record(timed_apis: Any) -> None:
    partition = timed_apis.hosted("t", 0)
    partition.update_leadership(1, 4)
    partition.append_as_leader(build_batch([Record(0, 9000, None, b"v")]), now_ms=0)
    partition.update_leadership(1, 6)
    for timestamp, offset, epoch in (
        *((EARLIEST, 0, 0), (2500, 1, 0), (8000, 3, 4), (9001, -1, -1)),
        *((MAX_TIMESTAMP, 3, 4), (LATEST, 4, 6)),
    ):
        response = await timed_apis.ask(LIST_OFFSETS, request(("t", 0, timestamp)), 7)
        (result,) = response.topics[0].partitions
        assert (result.offset, result.leader_epoch) == (offset, epoch)
    partition.delete_records(4)
    (result,) = (
        (await timed_apis.ask(LIST_OFFSETS, request(("t", 0, EARLIEST)), 7)).topics[0].partitions
    )
    assert (result.offset, result.leader_epoch) == (4, 6)


async def test_partition_of_another_leader_is_rejected(timed_apis: Any) -> None:
    timed_apis.hosted("t", 0).update_leadership(2, 1)
    response = await timed_apis.ask(LIST_OFFSETS, request(("t", 0, LATEST)), 7)
    assert found(response) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)]


async def test_unknown_special_timestamp_is_unsupported(timed_apis: Any) -> None:
    response = await timed_apis.ask(LIST_OFFSETS, request(("t", 0, -7)), 11)
    assert found(response) == [(ErrorCode.UNSUPPORTED_VERSION, -1, -1)]


async def test_empty_partition_has_no_offset_for_timestamp(timed_apis: Any) -> None:
    for timestamp, offset in ((LATEST, 0), (EARLIEST, 0), (5, -1), (MAX_TIMESTAMP, -1)):
        assert found(await timed_apis.ask(LIST_OFFSETS, request(("t", 1, timestamp)), 7)) == [
            (0, offset, -1)
        ]


@pytest.mark.parametrize("version", VERSIONS)
async def test_each_partition_has_its_own_result(timed_apis: Any, version: int) -> None:
    wanted = request(("t", 0, LATEST), ("t", 9, LATEST), ("no", 0, LATEST), ("u", 0, LATEST))
    wanted.topics[0].partitions.insert(0, ListOffsetsPartition(partition_index=1, timestamp=-1))
    missing = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    response = await timed_apis.ask(LIST_OFFSETS, wanted, version)
    assert found(response) == [(0, 0, -1), (0, 3, -1), missing, missing, (0, 0, -1)]
    assert set(timed_apis.asked) == {0, 1}


async def test_duplicate_partition_is_rejected(timed_apis: Any) -> None:
    response = await timed_apis.ask(LIST_OFFSETS, request(("t", 0, LATEST), ("t", 0, EARLIEST)), 11)
    assert found(response) == [(ErrorCode.INVALID_REQUEST, -1, -1)] * 2
    assert timed_apis.asked == {}


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(0, 0), (1, ErrorCode.UNKNOWN_LEADER_EPOCH), (-2, ErrorCode.FENCED_LEADER_EPOCH)],
)
async def test_current_leader_epoch_is_checked_and_returned(
    timed_apis: Any, epoch: int, error: int
) -> None:
    response = await timed_apis.ask(LIST_OFFSETS, request(("t", 0, LATEST), epoch=epoch), 4)
    (result,) = response.topics[0].partitions
    assert (result.error_code, result.leader_epoch) == (error, -1 if error else 0)


def thread_calls(timed_apis: Any) -> int:
    return sum(worker.thread_calls for worker in timed_apis.workers.values())


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
async def test_large_batches_are_searched_in_a_thread(timed_apis: Any, codec: Compression) -> None:
    count = SEARCH_STEP_RECORDS_MAX + 1
    records = [Record(0, 4000 + i, None, b"") for i in range(count)]
    data = PartitionProduceData(index=0, records=build_batch(records, compression=codec))
    topics = [TopicProduceData(name="t", partition_data=[data])]
    await timed_apis.ask(produce.API, ProduceRequest(acks=1, topic_data=topics), 9)
    checks = thread_calls(timed_apis)
    wanted = request(("t", 0, 4500), ("t", 1, 4500))
    assert found(await timed_apis.ask(LIST_OFFSETS, wanted, 7)) == [(0, 503, 4500), (0, -1, -1)]
    assert found(await timed_apis.ask(LIST_OFFSETS, request(("t", 0, MAX_TIMESTAMP)), 7)) == [
        (0, 3 + count - 1, 4000 + count - 1)
    ]
    assert thread_calls(timed_apis) - checks == 2


async def test_others_are_served_between_many_searches(timed_apis: Any) -> None:
    await timed_apis.create_topics([NewTopic("wide", PARTITIONS)])
    record = build_batch([Record(0, 4000, None, b"")])
    data = [PartitionProduceData(index=i, records=record) for i in range(PARTITIONS)]
    topics = [TopicProduceData(name="wide", partition_data=data)]
    await timed_apis.ask(produce.API, ProduceRequest(acks=1, topic_data=topics), 9)
    ends = request(*(("wide", i, LATEST) for i in range(PARTITIONS)))
    assert found(await timed_apis.ask(LIST_OFFSETS, ends, 7)) == [(0, 1, -1)] * PARTITIONS
    assert sum(worker.pauses for worker in timed_apis.workers.values()) == 0
    searches = request(*(("wide", i, 4000) for i in range(PARTITIONS)))
    assert found(await timed_apis.ask(LIST_OFFSETS, searches, 7)) == [(0, 0, 4000)] * PARTITIONS
    pauses = [worker.pauses for worker in timed_apis.workers.values()]
    assert pauses == [PARTITIONS // WORKERS - STEP_SEARCHES_MAX] * WORKERS


async def test_search_continues_after_large_batch_without_match(timed_apis: Any) -> None:
    count = SEARCH_STEP_RECORDS_MAX + 1
    # The latest record of the first batch is below the log's start when the search starts.
    batches = [
        [Record(0, 9000, None, b"")] + [Record(0, 4000, None, b"")] * count,
        [Record(0, 8000, None, b"")],
    ]
    for records in batches:
        data = PartitionProduceData(index=1, records=build_batch(records))
        topics = [TopicProduceData(name="t", partition_data=[data])]
        await timed_apis.ask(produce.API, ProduceRequest(acks=1, topic_data=topics), 9)
    timed_apis.hosted("t", 1).delete_records(1)
    assert found(await timed_apis.ask(LIST_OFFSETS, request(("t", 1, 5000)), 7)) == [
        (0, count + 1, 8000)
    ]


# Offset for leader epoch --------------------------------------------------------------------------


EPOCH_VERSIONS = [2, 3, 4]


@pytest.fixture
def epoch_apis(log_apis: Any) -> Any:
    """Partition 0 of ``t`` has two records of epoch 0, one of epoch 3, and epoch 5 without any."""
    partition = log_apis.hosted("t", 0)
    for epoch, count in ((0, 2), (3, 1)):
        partition.update_leadership(1, epoch)
        batch = build_batch([Record(value=b"v") for _ in range(count)])
        partition.append_as_leader(batch, now_ms=0)
    partition.update_leadership(1, 5)
    return log_apis


def epoch_request(*asked: tuple[str, int, int], current: int = -1) -> OffsetForLeaderEpochRequest:
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


@pytest.mark.parametrize("version", EPOCH_VERSIONS)
@pytest.mark.parametrize(
    ("epoch", "found", "end"),
    [(0, 0, 2), (1, 0, 2), (3, 3, 3), (4, 3, 3), (5, 5, 3), (6, -1, -1), (-1, -1, -1)],
)
async def test_end_of_epoch_is_found(
    epoch_apis: Any, version: int, epoch: int, found: int, end: int
) -> None:
    response = await epoch_apis.ask(
        OFFSET_FOR_LEADER_EPOCH, epoch_request(("t", 0, epoch)), version
    )
    assert results(response) == [(0, 0, found, end)]


async def test_deleted_epoch_ends_at_log_start(epoch_apis: Any) -> None:
    epoch_apis.hosted("t", 0).delete_records(3)
    response = await epoch_apis.ask(
        OFFSET_FOR_LEADER_EPOCH, epoch_request(("t", 0, 0), ("t", 0, 5)), 4
    )
    assert results(response)[-1] == (0, 0, 5, 3)
    assert results(
        await epoch_apis.ask(OFFSET_FOR_LEADER_EPOCH, epoch_request(("t", 0, 0)), 4)
    ) == [(0, 0, 0, 3)]


@pytest.mark.parametrize("version", EPOCH_VERSIONS)
async def test_each_partition_has_its_own_epoch(epoch_apis: Any, version: int) -> None:
    asked = epoch_request(("t", 1, 0), ("t", 0, 0), ("t", 9, 0), ("no", 0, 0), ("u", 0, 0))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    response = await epoch_apis.ask(OFFSET_FOR_LEADER_EPOCH, asked, version)
    assert [topic.topic for topic in response.topics] == ["t", "no", "u"]
    assert results(response) == [
        *((1, 0, 0, 0), (0, 0, 0, 2), (9, unknown, -1, -1)),
        *((0, unknown, -1, -1), (0, 0, 0, 0)),
    ]
    assert set(epoch_apis.asked) == {0, 1}


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
    epoch_apis: Any, leader: int, current: int, error: int
) -> None:
    epoch_apis.hosted("t", 0).update_leadership(leader, 5)
    response = await epoch_apis.ask(
        OFFSET_FOR_LEADER_EPOCH, epoch_request(("t", 0, 3), current=current), 4
    )
    assert results(response) == [(0, error, *((-1, -1) if error else (3, 3)))]


async def test_partition_that_is_deleted_meanwhile_is_unknown(
    epoch_apis: Any,
) -> None:
    for worker in epoch_apis.workers.values():
        worker.partition = lambda _topic, _index: None
    response = await epoch_apis.ask(OFFSET_FOR_LEADER_EPOCH, epoch_request(("t", 0, 0)), 4)
    assert results(response) == [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)]


# Delete records -----------------------------------------------------------------------------------


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
    response = await staffed.ask(DELETE_RECORDS, request, version)
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
    response = await staffed.ask(DELETE_RECORDS, request, 2)
    assert [[p.error_code for p in topic.partitions] for topic in response.topics] == [
        [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.POLICY_VIOLATION],
        [ErrorCode.INVALID_TOPIC_EXCEPTION],
    ]
    assert all(p.low_watermark == -1 for topic in response.topics for p in topic.partitions)


# Describe producers -------------------------------------------------------------------------------


def producers_request(**topics: list[int]) -> DescribeProducersRequest:
    return DescribeProducersRequest(
        topics=[
            TopicRequest(name=name, partition_indexes=indexes) for name, indexes in topics.items()
        ]
    )


async def test_open_transaction_has_its_start_offset(log_apis: Any) -> None:
    producer = producer_at(log_apis, "t", 1)
    producer.write()
    producer.write()
    response = await log_apis.ask(DESCRIBE_PRODUCERS, producers_request(t=[0, 1]), 0)
    empty, described = response.topics[0].partitions
    assert (empty.error_code, empty.active_producers) == (0, [])
    assert described.active_producers == [
        ProducerState(
            producer_id=PID,
            producer_epoch=0,
            last_sequence=1,
            last_timestamp=WALL_MS,
            coordinator_epoch=-1,
            current_txn_start_offset=0,
        )
    ]
    producer.end(committed=True)
    response = await log_apis.ask(DESCRIBE_PRODUCERS, producers_request(t=[1]), 0)
    (state,) = response.topics[0].partitions[0].active_producers
    assert (state.producer_epoch, state.last_sequence) == (1, -1)
    assert (state.coordinator_epoch, state.current_txn_start_offset) == (0, -1)


async def test_partitions_that_cannot_be_described_have_errors(log_apis: Any) -> None:
    log_apis.hosted("t", 0).update_leadership(2, 1)
    response = await log_apis.ask(
        DESCRIBE_PRODUCERS, producers_request(**{"t": [0, 9], "no": [0], "a/b": [0]}), 0
    )
    assert [
        (each.error_code, each.error_message)
        for topic in response.topics
        for each in topic.partitions
    ] == [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, None),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_TEXT),
        (
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            response.topics[2].partitions[0].error_message,
        ),
    ]
    assert "is invalid" in response.topics[2].partitions[0].error_message
