"""Measures of transactional producers, and of others that share a partition with them.

Owns amounts and row names; it starts no peer and prints nothing. Invariant: every committed
transaction ends before the next one of its producer, so the broker decides as often as clients do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from minibroker_protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from minibroker_protocol.messages.end_txn import EndTxnRequest
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from system_tests.benchmarks.client import TRANSACTIONS, run
from system_tests.benchmarks.frames import Versioned, repeat, versioned
from system_tests.benchmarks.measures import SMALL_RECORD_BYTES, Figures, cpu_seconds, topic_of
from system_tests.benchmarks.peers import Peer

PRODUCERS: Final = (1, 8)
PARTITIONS: Final = 4
RECORDS: Final = 100
COUNT: Final = 600
"""Transactions of all producers together."""
OPEN: Final = 100
"""Transactions that are open in a partition."""
OPEN_TIMEOUT_MS: Final = 600_000
TURNS: Final = 5
REQUESTS: Final = 4_000

WITHOUT: Final = "Produce without transactions: broker's CPU"
BESIDE: Final = f"Produce without transactions, {OPEN} open in the partition: broker's CPU"
RATIO: Final = "Produce without transactions, with to without open ones"


def rate_of(producers: int) -> str:
    """The row of the transactions per second."""
    who = "one producer" if producers == 1 else f"{producers} producers"
    return f"transactions of {RECORDS} records, {who}"


def median_of(producers: int) -> str:
    return f"{rate_of(producers)}, median"


def cpu_of(producers: int) -> str:
    return f"{rate_of(producers)}: broker's CPU"


def commits(peer: Peer) -> Figures:
    """Commit transactions, of one producer and of several at a time."""
    figures: Figures = {}
    for producers in PRODUCERS:
        with topic_of(peer, "transactions", PARTITIONS) as topic:
            numbers = (COUNT // producers, SMALL_RECORD_BYTES, PARTITIONS, RECORDS, producers)
            used = cpu_seconds(peer.pid)
            seen = run("commit", peer.servers, topic, *numbers, program=TRANSACTIONS)
            used = cpu_seconds(peer.pid) - used
        figures[rate_of(producers)] = seen["transactions"] / seen["seconds"]
        figures[median_of(producers)] = seen["median_us"]
        figures[cpu_of(producers)] = used / seen["all_transactions"] * 1e6
    return figures


def beside(peer: Peer) -> Figures:
    """Produce outside of transactions, to partitions with and without open ones in turns."""
    seconds = dict.fromkeys((WITHOUT, BESIDE), 0.0)
    answers = dict.fromkeys((WITHOUT, BESIDE), 0)
    with (
        topic_of(peer, "plain", 1) as plain,
        topic_of(peer, "transactional", 1) as shared,
        versioned(peer) as connection,
        open_transactions(connection, shared),
    ):
        frames = {
            WITHOUT: connection.frame(produce(plain)),
            BESIDE: connection.frame(produce(shared)),
        }
        for turn in range(TURNS):
            for row in frames if turn % 2 else reversed(frames):
                seconds[row] -= cpu_seconds(peer.pid)
                answers[row] += repeat(peer, [frames[row]], REQUESTS, alike=False).answers
                seconds[row] += cpu_seconds(peer.pid)
    figures = {row: seconds[row] / answers[row] * 1e6 for row in frames}
    return {**figures, RATIO: figures[BESIDE] / figures[WITHOUT]}


@contextmanager
def open_transactions(connection: Versioned, topic: str) -> Iterator[None]:
    """Keep transactions open in the first partition of a topic, one of each producer."""
    names = [f"open-{number}" for number in range(OPEN)]
    producers = {name: began(connection, name, topic) for name in names}
    yield
    for name, producer in producers.items():
        connection.ask_until_accepted(
            EndTxnRequest(
                transactional_id=name,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                committed=False,
            )
        )


def began(connection: Versioned, name: str, topic: str) -> InitProducerIdResponse:
    """Begin a transaction with one record."""
    connection.ask_until_accepted(FindCoordinatorRequest(key=name, key_type=1))
    producer: InitProducerIdResponse = connection.ask_until_accepted(
        InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=OPEN_TIMEOUT_MS)
    )
    connection.ask_until_accepted(
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
        )
    )
    connection.ask_until_accepted(produce(topic, name, producer))
    return producer


def produce(
    topic: str, name: str | None = None, producer: InitProducerIdResponse | None = None
) -> ProduceRequest:
    """Return a request with one record, the first one of a transaction or outside of all."""
    record = Record(value=bytes(SMALL_RECORD_BYTES))
    batch = (
        build_batch([record])
        if producer is None
        else build_batch(
            [record],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
    )
    data = [PartitionProduceData(index=0, records=batch)]
    return ProduceRequest(
        transactional_id=name,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic, partition_data=data)],
    )
