"""Fetch: the records returned, their size, and the wait for more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.apis import produce
from minibroker.broker.apis.fetch import API, throttled_response
from minibroker.broker.apis.fetch_sessions import FetchSessionCache, SessionPart
from minibroker.broker.apis.partition_logs import DELETE_RECORDS
from minibroker.broker.apis.registry import with_authorization_check
from minibroker.broker.metadata.topics import NewTopic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from minibroker_protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch, iter_batches
from tests.broker.apis.session_client import SessionClient, forgotten_of, partitions_of, topics_of

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
    await log_apis.create_topics([NewTopic("u", 1)])
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


# Sessions -----------------------------------------------------------------------------------------


VERSIONS_INCREMENTAL_FETCH = [7, 12, 13, 18]
Fetch = Callable[..., Awaitable[Any]]


@pytest.fixture
def sessions(log_apis: Any) -> FetchSessionCache:
    """Return the fetch sessions of the processor, with ids from 1 on."""
    ids = iter(range(1, 1000))
    cache = FetchSessionCache(100, range(1, 1000), lambda _low, _high: next(ids))
    log_apis.fetch_sessions = cache
    return cache


@pytest.fixture
def fetch(log_apis: Any, sessions: FetchSessionCache) -> Fetch:
    """Send a client's next request; return the partitions of the response."""
    assert not len(sessions)

    async def ask(client: SessionClient, version: int = 18, **options: Any) -> Any:
        return client.receive(await log_apis.ask(API, client.request(**options), version))

    return ask


def topic_ids(apis: Any) -> dict[str, bytes]:
    return {name: topic.topic_id for name, topic in apis.controller.image.topics.items()}


@pytest.fixture
def client(log_apis: Any) -> SessionClient:
    """A client of both topics, at offset 0 of each partition."""
    client = SessionClient(topic_ids(log_apis))
    client.offsets = {("t", 0): 0, ("t", 1): 0, ("t", 2): 0, ("u", 0): 0}
    return client


@pytest.mark.parametrize("version", VERSIONS_INCREMENTAL_FETCH)
async def test_incremental_response_has_changed_partitions_only(
    client: SessionClient, fetch: Fetch, append: Append, version: int
) -> None:
    assert list(await fetch(client, version)) == list(client.offsets)
    assert client.session_id > 0
    assert await fetch(client, version) == {}
    size = await append("t", 1)
    found = await fetch(client, version)
    assert {name: len(data.records) for name, data in found.items()} == {("t", 1): size}
    assert found["t", 1].preferred_read_replica == -1
    assert await fetch(client, version) == {}


async def test_request_without_session_gets_no_session(
    log_apis: Any, client: SessionClient, sessions: FetchSessionCache
) -> None:
    request = client.request()
    request.session_epoch = -1
    response = await log_apis.ask(API, request, 18)
    assert (response.session_id, len(sessions)) == (0, 0)


