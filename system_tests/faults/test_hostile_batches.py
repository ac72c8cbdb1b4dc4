"""Small Produce requests that would cost a broker much: counts, bombs and garbage."""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from minibroker.broker.log.validation import STEP_RECORDS_MAX
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
from minibroker_protocol.records import HEADER_BYTES, Record, build_batch
from system_tests.clients.adapters.confluent import ConfluentClient
from system_tests.clients.model import Record as Sent
from system_tests.clients.model import drain
from system_tests.connections.dialling import Client
from system_tests.faults.conftest import Starter
from system_tests.harness.batches import FIRST_MS, with_section
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.processes import private_bytes, tree
from system_tests.harness.waiting import wait_until
from system_tests.peers.records import produce

pytestmark = pytest.mark.minibroker

Names = Callable[[str], str]
MEMORY_GROWTH_MAX_BYTES = 250 * 1024 * 1024
"""Twice the bytes that a batch may decompress to, and room for ordinary work."""
LARGE_BATCH_RECORDS = 1_000_000
SERVED_MIN = 5
"""A neighbor that waits for a batch is acknowledged at most one record in its time, and one
on either side of it."""
MANY_PARTITIONS = 50
PRODUCE_TIME = re.compile(
    r'^minibroker_request_(network|io)_seconds_(sum|count){api="Produce"} (\S+)$', re.MULTILINE
)


def code(client: Client, topic: str, batch: bytes) -> int:
    response = client.ask(produce(topic, batch), 9)
    return int(response.responses[0].partition_responses[0].error_code)


def create_topics(broker: RunningBroker, *topics: str, partitions: int = 1) -> None:
    admin = ConfluentClient(broker.bootstrap_servers)
    for topic in topics:
        admin.create_topic(topic, partitions)
    admin.close()


def large_batch() -> bytes:
    """A batch whose last record has a later timestamp than all others."""
    records = [Record(timestamp=FIRST_MS)] * (LARGE_BATCH_RECORDS - 1)
    section = build_batch([*records, Record(timestamp=FIRST_MS + 1)])[HEADER_BYTES:]
    return with_section(section, LARGE_BATCH_RECORDS, Compression.ZSTD, max_timestamp=FIRST_MS + 1)


def search_for_last(topic: str) -> ListOffsetsRequest:
    """A search that reads all records of ``large_batch``."""
    part = ListOffsetsPartition(partition_index=0, timestamp=FIRST_MS + 1, current_leader_epoch=-1)
    topics = [ListOffsetsTopic(name=topic, partitions=[part])]
    return ListOffsetsRequest(replica_id=-1, topics=topics)


def produce_seconds(broker: RunningBroker, requests: int) -> float:
    """Worked time of so many Produce requests, once the metrics contain them all."""

    def look() -> float:
        assert broker.control_url is not None
        with urllib.request.urlopen(broker.control_url.rstrip("/") + "/metrics") as page:
            text = page.read().decode()
        found = {(part, kind): float(value) for part, kind, value in PRODUCE_TIME.findall(text)}
        if found.get(("io", "count"), 0) < requests:
            return 0.0
        return found["io", "sum"] + found["network", "sum"]

    return wait_until(look, f"{requests} Produce requests in the metrics")


def loop_seconds(broker: RunningBroker) -> float:
    """CPU time of the main threads of all processes of the broker, which run the event loops."""
    return sum(
        int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9
        for pid in tree(broker.pid)
    )


def zeros(count: int) -> bytes:
    """``count`` bytes that compress to almost nothing."""
    return bytes(count)


