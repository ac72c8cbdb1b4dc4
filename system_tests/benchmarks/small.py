"""Measures of small requests: many producers, one core, end to end, waiting consumers, idle
connections.

Owns amounts and row names; it starts no peer and prints nothing. Invariant: as with all measures, a
peer is unchanged afterwards, except for its own topics.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from system_tests.benchmarks.client import SMALL, many_producers, run
from system_tests.benchmarks.frames import Versioned, repeat, versioned
from system_tests.benchmarks.measures import (
    SMALL_RECORD_BYTES,
    Figures,
    cpu_seconds,
    topic_of,
)
from system_tests.benchmarks.peers import Peer
from system_tests.benchmarks.pinning import pinned
from system_tests.connections.dialling import Client
from system_tests.harness.processes import resident_bytes, tree
from system_tests.harness.waiting import wait_until

PRODUCERS: Final = (8, 64)
PARTITIONS: Final = 8
PRODUCING_MS: Final = 1500
PINNED: Final = "same, broker and client on one core"
END_TO_END: Final = "100-byte record, produce to consume"
PAUSE_US: Final = 500
CONSUMERS: Final = 8
MAX_WAIT_MS: Final = 5
POLL_CPU: Final = "broker's CPU per Fetch without records"
IDLE: Final = 5000
IDLE_FIRST: Final = 50
AT_ONCE: Final = 32
"""Fewer than a listener's backlog: a connection above it would be tried again after a second."""
IDLE_MEMORY: Final = "memory of an idle connection"
SPARE_DESCRIPTORS: Final = 500


def requests_of(producers: int) -> str:
    """The row of the requests per second."""
    return f"{producers} producers, one record in flight each"


def cpu_of(producers: int) -> str:
    return f"{producers} producers: broker's CPU per request"


def producers(peer: Peer, count: int) -> Figures:
    """Many producers of one process, each with one record in flight, over eight partitions."""
    with (
        topic_of(peer, "producers", PARTITIONS) as topic,
        many_producers(
            peer.servers, topic, count, SMALL_RECORD_BYTES, PARTITIONS, ms=PRODUCING_MS
        ) as client,
    ):
        used = cpu_seconds(peer.pid)
        seen = client.produce()
        used = cpu_seconds(peer.pid) - used
    return {
        requests_of(count): seen["requests"] / seen["seconds"],
        cpu_of(count): used / seen["requests"] * 1e6,
    }


def one_pinned(peer: Peer, count: int) -> Figures:
    """One acknowledged record at a time, with all of the broker and the client on one core."""
    with topic_of(peer, "pinned", 1) as topic, pinned(peer.pid):
        seen = run("one", peer.servers, topic, count, SMALL_RECORD_BYTES)
    return {f"{PINNED}, median": seen["median_us"], f"{PINNED}, p99": seen["p99_us"]}


def end_to_end(peer: Peer, count: int) -> Figures:
    """From the call that produces a record to its arrival at a consumer that waits in Fetch."""
    with topic_of(peer, "end-to-end", 1) as topic:
        seen = run(
            "end-to-end", peer.servers, topic, count, SMALL_RECORD_BYTES, PAUSE_US, program=SMALL
        )
    return {f"{END_TO_END}, median": seen["median_us"], f"{END_TO_END}, p99": seen["p99_us"]}


def polls(peer: Peer, count: int) -> Figures:
    """Consumers that wait `MAX_WAIT_MS` on an empty partition each, without a fetch session, as
    librdkafka does.
    """
    with topic_of(peer, "polls", CONSUMERS) as topic, versioned(peer) as connection:
        fetches = [fetch(topic, number) for number in range(CONSUMERS)]
        for each in fetches:
            wait_until(partial(has_leader, connection, each), "the partition to have a leader")
        requests = [connection.frame(each) for each in fetches]
        used = cpu_seconds(peer.pid)
        seen = repeat(peer, requests, count, connections=CONSUMERS, alike=False)
        used = cpu_seconds(peer.pid) - used
    return {POLL_CPU: used / seen.answers * 1e6}


def fetch(topic: str, partition: int) -> FetchRequest:
    wanted = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=MAX_WAIT_MS,
        min_bytes=1,
        max_bytes=50 << 20,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )


def has_leader(connection: Versioned, request: FetchRequest) -> bool:
    [topic] = connection.ask(request).responses
    return all(partition.error_code == 0 for partition in topic.partitions)


def idle_connections(peer: Peer, count: int = IDLE) -> Figures:
    """The growth of the broker's memory by connections that had one request and stay.

    It is measured once for each broker, as memory that was used before is used again. Some
    connections are there before, for what the first ones need.
    """
    host, port = peer.servers.split(",")[0].rsplit(":", 1)
    allow_descriptors(count + SPARE_DESCRIPTORS)
    with ExitStack() as stack:

        def connect(wanted: int) -> None:
            for first in range(0, wanted, AT_ONCE):
                at_once = range(first, min(first + AT_ONCE, wanted))
                answer_all([stack.enter_context(Client((host, int(port)))) for _ in at_once])

        connect(IDLE_FIRST)
        before = resident_bytes(tree(peer.pid))
        connect(count)
        after = resident_bytes(tree(peer.pid))
    return {IDLE_MEMORY: (after - before) / count / 1000}


def answer_all(connected: Sequence[Client]) -> None:
    """Send a request over each connection and wait for the responses."""
    for client in connected:
        client.send_first_request()
    for client in connected:
        if not client.answered():
            raise ConnectionResetError("the broker closed an idle connection")


def allow_descriptors(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
