"""Requests that are executed in a single step get the bytes of the general way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.apis.single_fetch import COPIED_BYTES_MAX
from minibroker.broker.log.log import FileSlice
from minibroker.broker.log.paths import replaced_path
from minibroker.broker.network.open_files import OpenFiles
from minibroker.broker.network.single_requests import SingleRequests
from minibroker_protocol.compression import Compression
from minibroker_protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from minibroker_protocol.messages.delete_topics import DeleteTopicsRequest
from minibroker_protocol.messages.end_txn import EndTxnRequest
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.init_producer_id import InitProducerIdRequest
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.schema import Message
from tests.broker.network.one_broker import another, assert_single_step_changes_nothing, running
from tests.simulation.client import SimulatedClient

VERSIONS = range(3, 14)
NO_ID = bytes(16)


def batch(
    text: bytes = b"v",
    *,
    timestamp: int = 0,
    sequence: int = -1,
    compression: Compression = Compression.NONE,
) -> bytes:
    producer_id = -1 if sequence < 0 else 7
    return build_batch(
        [Record(timestamp=timestamp, key=b"k", value=text)],
        compression=compression,
        producer_id=producer_id,
        producer_epoch=min(producer_id, 0),
        base_sequence=sequence,
    )


def produce(
    records: bytes | None, *, topic: str = "t", index: int = 0, acks: int = -1, **named: Any
) -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=records)]
    topics = [
        TopicProduceData(name=topic, topic_id=named.pop("topic_id", NO_ID), partition_data=data)
    ]
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=topics, **named)


async def topic_id(client: SimulatedClient) -> bytes:
    found = await client.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12)
    return bytes(found.topics[0].topic_id)


def requests(known: bytes) -> list[ProduceRequest]:
    """Requests of all kinds: most are executed in a single step, and some must not be."""
    ordinary = [produce(batch(bytes([n])), index=n % 2, acks=(1, -1)[n % 2]) for n in range(4)]
    sequences = [produce(batch(sequence=n)) for n in (0, 1, 1, 3, 0)]
    damaged = bytearray(batch())
    damaged[-1] ^= 1
    found = [
        *ordinary,
        *sequences,
        produce(bytes(damaged)),
        produce(batch() + batch()),
        produce(b""),
        produce(None),
        produce(batch(), topic="missing"),
        produce(batch(), topic="__consumer_offsets"),
        produce(batch(), index=9),
        produce(batch(), acks=5),
        produce(batch(), transactional_id="x"),
        produce(batch(compression=Compression.ZSTD)),
        produce(batch(compression=Compression.GZIP)),
        produce(batch(timestamp=2**62)),
    ]
    two = produce(batch())
    two.topic_data = two.topic_data * 2
    tagged = produce(batch())
    tagged.topic_data[0].unknown_tagged_fields = {9: b"x"}
    found += [two, tagged]
    for request in found:
        for topic in request.topic_data:
            topic.topic_id = known if topic.name == "t" else NO_ID
    return found


@pytest.mark.parametrize("version", VERSIONS)
async def test_single_produce_gets_the_bytes_of_the_general_way(
    version: int, tmp_path: Path, autojump_clock: MockClock, direct: list[int]
) -> None:
    async def play(client: SimulatedClient) -> list[bytes]:
        known, answers = await topic_id(client), []
        for request in requests(known):
            await client.ask(request, version)
            answers.append(client.received.replace(known, b"topic id"))
        return answers

    await assert_single_step_changes_nothing(tmp_path, autojump_clock, play)
    assert len(direct) >= 8


def transactional(
    sequence: int, epoch: int, transactional_id: str | None = "x", producer_id: int = 0
) -> dict[str, Any]:
    records = build_batch(
        [Record(0, 0, b"k", b"v")],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    return {"records": records, "transactional_id": transactional_id}


def end(epoch: int, transactional_id: str = "x", *, committed: bool = True) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=0,
        producer_epoch=epoch,
        committed=committed,
    )


def add_partitions(
    epoch: int, indexes: tuple[int, ...] = (0, 1), topic: str = "t", transactional_id: str = "x"
) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=0,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(indexes))],
    )


def additions(epoch: int) -> list[AddPartitionsToTxnRequest]:
    return [
        add_partitions(epoch),
        add_partitions(epoch),  # again
        add_partitions(epoch, (1, 9)),
        add_partitions(epoch, ()),
        add_partitions(epoch + 1),
        add_partitions(epoch, topic="missing"),
        add_partitions(epoch, topic="__consumer_offsets"),
        add_partitions(epoch, transactional_id=""),
        add_partitions(epoch, transactional_id="other"),
    ]


def transaction_requests(known: bytes, *, adds: bool) -> list[Any]:
    """Transactions as they should be, and requests with something wrong between them."""
    found: list[Any] = []
    for number in range(3):
        epoch = number if adds else 0
        first = 0 if adds else 2 * number
        found += [
            *([] if adds else additions(epoch)),
            transactional(first, epoch),
            transactional(first, epoch),  # again
            transactional(first + 1, epoch),
            transactional(first + 9, epoch),
            transactional(first + 2, epoch, transactional_id=None),
            transactional(first + 2, epoch, transactional_id="other"),
            transactional(0, epoch, producer_id=77),
            end(epoch + 5),
            end(epoch, transactional_id=""),
            end(epoch, transactional_id="other"),
            end(epoch, committed=number != 1),
            end(epoch, committed=number != 1),
            end(epoch, committed=number == 1),
        ]
    found.append(transactional(8, 0))
    return [
        produce(each["records"], transactional_id=each["transactional_id"], topic_id=known)
        if isinstance(each, dict)
        else each
        for each in found
    ]


@pytest.mark.parametrize(
    "versions", [(9, 1, 0), (10, 3, 3), (11, 4, 2), (12, 5, 3), (13, 5, 3)], ids=str
)
async def test_requests_of_transactions_get_the_bytes_of_the_general_way(
    versions: tuple[int, int, int], tmp_path: Path, autojump_clock: MockClock, direct: list[int]
) -> None:
    kinds: list[type[Message]] = [ProduceRequest, EndTxnRequest, AddPartitionsToTxnRequest]
    version_of = dict(zip(kinds, versions, strict=True))

    async def play(client: SimulatedClient) -> list[bytes]:
        known, answers = await topic_id(client), []
        await client.ask(FindCoordinatorRequest(key="x", key_type=1), 2)
        begun = await client.ask(
            InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000), 4
        )
        assert (begun.error_code, begun.producer_id) == (0, 0)
        for request in transaction_requests(known, adds=versions[0] >= 12):
            await client.ask(request, version_of[type(request)])
            answers.append(client.received.replace(known, b"topic id"))
            await trio.sleep(1)  # The markers are written.
        response = await client.ask(fetch(known, isolation_level=1), 11)
        answers.append(bytes(response.responses[0].partitions[0].records))
        return answers

    await assert_single_step_changes_nothing(tmp_path, autojump_clock, play)
    assert len(direct) >= 3 * 3


FETCH_VERSIONS = range(4, 19)
WAIT_MS = 300


def fetch(
    known: bytes, offset: int = 0, *, wait_ms: int = 0, topic: str = "t", **named: Any
) -> FetchRequest:
    partition = FetchPartition(
        partition=named.pop("partition", 0),
        fetch_offset=offset,
        partition_max_bytes=named.pop("partition_max_bytes", 1000),
        current_leader_epoch=named.pop("leader_epoch", -1),
        last_fetched_epoch=named.pop("last_fetched_epoch", -1),
        log_start_offset=-1,
    )
    topic_id = known if topic == "t" else NO_ID
    topics = [FetchTopic(topic=topic, topic_id=topic_id, partitions=[partition])]
    given = {"min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1, **named}
    return FetchRequest(replica_id=-1, max_wait_ms=wait_ms, topics=topics, **given)


def fetches(known: bytes) -> list[FetchRequest]:
    """Fetches of all kinds: most are executed in a single step, and some must not be."""
    two = fetch(known)
    two.topics = two.topics * 2
    return [
        fetch(known),
        fetch(known, 2),
        fetch(known, 1, isolation_level=1),
        fetch(known, max_bytes=1),
        fetch(known, partition_max_bytes=1),
        fetch(known, 3, wait_ms=WAIT_MS),
        fetch(known, 3, isolation_level=1, wait_ms=WAIT_MS),
        fetch(known, 3, min_bytes=0),
        fetch(known, 9),
        fetch(known, -1),
        fetch(known, partition=1, wait_ms=WAIT_MS),
        fetch(known, partition=7),
        fetch(known, topic="missing"),
        fetch(known, leader_epoch=0),
        fetch(known, leader_epoch=5),
        fetch(known, 2, last_fetched_epoch=0),
        fetch(known, session_id=7, session_epoch=3),
        two,
    ]


@pytest.mark.parametrize("version", FETCH_VERSIONS)
async def test_single_fetch_gets_the_bytes_of_the_general_way(
    version: int, tmp_path: Path, autojump_clock: MockClock, direct: list[int]
) -> None:
    async def play(client: SimulatedClient) -> list[tuple[float, bytes]]:
        known, answers = await topic_id(client), []
        for number in range(3):
            await client.ask(produce(batch(bytes([number]))), 9)
        for request in fetches(known):
            began = trio.current_time()
            await client.ask(request, version)
            took = round(trio.current_time() - began, 3)
            answers.append((took, client.received.replace(known, b"topic id")))
        return answers

    await assert_single_step_changes_nothing(tmp_path, autojump_clock, play)
    assert len(direct) >= 8 + 3


@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_waiting_fetch_is_answered_when_a_record_arrives(
    tmp_path: Path, autojump_clock: MockClock, isolation_level: int, direct: list[int]
) -> None:
    async with running(tmp_path, autojump_clock, "combined") as client:
        known = await topic_id(client)
        began = trio.current_time()
        request = fetch(known, wait_ms=60_000, isolation_level=isolation_level)
        await client.send_request(request, 11)
        await trio.sleep(1)
        producer = await another(client)
        await producer.ask(produce(batch(b"late")), 9)
        response = await client.answer(1, 11)
        assert round(trio.current_time() - began, 3) == 1
        [partition] = response.responses[0].partitions
        assert bytes(partition.records).endswith(b"late\0")
    assert len(direct) == 2


async def test_waiting_fetch_of_a_deleted_topic_gets_an_error_at_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock, "combined") as client:
        known = await topic_id(client)
        began = trio.current_time()
        await client.send_request(fetch(known, wait_ms=60_000), 11)
        await trio.sleep(1)
        names = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
        await (await another(client)).ask(names, 4)
        response = await client.answer(1, 11)
        assert trio.current_time() - began < 2
        assert response.responses[0].partitions[0].error_code == 3


async def test_records_that_are_sent_from_the_file_go_the_general_way(
    tmp_path: Path, autojump_clock: MockClock, direct: list[int]
) -> None:
    async with running(tmp_path, autojump_clock, "combined") as client:
        known = await topic_id(client)
        await client.ask(produce(batch(bytes(COPIED_BYTES_MAX))), 9)
        response = await client.ask(fetch(known, partition_max_bytes=1 << 20), 11)
        assert len(response.responses[0].partitions[0].records) > COPIED_BYTES_MAX
    assert direct == []


def test_read_gets_the_file_of_the_slice_after_a_cleaned_copy_took_its_name(
    tmp_path: Path,
) -> None:
    unused: Any = None
    single = SingleRequests({}, unused, unused, OpenFiles(64), unused)
    path = tmp_path / "0.log"
    path.write_bytes(b"replaced")
    before = FileSlice(str(path), 0, 8, path.stat().st_ino)
    assert single.read(before) == b"replaced"
    path.rename(replaced_path(str(path), before.inode))
    path.write_bytes(b"cleaned")
    cleaned = FileSlice(str(path), 0, 7, path.stat().st_ino)
    assert single.read(cleaned) == b"cleaned"
    assert single.read(before) == b"replaced"