async def test_idle_fetch_sends_no_partition_to_workers(
    log_apis: Any, client: SessionClient, fetch: Fetch
) -> None:
    for _ in range(3):
        await fetch(client)
    for part in log_apis.asked.values():
        assert isinstance(part, SessionPart)
        assert (part.queries, part.moved, part.forgotten) == ((), (), ())
    for worker in log_apis.workers.values():
        for part in log_apis.asked.values():
            watch = worker.fetch_watches.advance(part._replace(follows=part.sequence))
            if watch is not None:
                assert watch.pending() == []


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ((99, 1, 18), ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ((0, 1, 18), ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ((-5, 7, 18), ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ((1, 2, 18), ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ((1, -7, 18), ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ((1, 0x7FFFFFFF, 18), ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ((1, 1, 12), ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ],
)
async def test_wrong_session_or_epoch_is_an_error_and_keeps_the_session(
    log_apis: Any,
    client: SessionClient,
    fetch: Fetch,
    wrong: tuple[int, int, int],
    error: ErrorCode,
) -> None:
    session_id, epoch, version = wrong
    await fetch(client)
    request = FetchRequest(session_id=session_id, session_epoch=epoch, max_bytes=1)
    response = await log_apis.ask(API, request, version)
    assert (response.error_code, response.session_id, response.responses) == (error, 0, [])
    assert await fetch(client) == {}


async def test_session_of_names_is_not_continued_by_ids(
    log_apis: Any, client: SessionClient, fetch: Fetch
) -> None:
    await fetch(client, 12)
    response = await log_apis.ask(API, client.request(), 13)
    assert response.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


@pytest.mark.parametrize("epoch", [0, -1])
async def test_full_request_closes_its_session(
    log_apis: Any,
    client: SessionClient,
    fetch: Fetch,
    sessions: FetchSessionCache,
    epoch: int,
) -> None:
    await fetch(client)
    request = FetchRequest(session_id=client.session_id, session_epoch=epoch, max_bytes=1)
    response = await log_apis.ask(API, request, 18)
    assert (response.error_code, bool(response.session_id)) == (0, epoch == 0)
    assert len(sessions) == (1 if epoch == 0 else 0)
    response = await log_apis.ask(API, client.request(), 18)
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_session_without_partitions_is_closed(
    client: SessionClient, fetch: Fetch, sessions: FetchSessionCache
) -> None:
    await fetch(client)
    assert sessions.partition_count == 4
    del client.offsets["t", 0]
    await fetch(client)
    assert sessions.partition_count == 3
    client.offsets.clear()
    assert await fetch(client) == {}
    assert (client.session_id, len(sessions), sessions.partition_count) == (0, 0, 0)


async def test_partitions_with_records_move_to_the_end(
    client: SessionClient, fetch: Fetch, append: Append
) -> None:
    await fetch(client)
    for name in client.offsets:
        await append(*name)
    assert list(await fetch(client)) == [("t", 0), ("t", 1), ("t", 2), ("u", 0)]
    await append("t", 1)
    assert list(await fetch(client)) == [("t", 1)]
    for name in client.offsets:
        await append(*name)
    assert list(await fetch(client)) == [("t", 0), ("t", 2), ("u", 0), ("t", 1)]


async def test_records_over_max_bytes_come_with_the_next_responses(
    client: SessionClient, fetch: Fetch, append: Append
) -> None:
    await fetch(client)
    for name in client.offsets:
        await append(*name, 500)
    received = [
        [name for name, data in (await fetch(client, max_bytes=10)).items() if data.records]
        for _ in range(5)
    ]
    assert sorted(name for names in received for name in names) == sorted(client.offsets)
    assert all(len(names) <= 1 for names in received)


@pytest.mark.parametrize("names", [[("t", 0)], [("t", 0), ("t", 1)]], ids=["one owner", "two"])
async def test_idle_fetch_waits_for_records(
    client: SessionClient,
    fetch: Fetch,
    append: Append,
    autojump_clock: MockClock,
    names: list[tuple[str, int]],
) -> None:
    client.offsets = dict.fromkeys(names, 0)
    await fetch(client)
    found: list[Any] = []

    async def wait() -> None:
        found.append((await fetch(client, max_wait_ms=9000, min_bytes=1), trio.current_time()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(2)
        assert found == []
        await append(*names[-1])
    assert [(list(partitions), when) for partitions, when in found] == [([names[-1]], 2)]
    await fetch(client, max_wait_ms=3000, min_bytes=1)
    assert trio.current_time() == pytest.approx(5)


async def test_fetch_waits_for_min_bytes(
    client: SessionClient, fetch: Fetch, append: Append, autojump_clock: MockClock
) -> None:
    await fetch(client)
    found: list[Any] = []

    async def wait(min_bytes: int) -> None:
        found.append(list(await fetch(client, max_wait_ms=9000, min_bytes=min_bytes)))

    async with trio.open_nursery() as nursery:
        size = await append("t", 2)
        nursery.start_soon(wait, 3 * size)
        for name in (("t", 0), ("u", 0)):
            await trio.sleep(1)
            assert found == []
            await append(*name)
    assert [set(names) for names in found] == [{("t", 0), ("t", 2), ("u", 0)}]
    assert trio.current_time() == 2


async def test_second_request_of_an_epoch_fails_the_first(
    log_apis: Any, client: SessionClient, fetch: Fetch, autojump_clock: MockClock
) -> None:
    await fetch(client)
    answers: list[Any] = []

    async def wait() -> None:
        request = client.request(max_wait_ms=9000, min_bytes=1)
        answers.append(await log_apis.ask(API, request, 18))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(1)
        client.epoch += 1
        assert await fetch(client, max_wait_ms=1000, min_bytes=1) == {}
    (response,) = answers
    assert response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert response.session_id == client.session_id


async def test_throttled_response_loses_nothing(
    log_apis: Any, client: SessionClient, fetch: Fetch, append: Append
) -> None:
    await fetch(client)
    await append("t", 0)
    ctx = log_apis.context(API.key, 18)
    request = client.request()
    parts = API.split(ctx, request)
    replies = {
        owner: API.execute(log_apis.workers[owner], part)  # type: ignore[misc]
        for owner, part in parts.items()
    }
    replies = {owner: reply for owner, reply in replies.items() if isinstance(reply, tuple)}
    response = API.merge(ctx, request, replies)
    assert response is not None
    throttled = throttled_response(ctx, response)
    assert (throttled.session_id, throttled.responses) == (client.session_id, [])
    client.epoch += 1
    assert list(await fetch(client)) == [("t", 0)]


async def test_throttled_full_fetch_starts_no_session(
    log_apis: Any, client: SessionClient, sessions: FetchSessionCache
) -> None:
    ctx = log_apis.context(API.key, 18)
    request = client.request()
    ctx = replace(ctx)
    API.split(ctx, request)
    response = API.merge(ctx, request, {})
    assert response is not None
    assert len(sessions) == 1
    assert throttled_response(ctx, response) == FetchResponse()
    assert len(sessions) == 0


async def test_errors_are_repeated_until_the_topic_exists(
    log_apis: Any, client: SessionClient, fetch: Fetch
) -> None:
    client.offsets["v", 0] = 0
    client.offsets["t", 9] = 0
    await fetch(client, 12)
    found = await fetch(client, 12)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    errors = {name: data.error_code for name, data in found.items()}
    assert errors == {("v", 0): unknown, ("t", 9): unknown}
    await log_apis.create_topics([NewTopic("v", 1)])
    found = await fetch(client, 12)
    errors = {name: data.error_code for name, data in found.items()}
    assert errors == {("v", 0): 0, ("t", 9): unknown}


async def test_unknown_topic_id_is_answered_each_time(
    log_apis: Any, client: SessionClient, fetch: Fetch
) -> None:
    client.ids["w"] = b"\x07" * 16
    client.offsets["w", 0] = 0
    await fetch(client)
    for _ in range(2):
        found = await fetch(client)
        assert {name: data.error_code for name, data in found.items()} == {
            ("w", 0): ErrorCode.UNKNOWN_TOPIC_ID
        }


@pytest.mark.parametrize("idle_fetches", [0, 1])
async def test_deleted_and_recreated_topic_of_a_session_has_the_error_of_each(
    log_apis: Any, client: SessionClient, fetch: Fetch, idle_fetches: int
) -> None:
    async def errors() -> set[int]:
        return {data.error_code for name, data in (await fetch(client)).items() if name[0] == "u"}

    for _ in range(1 + idle_fetches):
        await fetch(client)
    outcome = await log_apis.cluster.delete_topics(["u"])
    await log_apis.controller.publish(outcome.updates)
    for _ in range(2):
        assert await errors() == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    await log_apis.create_topics([NewTopic("u", 1)])
    for _ in range(2):
        assert await errors() == {ErrorCode.INCONSISTENT_TOPIC_ID}


async def test_workers_that_forgot_the_session_get_all_partitions(
    log_apis: Any, client: SessionClient, fetch: Fetch, append: Append
) -> None:
    await fetch(client)
    await fetch(client)
    await append("t", 1)
    for worker in log_apis.workers.values():
        worker.fetch_watches._drop(client.session_id)
    assert list(await fetch(client)) == [("t", 1)]
    assert any(part.follows == -1 for part in log_apis.rounds[0].parts.values())


async def test_waiting_fetch_of_a_closed_session_gives_way_to_a_live_one(
    log_apis: Any, client: SessionClient, fetch: Fetch, append: Append, autojump_clock: MockClock
) -> None:
    """A worker keeps only the sessions in slots; these two would displace one another for ever."""
    waits = 0
    for worker in log_apis.workers.values():
        worker.fetch_watches._watches_max = 1

        async def wait(
            session_id: int, deadline: float, go_on: Any = worker.wait_fetch_watch
        ) -> None:
            nonlocal waits
            waits += 1
            assert waits < 100
            await go_on(session_id, deadline)

        worker.wait_fetch_watch = wait
    await fetch(client)
    other = SessionClient(client.ids)
    other.offsets = dict(client.offsets)
    found: list[Any] = []

    async def fetch_waiting(waiting: SessionClient) -> None:
        partitions = await fetch(waiting, max_wait_ms=9000, min_bytes=1)
        found.append((waiting, list(partitions), trio.current_time()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch_waiting, client)
        await trio.sleep(1)
        request = other.request()
        request.session_id = client.session_id  # Closes that session, and starts another one.
        other.receive(await log_apis.ask(API, request, 18))
        nursery.start_soon(fetch_waiting, other)
        await trio.sleep(1)
        await append("t", 1)
    assert found == [(client, [], 1), (other, [("t", 1)], 2)]


async def test_partition_that_a_fetch_opens_is_watched(
    log_apis: Any, client: SessionClient, fetch: Fetch, append: Append
) -> None:
    await fetch(client)
    for worker in log_apis.workers.values():  # As after a restart: a fetch opens the partitions.
        worker.fetch_watches._drop(client.session_id)
        worker._replicas._partitions.clear()
    await fetch(client)
    await fetch(client)
    await append("t", 1)
    assert list(await fetch(client)) == [("t", 1)]


async def test_change_of_isolation_level_reads_all_partitions(
    log_apis: Any, client: SessionClient, fetch: Fetch
) -> None:
    await fetch(client)
    await fetch(client)
    await fetch(client, isolation_level=1)
    assert all(part.follows == -1 for part in log_apis.asked.values())


async def test_partition_added_and_forgotten_at_once_is_read_and_authorized(
    log_apis: Any, client: SessionClient, fetch: Fetch, append: Append
) -> None:
    size = await append("t", 0)
    client.offsets = {("t", 0): 0}
    await fetch(client)
    for readers, expected in (
        (("t",), (0, size)),
        ((), (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0)),
    ):
        client.offsets = {("t", 0): 0}
        client.session_id = client.epoch = 0
        await fetch(client)
        log_apis.authorizers = Readers(*readers)
        request = client.request()
        request.topics = topics_of({("t", 0): 0}, client.ids)
        request.forgotten_topics_data = forgotten_of([("t", 0)], client.ids)
        response = await log_apis.ask(with_authorization_check(API), request, 18)
        ((data,),) = [topic.partitions for topic in response.responses]
        assert (response.session_id, data.error_code, len(data.records)) == (0, *expected)
        log_apis.authorizers = Readers("t")


class Readers:
    """Authorizers by which a client may read some topics."""

    def __init__(self, *topics: str) -> None:
        self.topics = topics

    def of(self, _image: object) -> Readers:
        return self

    def allows(self, *operation: Any) -> bool:
        return operation[-1] in self.topics


async def test_denied_partitions_are_errors_until_they_are_allowed(
    log_apis: Any, client: SessionClient, append: Append, sessions: FetchSessionCache
) -> None:
    api = with_authorization_check(API)
    size = await append("u", 0)
    log_apis.authorizers = Readers("t")

    async def errors() -> dict[tuple[str, int], tuple[int, int]]:
        found = client.receive(await log_apis.ask(api, client.request(), 18))
        return {name: (data.error_code, len(data.records)) for name, data in found.items()}

    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (await errors())["u", 0] == (denied, 0)
    assert sessions.partition_count == 4
    for _ in range(2):
        assert await errors() == {("u", 0): (denied, 0)}
    log_apis.authorizers = Readers("u", "t")
    assert await errors() == {("u", 0): (0, size)}
    log_apis.authorizers = Readers("u")
    assert await errors() == {("t", index): (denied, 0) for index in range(3)}


class Schedule:
    """A random schedule of appends, deletions, and clients with sessions."""

    def __init__(self, apis: Any, fetch: Fetch, append: Append, seed: int) -> None:
        self.random = Random(seed)
        self.apis = apis
        self.fetch = fetch
        self.append = append
        self.version = self.random.choice(VERSIONS_INCREMENTAL_FETCH)
        self.clients = [SessionClient(topic_ids(apis)) for _ in range(self.random.randint(1, 5))]
        self.names = [("t", 0), ("t", 1), ("t", 2), ("u", 0)]

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            client = self.random.choice(self.clients)
            await self.random.choice(
                [self.produce, self.produce, self.delete, self.change_partitions, self.small_fetch]
            )(client)
            if self.random.random() < 0.5:
                await self.compare(client)

    async def produce(self, _client: SessionClient) -> None:
        await self.append(*self.random.choice(self.names), self.random.randint(1, 300))

    async def delete(self, _client: SessionClient) -> None:
        topic, index = self.random.choice(self.names)
        end = self.apis.hosted(topic, index).high_watermark
        asked = DeleteRecordsPartition(partition_index=index, offset=self.random.randint(0, end))
        topics = [DeleteRecordsTopic(name=topic, partitions=[asked])]
        await self.apis.ask(DELETE_RECORDS, DeleteRecordsRequest(topics=topics), 2)

    async def change_partitions(self, client: SessionClient) -> None:
        name = self.random.choice(self.names)
        if name in client.offsets and self.random.random() < 0.5:
            del client.offsets[name]
        else:
            client.offsets[name] = self.random.randint(0, self.apis.hosted(*name).high_watermark)

    async def small_fetch(self, client: SessionClient) -> None:
        await self.fetch(client, self.version, max_bytes=self.random.randint(1, 500))

    async def compare(self, client: SessionClient) -> None:
        """A fetch with the session must leave the client with what a full fetch returns."""
        full = FetchRequest(
            session_epoch=-1, max_bytes=1 << 20, topics=topics_of(client.offsets, client.ids)
        )
        expected = partitions_of(await self.apis.ask(API, full, self.version), client.ids)
        found = await self.fetch(client, self.version)
        assert found.keys() <= expected.keys()
        for name, data in expected.items():
            if data.records or data.error_code:
                assert found[name] == data
            offsets = data.error_code, data.high_watermark, data.log_start_offset
            assert client.view[name] == offsets, (name, client.view)


@pytest.mark.parametrize("seed", range(20))
async def test_incremental_client_sees_what_full_fetches_return(
    log_apis: Any, fetch: Fetch, append: Append, seed: int
) -> None:
    await Schedule(log_apis, fetch, append, seed).run(60)
