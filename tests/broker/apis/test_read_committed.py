"""Fetch and ListOffsets with isolation level read_committed."""

from __future__ import annotations

from typing import Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.apis.fetch import API
from minibroker.broker.apis.partition_logs import LATEST, LIST_OFFSETS
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from minibroker_protocol.records import iter_batches
from tests.broker.apis.transactional import PID, WALL_MS, producer_at

COMMITTED = 1
WHOLE = 1 << 20


def fetch_request(
    *partitions: int, offset: int = 0, isolation_level: int = COMMITTED, **limits: Any
) -> FetchRequest:
    wanted = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=WHOLE)
        for index in partitions
    ]
    return FetchRequest(
        topics=[FetchTopic(topic="t", partitions=wanted)],
        isolation_level=isolation_level,
        max_bytes=WHOLE,
        **limits,
    )


def offsets(response: Any) -> list[int]:
    (topic,) = response.responses
    return [
        header.base_offset
        for partition in topic.partitions
        for _, header in iter_batches(partition.records or b"")
    ]


async def test_fetch_ends_at_last_stable_offset_and_lists_aborted_transactions(
    log_apis: Any,
) -> None:
    producer = producer_at(log_apis, "t", 0)
    producer.write()
    producer.end(committed=False)
    producer.write()
    response = await log_apis.ask(API, fetch_request(0), 12)
    assert offsets(response) == [0, 1]
    (partition,) = response.responses[0].partitions
    assert (partition.high_watermark, partition.last_stable_offset) == (3, 2)
    (aborted,) = partition.aborted_transactions
    assert (aborted.producer_id, aborted.first_offset) == (PID, 0)
    everything = await log_apis.ask(API, fetch_request(0, isolation_level=0), 12)
    assert offsets(everything) == [0, 1, 2]
    assert everything.responses[0].partitions[0].aborted_transactions is None


async def test_fetch_past_last_stable_offset_is_empty_without_error(log_apis: Any) -> None:
    producer = producer_at(log_apis, "t", 0)
    producer.write()
    producer.write()
    response = await log_apis.ask(API, fetch_request(0, offset=1), 12)
    (partition,) = response.responses[0].partitions
    assert (partition.error_code, partition.records) == (ErrorCode.NONE, b"")


async def test_waiting_fetch_counts_stable_bytes_only(
    log_apis: Any, autojump_clock: MockClock
) -> None:
    producer = producer_at(log_apis, "t", 0)
    responses: list[Any] = []

    async def wait() -> None:
        wanted = fetch_request(0, min_bytes=1, max_wait_ms=60_000)
        responses.append(await log_apis.ask(API, wanted, 12))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        producer.write()
        await wait_all_tasks_blocked()
        assert responses == []
        producer.end(committed=True)
    assert offsets(responses[0]) == [0, 1]
    assert trio.current_time() < 60


async def test_fetch_of_several_workers_waits_for_stable_bytes(
    log_apis: Any, autojump_clock: MockClock
) -> None:
    producer = producer_at(log_apis, "t", 0)
    producer.write()
    wanted = fetch_request(0, 1, 2, min_bytes=1, max_wait_ms=60_000)
    started = trio.current_time()

    async def commit() -> None:
        await wait_all_tasks_blocked()
        producer.end(committed=True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit)
        response = await log_apis.ask(API, wanted, 12)
    assert offsets(response) == [0, 1]
    assert trio.current_time() < started + 60


async def test_list_offsets_ends_at_last_stable_offset(log_apis: Any) -> None:
    producer = producer_at(log_apis, "t", 0)
    producer.write()
    producer.end(committed=True)
    producer.write()

    async def find(timestamp: int, isolation_level: int = COMMITTED) -> int:
        partitions = [ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
        wanted = ListOffsetsRequest(
            topics=[ListOffsetsTopic(name="t", partitions=partitions)],
            isolation_level=isolation_level,
        )
        response = await log_apis.ask(LIST_OFFSETS, wanted, 8)
        return int(response.topics[0].partitions[0].offset)

    assert await find(LATEST) == 2
    assert await find(LATEST, isolation_level=0) == 3
    assert await find(WALL_MS) == 0
    producer.end(committed=False)
    assert await find(LATEST) == 4
