"""A client and another one that makes the broker read large batches.

Owns the batch and the requests of both clients: one produces a record at a time, while the other
one produces batches or searches one by time, without a pause. Invariant: the second client's
requests are answered without an error.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from minibroker_protocol.compression import Compression
from minibroker_protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.schema import Message
from system_tests.benchmarks.client import RunFailed
from system_tests.benchmarks.frames import repeat, versioned
from system_tests.benchmarks.measures import Figures, topic_of
from system_tests.benchmarks.peers import Peer
from system_tests.harness.batches import FIRST_MS
from system_tests.peers.records import produce

CHECKS: Final = "one record during checks of large batches"
SEARCHES: Final = "one record during searches in large batches"
RECORDS: Final = 300_000
REQUESTS: Final = 500


def neighbor(peer: Peer) -> Figures:
    """Produce one record at a time while another client has large batches checked or searched."""
    figures: Figures = {}
    with topic_of(peer, "large", 1) as large, topic_of(peer, "small", 1) as small:
        with versioned(peer) as connection:
            one = connection.frame(produce(small, build_batch([Record(timestamp=FIRST_MS)])))
        for row, request in ((CHECKS, produce(large, large_batch())), (SEARCHES, search(large))):
            with repeating(peer, request):
                seen = repeat(peer, [one], REQUESTS, alike=False)
            figures[f"{row}, median"] = seen.median_us
            figures[f"{row}, p99"] = seen.p99_us
    return figures


@contextmanager
def repeating(peer: Peer, request: Message) -> Iterator[None]:
    """Another client that sends a request again and again."""
    ended, failures = threading.Event(), list[Exception]()

    def work() -> None:
        try:
            with versioned(peer) as connection:
                while not ended.is_set():
                    connection.ask_until_accepted(request)
        except (OSError, RunFailed) as failure:
            failures.append(failure)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if failures:
        raise failures[0]


def large_batch() -> bytes:
    """A batch of records of different sizes; the last one is later than all others."""
    records = [Record(timestamp=FIRST_MS, value=b"x" * (i % 3)) for i in range(RECORDS - 1)]
    return build_batch([*records, Record(timestamp=FIRST_MS + 1)], compression=Compression.ZSTD)


def search(topic: str) -> ListOffsetsRequest:
    """A search for the last record of the first batch."""
    part = ListOffsetsPartition(partition_index=0, timestamp=FIRST_MS + 1)
    return ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[part])]
    )
