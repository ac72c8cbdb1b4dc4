"""Fetch: the records returned, their size, and the wait for more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.apis import produce
from minibroker.broker.apis.fetch import API
from minibroker.broker.metadata.topics import NewTopic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch, iter_batches

VERSIONS = [4, 7, 12, 13, 18]
WHOLE = 1 << 20
Append = Callable[..., Awaitable[int]]


@pytest.fixture
def append(log_apis: Any) -> Append:
    """Append a batch with a value of ``size`` bytes; return the size of the batch."""

    async def add(topic: str, partition: int, size: int = 10) -> int:
        records = build_batch([Record(0, 1, None, bytes(size))])
        data = PartitionProduceData(index=partition, records=records)
        topics = [TopicProduceData(name=topic, partition_data=[data])]
        response = await log_apis.ask(produce.API, ProduceRequest(acks=1, topic_data=topics), 9)
        assert response.responses[0].partition_responses[0].error_code == 0
        return len(records)

    return add


def request(apis: Any, *wanted: tuple[str, int, int], **options: Any) -> FetchRequest:
    """Each of ``wanted`` is topic, partition and offset; ``options`` are fields of the request."""
    bytes_max = options.pop("partition_max_bytes", WHOLE)
    topics: dict[str, FetchTopic] = {}
    for name, index, offset in wanted:
        known = apis.controller.image.topics.get(name)
        topic_id = known.topic_id if known else b"\x01" * 16
        topic = topics.setdefault(name, FetchTopic(topic=name, topic_id=topic_id))
        topic.partitions.append(
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=bytes_max)
        )
    return FetchRequest(topics=list(topics.values()), **{"max_bytes": WHOLE, **options})


def found(response: Any) -> list[tuple[int, int]]:
    """Error and number of bytes of each partition."""
    return [
        (each.error_code, len(each.records or b""))
        for topic in response.responses
        for each in topic.partitions
    ]


@pytest.mark.parametrize("version", VERSIONS)
async def test_fetch_returns_batches_unchanged_from_log(
    log_apis: Any, append: Append, version: int
) -> None:
    sizes = [await append("t", 0, size) for size in (10, 20)]
    await append("u", 0)
    wanted = request(log_apis, ("t", 0, 1), ("t", 1, 0), ("u", 0, 0))
    response = await log_apis.ask(API, wanted, version)
    assert found(response) == [(0, sizes[1]), (0, 0), (0, sizes[0])]
    first, second, _ = [each for topic in response.responses for each in topic.partitions]
    ((_, header),) = iter_batches(bytes(first.records))
    assert header.base_offset == 1
    assert (first.high_watermark, first.last_stable_offset) == (2, 2)
    assert (second.high_watermark, second.last_stable_offset) == (0, 0)


@pytest.mark.parametrize(
    ("fetched", "expected"),
    [
        ((-1, 2), (0, None)),
        ((0, 1), (0, None)),
        ((4, 2), (0, None)),
        ((0, 2), (0, (0, 1))),
        ((2, 1), (0, (0, 1))),
        ((4, 4), (0, (4, 3))),
        ((5, 2), (ErrorCode.OFFSET_OUT_OF_RANGE, None)),
        ((5, -1), (ErrorCode.OFFSET_OUT_OF_RANGE, None)),
    ],
)
async def test_fetch_after_last_fetched_epoch_reports_divergence(
    log_apis: Any,
    append: Append,
    autojump_clock: MockClock,
    fetched: tuple[int, int],
    expected: tuple[int, tuple[int, int] | None],
) -> None:
    last_epoch, offset = fetched
    await append("t", 0)
    log_apis.hosted("t", 0).update_leadership(1, 4)
    size = await append("t", 0)
    await append("t", 0)
    wanted = request(log_apis, ("t", 0, offset), max_wait_ms=5000, min_bytes=9000)
    wanted.topics[0].partitions[0].last_fetched_epoch = last_epoch
    response = await log_apis.ask(API, wanted, 12)
    (result,) = response.responses[0].partitions
    found_end = result.diverging_epoch and (
        result.diverging_epoch.epoch,
        result.diverging_epoch.end_offset,
    )
    assert (result.error_code, found_end) == expected
    is_read = expected == (0, None)
    assert bool(result.records) == is_read
    assert trio.current_time() == (5 if is_read else 0)
    assert not is_read or len(result.records) == size * (3 - offset)


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (4, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (3, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
async def test_partition_of_another_leader_is_rejected(
    log_apis: Any, epoch: int, error: ErrorCode
) -> None:
    log_apis.hosted("t", 0).update_leadership(2, 4)
    wanted = request(log_apis, ("t", 0, 0))
    wanted.topics[0].partitions[0].current_leader_epoch = epoch
    assert found(await log_apis.ask(API, wanted, 12)) == [(error, 0)]


@pytest.mark.parametrize("version", VERSIONS)
async def test_unknown_partitions_alone_are_answered_without_waiting(
    log_apis: Any, version: int, autojump_clock: MockClock
) -> None:
    unknown = [("no", 0, 0), ("t", 9, 0), ("t", -1, 0)]
    wanted = request(log_apis, *unknown, max_wait_ms=5000, min_bytes=1)
    response = await log_apis.ask(API, wanted, version)
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    no_topic = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else missing
    assert found(response) == [(no_topic, 0), (missing, 0), (missing, 0)]
    assert trio.current_time() == 0


@pytest.mark.parametrize("existing", [[0], [0, 1]], ids=["one owner", "several owners"])
async def test_fetch_with_unknown_partition_waits_for_the_others(
    log_apis: Any, existing: list[int], autojump_clock: MockClock
) -> None:
    others = [("t", index, 0) for index in existing]
    wanted = request(log_apis, ("no", 0, 0), *others, max_wait_ms=5000, min_bytes=1)
    response = await log_apis.ask(API, wanted, 12)
    unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)
    assert found(response) == [unknown, *[(0, 0)] * len(existing)]
    assert trio.current_time() == pytest.approx(5)


@pytest.mark.parametrize("offset", [-1, 2])
async def test_offset_outside_of_log_is_out_of_range(
    log_apis: Any, append: Append, offset: int, autojump_clock: MockClock
) -> None:
    await append("t", 0)
    wanted = request(log_apis, ("t", 0, offset), max_wait_ms=5000, min_bytes=1)
    response = await log_apis.ask(API, wanted, 12)
    assert found(response) == [(ErrorCode.OFFSET_OUT_OF_RANGE, 0)]
    refused = response.responses[0].partitions[0]
    bounds = (refused.high_watermark, refused.last_stable_offset, refused.log_start_offset)
    assert bounds == (-1, -1, -1)  # As Kafka; clients get them by ListOffsets.
    assert trio.current_time() == 0


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(-1, 0), (0, 0), (1, ErrorCode.UNKNOWN_LEADER_EPOCH), (-2, ErrorCode.FENCED_LEADER_EPOCH)],
)
async def test_current_leader_epoch_is_checked(log_apis: Any, epoch: int, error: int) -> None:
    wanted = request(log_apis, ("t", 0, 0))
    wanted.topics[0].partitions[0].current_leader_epoch = epoch
    assert found(await log_apis.ask(API, wanted, 9)) == [(error, 0)]


async def test_response_is_limited_to_max_bytes_after_first_batch(
    log_apis: Any, append: Append
) -> None:
    size = await append("t", 0, 1000)
    await append("t", 0, 1000)
    await append("t", 1, 1000)
    wanted = (("t", 0, 0), ("t", 1, 0))
    for bounds, expected in (
        ({"max_bytes": 10}, [size, 0]),
        ({"max_bytes": size}, [size, 0]),
        ({"max_bytes": 2 * size + 10}, [2 * size, 0]),
        ({"max_bytes": 3 * size}, [2 * size, size]),
        ({"partition_max_bytes": size}, [size, size]),
        ({"partition_max_bytes": 10, "max_bytes": 10}, [size, 0]),
        ({"max_bytes": -1}, [size, 0]),
    ):
        response = await log_apis.ask(API, request(log_apis, *wanted, **bounds), 12)
        assert [length for _, length in found(response)] == expected, bounds


async def test_fetch_of_one_worker_waits_for_min_bytes(
    log_apis: Any, append: Append, autojump_clock: MockClock
) -> None:
    size = await append("t", 0)
    answers: list[Any] = []

    async def fetch() -> None:
        wanted = request(log_apis, ("t", 0, 0), ("t", 2, 0), max_wait_ms=9000, min_bytes=size + 1)
        answers.append((await log_apis.ask(API, wanted, 12), trio.current_time()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch)
        await trio.sleep(1)
        await append("t", 1)  # No fetch waits for it.
        await trio.sleep(1)
        assert answers == []
        await append("t", 2)
    ((response, when),) = answers
    assert found(response) == [(0, size), (0, size)]
    assert when == 2


@pytest.mark.parametrize("partitions", [[0], [0, 1]], ids=["one owner", "several owners"])
async def test_fetch_returns_available_records_after_max_wait(
    log_apis: Any, append: Append, partitions: list[int], autojump_clock: MockClock
) -> None:
    size = await append("t", 0)
    wanted = [("t", index, 0) for index in partitions]
    response = await log_apis.ask(
        API, request(log_apis, *wanted, max_wait_ms=2500, min_bytes=WHOLE), 12
    )
    assert found(response)[0] == (0, size)
    assert trio.current_time() == pytest.approx(2.5)


@pytest.mark.parametrize("grown", [0, 1])
async def test_fetch_of_several_workers_waits_for_min_bytes_in_total(
    log_apis: Any, append: Append, grown: int, autojump_clock: MockClock
) -> None:
    size = await append("t", 0)
    answers: list[Any] = []

    async def fetch() -> None:
        wanted = request(log_apis, ("t", 0, 0), ("t", 1, 0), max_wait_ms=9000, min_bytes=3 * size)
        answers.append((await log_apis.ask(API, wanted, 12), trio.current_time()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch)
        for _ in range(2):
            await trio.sleep(1)
            assert answers == []
            await append("t", grown)
    ((response, when),) = answers
    lengths = [length for _, length in found(response)]
    assert (sum(lengths), when) == (3 * size, 2)


async def test_fetch_of_several_workers_with_min_bytes_needs_one_round(
    log_apis: Any, append: Append
) -> None:
    await append("t", 0)
    await append("t", 1)
    wanted = request(log_apis, ("t", 0, 0), ("t", 1, 0), max_wait_ms=9000, min_bytes=2)
    await log_apis.ask(API, wanted, 12)
    assert set(log_apis.asked) == {0, 1}
    assert log_apis.rounds == []


async def test_fetch_without_max_wait_is_answered_immediately(
    log_apis: Any, autojump_clock: MockClock
) -> None:
    for wait_ms in (0, -1):
        wanted = request(log_apis, ("t", 0, 0), ("t", 1, 0), max_wait_ms=wait_ms, min_bytes=1)
        assert found(await log_apis.ask(API, wanted, 12)) == [(0, 0), (0, 0)]
    assert trio.current_time() == 0


async def test_fetch_of_recreated_topic_by_old_id_is_unknown_topic_id(
    log_apis: Any, append: Append
) -> None:
    await append("u", 0)
    old = request(log_apis, ("u", 0, 0))
    await log_apis.controller.publish((await log_apis.cluster.delete_topics(["u"])).updates)
    outcome = await log_apis.cluster.create_topics([NewTopic("u", 1)])
    await log_apis.controller.publish(outcome.updates)
    assert found(await log_apis.ask(API, old, 13)) == [(ErrorCode.UNKNOWN_TOPIC_ID, 0)]


@pytest.mark.parametrize(
    ("session", "error"),
    [
        ({}, 0),
        ({"session_epoch": 0}, 0),
        ({"session_id": 7, "session_epoch": -1}, 0),
        ({"session_epoch": 3}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ({"session_id": 7, "session_epoch": 1}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
    ],
)
async def test_fetch_session_is_never_created(
    log_apis: Any, session: dict[str, int], error: int
) -> None:
    response = await log_apis.ask(API, request(log_apis, ("t", 0, 0), **session), 12)
    assert (response.error_code, response.session_id) == (error, 0)
    assert len(response.responses) == (0 if error else 1)


@pytest.mark.parametrize(("level", "aborted"), [(0, None), (1, [])])
async def test_read_committed_returns_empty_aborted_transactions(
    log_apis: Any, level: int, aborted: list[Any] | None
) -> None:
    response = await log_apis.ask(API, request(log_apis, ("t", 0, 0), isolation_level=level), 12)
    assert response.responses[0].partitions[0].aborted_transactions == aborted
