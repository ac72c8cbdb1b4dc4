"""ListOffsets: the ends of a partition, and offsets by time."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis import produce
from minibroker.broker.apis.list_offsets import (
    API,
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    STEP_SEARCHES_MAX,
)
from minibroker.broker.log.segment import SEARCH_STEP_RECORDS_MAX
from minibroker.broker.metadata.topics import NewTopic
from minibroker_protocol.compression import Compression
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from tests.broker.apis.conftest import WORKERS

VERSIONS = [1, 4, 7, 11]
PARTITIONS = 20
TIMES = (1000, 3000, 2000)


@pytest.fixture
async def apis(log_apis: Any) -> Any:
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
    apis: Any, version: int, timestamp: int, offset: int, time: int
) -> None:
    response = await apis.ask(API, request(("t", 0, timestamp)), version)
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
    apis: Any, timestamp: int, since: int, offset: int, time: int
) -> None:
    wanted = request(("t", 0, timestamp))
    assert found(await apis.ask(API, wanted, since)) == [(0, offset, time)]
    too_old = await apis.ask(API, wanted, since - 1)
    assert found(too_old) == [(ErrorCode.UNSUPPORTED_VERSION, -1, -1)]


async def test_offset_has_leader_epoch_of_its_record(apis: Any) -> None:
    partition = apis.hosted("t", 0)
    partition.update_leadership(1, 4)
    partition.append_as_leader(build_batch([Record(0, 9000, None, b"v")]), now_ms=0)
    partition.update_leadership(1, 6)
    for timestamp, offset, epoch in (
        *((EARLIEST, 0, 0), (2500, 1, 0), (8000, 3, 4), (9001, -1, -1)),
        *((MAX_TIMESTAMP, 3, 4), (LATEST, 4, 6)),
    ):
        response = await apis.ask(API, request(("t", 0, timestamp)), 7)
        (result,) = response.topics[0].partitions
        assert (result.offset, result.leader_epoch) == (offset, epoch)
    partition.delete_records(4)
    (result,) = (await apis.ask(API, request(("t", 0, EARLIEST)), 7)).topics[0].partitions
    assert (result.offset, result.leader_epoch) == (4, 6)


async def test_partition_of_another_leader_is_rejected(apis: Any) -> None:
    apis.hosted("t", 0).update_leadership(2, 1)
    response = await apis.ask(API, request(("t", 0, LATEST)), 7)
    assert found(response) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)]


async def test_unknown_special_timestamp_is_unsupported(apis: Any) -> None:
    response = await apis.ask(API, request(("t", 0, -7)), 11)
    assert found(response) == [(ErrorCode.UNSUPPORTED_VERSION, -1, -1)]


async def test_empty_partition_has_no_offset_for_timestamp(apis: Any) -> None:
    for timestamp, offset in ((LATEST, 0), (EARLIEST, 0), (5, -1), (MAX_TIMESTAMP, -1)):
        assert found(await apis.ask(API, request(("t", 1, timestamp)), 7)) == [(0, offset, -1)]


@pytest.mark.parametrize("version", VERSIONS)
async def test_each_partition_has_its_own_result(apis: Any, version: int) -> None:
    wanted = request(("t", 0, LATEST), ("t", 9, LATEST), ("no", 0, LATEST), ("u", 0, LATEST))
    wanted.topics[0].partitions.insert(0, ListOffsetsPartition(partition_index=1, timestamp=-1))
    missing = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    response = await apis.ask(API, wanted, version)
    assert found(response) == [(0, 0, -1), (0, 3, -1), missing, missing, (0, 0, -1)]
    assert set(apis.asked) == {0, 1}


async def test_duplicate_partition_is_rejected(apis: Any) -> None:
    response = await apis.ask(API, request(("t", 0, LATEST), ("t", 0, EARLIEST)), 11)
    assert found(response) == [(ErrorCode.INVALID_REQUEST, -1, -1)] * 2
    assert apis.asked == {}


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(0, 0), (1, ErrorCode.UNKNOWN_LEADER_EPOCH), (-2, ErrorCode.FENCED_LEADER_EPOCH)],
)
async def test_current_leader_epoch_is_checked_and_returned(
    apis: Any, epoch: int, error: int
) -> None:
    response = await apis.ask(API, request(("t", 0, LATEST), epoch=epoch), 4)
    (result,) = response.topics[0].partitions
    assert (result.error_code, result.leader_epoch) == (error, -1 if error else 0)


def thread_calls(apis: Any) -> int:
    return sum(worker.thread_calls for worker in apis.workers.values())


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
async def test_large_batches_are_searched_in_a_thread(apis: Any, codec: Compression) -> None:
    count = SEARCH_STEP_RECORDS_MAX + 1
    records = [Record(0, 4000 + i, None, b"") for i in range(count)]
    data = PartitionProduceData(index=0, records=build_batch(records, compression=codec))
    topics = [TopicProduceData(name="t", partition_data=[data])]
    await apis.ask(produce.API, ProduceRequest(acks=1, topic_data=topics), 9)
    checks = thread_calls(apis)
    wanted = request(("t", 0, 4500), ("t", 1, 4500))
    assert found(await apis.ask(API, wanted, 7)) == [(0, 503, 4500), (0, -1, -1)]
    assert found(await apis.ask(API, request(("t", 0, MAX_TIMESTAMP)), 7)) == [
        (0, 3 + count - 1, 4000 + count - 1)
    ]
    assert thread_calls(apis) - checks == 2


async def test_others_are_served_between_many_searches(apis: Any) -> None:
    outcome = await apis.cluster.create_topics([NewTopic("wide", PARTITIONS)])
    await apis.controller.publish(outcome.updates)
    record = build_batch([Record(0, 4000, None, b"")])
    data = [PartitionProduceData(index=i, records=record) for i in range(PARTITIONS)]
    topics = [TopicProduceData(name="wide", partition_data=data)]
    await apis.ask(produce.API, ProduceRequest(acks=1, topic_data=topics), 9)
    ends = request(*(("wide", i, LATEST) for i in range(PARTITIONS)))
    assert found(await apis.ask(API, ends, 7)) == [(0, 1, -1)] * PARTITIONS
    assert sum(worker.pauses for worker in apis.workers.values()) == 0
    searches = request(*(("wide", i, 4000) for i in range(PARTITIONS)))
    assert found(await apis.ask(API, searches, 7)) == [(0, 0, 4000)] * PARTITIONS
    pauses = [worker.pauses for worker in apis.workers.values()]
    assert pauses == [PARTITIONS // WORKERS - STEP_SEARCHES_MAX] * WORKERS


async def test_search_continues_after_large_batch_without_match(apis: Any) -> None:
    count = SEARCH_STEP_RECORDS_MAX + 1
    # The latest record of the first batch is below the log's start when the search starts.
    batches = [
        [Record(0, 9000, None, b"")] + [Record(0, 4000, None, b"")] * count,
        [Record(0, 8000, None, b"")],
    ]
    for records in batches:
        data = PartitionProduceData(index=1, records=build_batch(records))
        topics = [TopicProduceData(name="t", partition_data=[data])]
        await apis.ask(produce.API, ProduceRequest(acks=1, topic_data=topics), 9)
    apis.hosted("t", 1).delete_records(1)
    assert found(await apis.ask(API, request(("t", 1, 5000)), 7)) == [(0, count + 1, 8000)]
