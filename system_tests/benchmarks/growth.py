"""Growth of a broker's figures with connections, partitions, and the size of records and batches.

Owns the steps and amounts; it starts no peer and draws nothing. Invariant: every step is a Produce
request for one partition, sent by the same client, and only one thing grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from system_tests.benchmarks.frames import Versioned, repeat, versioned
from system_tests.benchmarks.measures import SMALL_RECORD_BYTES, Figures, topic_of
from system_tests.benchmarks.peers import Peer
from system_tests.harness.waiting import wait_until

CONNECTIONS: Final = (1, 8, 64, 512, 5_000)
PARTITION_COUNTS: Final = (1, 100, 1_000)
"""Creating and deleting 10,000 in each round takes Kafka minutes on a small machine."""
BATCHES: Final = (1, 10, 100, 1_000)
SIZES: Final = (100, 1_000, 10_000, 100_000, 1_000_000)
PARTITIONS: Final = 8
REQUESTS: Final = 8_000
BYTES_OF_A_SIZE: Final = 100_000_000
REQUESTS_OF_A_SIZE: Final = 2_000


def with_connections(count: int) -> str:
    return f"Produce over {count} connections" if count > 1 else "Produce over one connection"


def with_partitions(count: int) -> str:
    return f"Produce to {count:,} partitions in turn, median"


def with_batch(count: int) -> str:
    return f"Produce of {count:,} 100-byte records, median"


def with_size(size: int) -> str:
    return f"Produce of one {size:,}-byte record, median"


def connections(peer: Peer) -> Figures:
    """Requests per second with one in flight on each connection, over eight partitions."""
    found: Figures = {}
    with topic_of(peer, "growth", PARTITIONS) as topic, versioned(peer) as connection:
        requests = ready(connection, topic, range(PARTITIONS), SMALL_RECORD_BYTES)
        for count in CONNECTIONS:
            seen = repeat(peer, requests, REQUESTS, connections=count, alike=False)
            found[with_connections(count)] = REQUESTS / seen.seconds
    return found


def partitions(peer: Peer) -> Figures:
    """The median of one request at a time, each to the next partition of a topic."""
    found: Figures = {}
    for count in PARTITION_COUNTS:
        with topic_of(peer, "growth", count) as topic, versioned(peer) as connection:
            requests = ready(connection, topic, range(count), SMALL_RECORD_BYTES)
            seen = repeat(peer, requests, max(REQUESTS, count), alike=False)
            found[with_partitions(count)] = seen.median_us
    return found


def sizes(peer: Peer) -> Figures:
    """The median of one request at a time with one record, by the size of its value."""
    found: Figures = {}
    with topic_of(peer, "growth", 1) as topic, versioned(peer) as connection:
        for size in SIZES:
            requests = ready(connection, topic, [0], size)
            count = min(REQUESTS_OF_A_SIZE, BYTES_OF_A_SIZE // size)
            found[with_size(size)] = repeat(peer, requests, count, alike=False).median_us
    return found


def batches(peer: Peer) -> Figures:
    """The median of one request at a time with one batch, by the number of its records."""
    found: Figures = {}
    with topic_of(peer, "growth", 1) as topic, versioned(peer) as connection:
        for records in BATCHES:
            requests = ready(connection, topic, [0], SMALL_RECORD_BYTES, records)
            seen = repeat(peer, requests, REQUESTS_OF_A_SIZE, alike=False)
            found[with_batch(records)] = seen.median_us
    return found


def ready(
    connection: Versioned, topic: str, partitions: Sequence[int], size: int, records: int = 1
) -> Sequence[bytes]:
    """Return a request for each partition, once each of these has a leader."""
    requests = [produce(topic, partition, size, records) for partition in partitions]
    for request in requests:
        wait_until(partial(is_written, connection, request), "the partition to have a leader")
    return [connection.frame(request) for request in requests]


def is_written(connection: Versioned, request: ProduceRequest) -> bool:
    [topic] = connection.ask(request).responses
    return all(each.error_code == 0 for each in topic.partition_responses)


def produce(topic: str, partition: int, size: int, records: int) -> ProduceRequest:
    batch = build_batch([Record(value=bytes(size), offset=offset) for offset in range(records)])
    data = [PartitionProduceData(index=partition, records=batch)]
    return ProduceRequest(
        acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
    )
