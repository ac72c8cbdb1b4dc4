"""Cost of the proxy in front of Apache Kafka: ``python -m system_tests.benchmarks.proxy``.

Prints the median time of a small Produce and of an idle Fetch request, one after the other, and the
rates at which confluent-kafka produces and consumes, directly and through the proxy in turn. Each
figure is the median of several turns; the ratios matter, as client, proxy and broker share a
machine.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from minibroker.testing import MiniProxy
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.schema import Message
from system_tests.benchmarks.fetch_sessions import BATCH, FETCH_VERSION, Connection
from system_tests.harness.brokers import KAFKA_JVM, start_kafka
from system_tests.harness.waiting import PATIENCE_S

TURNS: Final = 5
REQUESTS: Final = 500
PRODUCE_VERSION: Final = 9
VALUE: Final = bytes(10_000)
VALUES: Final = 5_000
TOPIC: Final = "measured"


def small_requests() -> dict[str, tuple[Message, int]]:
    """A Produce of one record, and a Fetch at the end of a partition that does not wait."""
    produced = PartitionProduceData(index=0, records=BATCH)
    topic = TopicProduceData(name=TOPIC, partition_data=[produced])
    fetched = FetchPartition(partition=1, partition_max_bytes=1_000_000)
    return {
        "Produce, µs": (ProduceRequest(acks=1, topic_data=[topic]), PRODUCE_VERSION),
        "Fetch, µs": (
            FetchRequest(max_wait_ms=0, topics=[FetchTopic(topic=TOPIC, partitions=[fetched])]),
            FETCH_VERSION,
        ),
    }


def latency_us(address: str, request: Message, version: int) -> float:
    connection = Connection(address)
    times = []
    for _ in range(REQUESTS):
        started = time.perf_counter_ns()
        connection.ask(request, version)
        times.append(time.perf_counter_ns() - started)
    connection.close()
    return statistics.median(times) / 1000


def produce_mb_s(address: str) -> float:
    producer = Producer({"bootstrap.servers": address, "queue.buffering.max.kbytes": 1_000_000})
    producer.list_topics(timeout=PATIENCE_S)
    started = time.perf_counter()
    for _ in range(VALUES):
        producer.produce(TOPIC, VALUE, partition=2)
    assert producer.flush(PATIENCE_S) == 0
    return len(VALUE) * VALUES / (time.perf_counter() - started) / 1e6


def consume_mb_s(address: str) -> float:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "readers", "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition(TOPIC, 2, OFFSET_BEGINNING)])
    first = consumer.poll(PATIENCE_S)
    started = time.perf_counter()
    count = 0
    while count < VALUES - 1:
        count += len(consumer.consume(VALUES - 1 - count, PATIENCE_S))
    elapsed = time.perf_counter() - started
    consumer.close()
    assert first is not None
    return len(VALUE) * count / elapsed / 1e6


def compare(direct: str, proxied: str) -> None:
    measures: dict[str, Callable[[str], float]] = {
        name: partial(latency_us, request=request, version=version)
        for name, (request, version) in small_requests().items()
    }
    measures |= {"produced, MB/s": produce_mb_s, "consumed, MB/s": consume_mb_s}
    print(f"{'':16}{'direct':>10}{'proxy':>10}{'ratio':>8}")
    for name, measure in measures.items():
        turns = [(measure(direct), measure(proxied)) for _ in range(TURNS)]
        first, second = (statistics.median(each) for each in zip(*turns, strict=True))
        print(f"{name:16}{first:10.0f}{second:10.0f}{second / first:8.2f}")


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="proxy-benchmark-") as folder,
        start_kafka(Path(folder) / "kafka", jvm=KAFKA_JVM) as kafka,
    ):
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, 3, 1)])[TOPIC].result(PATIENCE_S)
        with MiniProxy(kafka.bootstrap_servers) as proxy:
            compare(kafka.bootstrap_servers, proxy.bootstrap_servers)


if __name__ == "__main__":
    main()