@contextmanager
def neighbor(broker: RunningBroker, topic: str) -> Iterator[Callable[[], int]]:
    """A client that produces to ``topic`` all the time; yields its acknowledged count.

    It has connected and produced once before: on a busy machine that alone takes longer than a
    check of a large batch.
    """
    client = ConfluentClient(broker.bootstrap_servers)
    client.produce(topic, [Sent(b"k", b"v")])
    acknowledged, ending = [1], threading.Event()

    def work() -> None:
        while not ending.is_set():
            client.produce(topic, [Sent(b"k", b"v")])
            acknowledged[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield lambda: acknowledged[0]
    finally:
        ending.set()
        thread.join()
        client.close()


def test_counts_and_bombs_are_rejected_within_bounded_memory(start: Starter, fresh: Names) -> None:
    broker, topic = start(), fresh("bombs")
    ConfluentClient(broker.bootstrap_servers).create_topic(topic)
    before = sum(private_bytes(pid) for pid in tree(broker.pid))
    peak = before
    with Client(broker.address) as client:
        for section, count in (
            (zeros(24_000_000), 4_000_000),
            (zeros(1_000_000), 2**31 - 1),
            (zeros(1_000_000_000), 1),
        ):
            batch = with_section(section, count, Compression.ZSTD)
            assert code(client, topic, batch) == ErrorCode.INVALID_RECORD
            peak = max(peak, sum(private_bytes(pid) for pid in tree(broker.pid)))
    assert peak - before < MEMORY_GROWTH_MAX_BYTES


def test_garbage_does_not_reach_consumers(start: Starter, fresh: Names) -> None:
    broker, topic = start(), fresh("garbage")
    client = ConfluentClient(broker.bootstrap_servers)
    client.create_topic(topic)
    with Client(broker.address) as raw:
        for codec in Compression:
            garbage = with_section(b"\x55" * 100, 3, codec)
            assert code(raw, topic, garbage) == ErrorCode.INVALID_RECORD
    client.produce(topic, [Sent(b"k", b"good")])
    member = client.join(fresh("group"), topic)
    assert [record.value for record in drain(member, 1)] == [b"good"]
    member.close()


@pytest.mark.alone
def test_others_are_served_while_large_batches_are_checked_and_searched(
    start: Starter, fresh: Names
) -> None:
    broker = start("--set", "num.io.threads=1", "--set", "message.max.bytes=16777216")
    topic, other = fresh("large"), fresh("other")
    create_topics(broker, topic, other)
    batch = large_batch()
    with neighbor(broker, other) as acknowledged, Client(broker.address) as attacker:
        for _ in range(3):
            before = acknowledged()
            assert code(attacker, topic, batch) == ErrorCode.NONE
            checked = acknowledged()
            attacker.ask(search_for_last(topic), 7)
            searched = acknowledged()
            assert checked - before >= SERVED_MIN, "the neighbor waited for a check"
            assert searched - checked >= SERVED_MIN, "the neighbor waited for a search"


@pytest.mark.alone
def test_others_are_served_while_many_batches_are_checked(start: Starter, fresh: Names) -> None:
    broker = start("--set", "num.io.threads=1")
    topic, other = fresh("many"), fresh("other")
    create_topics(broker, other)
    create_topics(broker, topic, partitions=MANY_PARTITIONS)
    records = [Record(timestamp=FIRST_MS, value=bytes(i % 3)) for i in range(STEP_RECORDS_MAX // 2)]
    batch = build_batch(records, compression=Compression.ZSTD)
    data = [PartitionProduceData(index=i, records=batch) for i in range(MANY_PARTITIONS)]
    request = ProduceRequest(
        acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
    )
    with neighbor(broker, other) as acknowledged, Client(broker.address) as attacker:
        before = acknowledged()
        response = attacker.ask(request, 9)
        served = acknowledged() - before
    errors = {each.error_code for each in response.responses[0].partition_responses}
    assert errors == {ErrorCode.NONE}
    assert served >= MANY_PARTITIONS, "the neighbor waited for more than one batch at a time"


@pytest.mark.alone
def test_others_are_not_charged_for_a_search(start: Starter, fresh: Names) -> None:
    broker = start("--set", "message.max.bytes=16777216")
    topic, other = fresh("large"), fresh("other")
    create_topics(broker, topic, other)
    record, count = build_batch([Record(timestamp=FIRST_MS, value=b"v")]), 0
    with Client(broker.address) as attacker, Client(broker.address) as client:
        assert code(attacker, topic, large_batch()) == ErrorCode.NONE
        charged_s, cpu_s = produce_seconds(broker, 1), loop_seconds(broker)
        attacker.send(search_for_last(topic), 7)
        while attacker.received_nothing():
            assert code(client, other, record) == ErrorCode.NONE
            count += 1
        charged_s = produce_seconds(broker, 1 + count) - charged_s
    assert charged_s <= loop_seconds(broker) - cpu_s


def test_offsets_topic_rejects_clients_and_bad_record_is_skipped(
    start: Starter, fresh: Names, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    broker, group, topic = start(data_dir=data), fresh("group"), fresh("t")
    client = ConfluentClient(broker.bootstrap_servers)
    client.create_topic(topic)
    client.produce(topic, [Sent(b"k", b"v")] * 5)
    member = client.join(group, topic)
    drain(member, 5)
    member.commit()
    member.close()
    forged = build_batch([Record(key=b"\0\1\0\1g", value=b"\0\x63")])
    with Client(broker.address) as raw:
        assert code(raw, "__consumer_offsets", forged) == ErrorCode.INVALID_TOPIC_EXCEPTION
    with Client(broker.address, client_id="__admin_client") as raw:
        for partition in range(50):
            response = raw.ask(produce("__consumer_offsets", forged, partition), 9)
            assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    assert broker.stop() == 0
    broker.forget()
    broker = start(data_dir=data)
    again = ConfluentClient(broker.bootstrap_servers).join(group, topic)
    assert "is skipped: a record that cannot be read" in broker.printed()
    again.close()
