"""Small Produce requests that would cost a broker much: counts, bombs and garbage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from protocol.compression import Compression
from protocol.errors import ErrorCode
from protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from protocol.records import HEADER_BYTES, Record, build_batch
from system_tests.clients.adapters.confluent import ConfluentClient
from system_tests.clients.model import Record as Sent
from system_tests.clients.model import drain
from system_tests.connections.dialling import Client
from system_tests.faults.conftest import Starter
from system_tests.harness.batches import with_section
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.processes import private_bytes, tree
from system_tests.peers.records import produce

pytestmark = pytest.mark.minibroker

Names = Callable[[str], str]
MEMORY_GROWTH_MAX_BYTES = 250 * 1024 * 1024
"""Twice the bytes that a batch may decompress to, and room for ordinary work."""
LARGE_BATCH_RECORDS = 1_000_000
SERVED_MEANWHILE_MIN = 5
"""A neighbor that waits for a batch is acknowledged at most one record in its time, and one
on either side of it."""


def code(client: Client, topic: str, batch: bytes) -> int:
    response = client.ask(produce(topic, batch), 9)
    return int(response.responses[0].partition_responses[0].error_code)


def zeros(count: int) -> bytes:
    """``count`` bytes that compress to almost nothing."""
    return bytes(count)


@contextmanager
def neighbour(broker: RunningBroker, topic: str) -> Iterator[Callable[[], int]]:
    """A client that produces to ``topic`` all the time; yields its acknowledged count."""
    client = ConfluentClient(broker.bootstrap_servers)
    acknowledged, ending = [0], threading.Event()

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
    admin = ConfluentClient(broker.bootstrap_servers)
    admin.create_topic(topic)
    admin.create_topic(other)
    section = build_batch([Record()] * LARGE_BATCH_RECORDS)[HEADER_BYTES:]
    batch = with_section(section, LARGE_BATCH_RECORDS, Compression.ZSTD)
    with neighbour(broker, other) as acknowledged, Client(broker.address) as attacker:
        for _ in range(3):
            before = acknowledged()
            assert code(attacker, topic, batch) == ErrorCode.NONE
            served = acknowledged() - before
            assert served >= SERVED_MEANWHILE_MIN, "the neighbor waited for the attacker's batch"
        for _ in range(3):
            part = ListOffsetsPartition(partition_index=0, timestamp=2**60, current_leader_epoch=-1)
            topics = [ListOffsetsTopic(name=topic, partitions=[part])]
            attacker.ask(ListOffsetsRequest(replica_id=-1, topics=topics), 7)


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
