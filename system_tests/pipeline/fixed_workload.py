"""A fixed amount of work, independent of quotas.

Owns what a client does from its first request to its last; quotas belong to the tests. Invariant: a
client does one thing after the other, and pauses equally in every run, so that differences between
two runs are caused by the broker.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Final, NamedTuple

import confluent_kafka
import kafka

from minibroker_protocol.messages.metadata import MetadataRequest
from system_tests.connections.dialling import Client
from system_tests.harness.brokers import RunningBroker
from system_tests.quotas.saturating_clients import FILLED_TOPIC, PATIENCE_S, TOPIC

RECORDS: Final = 300
VALUE: Final = bytes(10_000)
METADATA_REQUESTS: Final = 7_500
PAUSE_S: Final = 0.01


def pause() -> None:
    threading.Event().wait(PAUSE_S)


def produce_records(servers: str, client_id: str) -> None:
    """Produce records one at a time, each after the previous acknowledgement."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "client.id": client_id, "linger.ms": 0}
    )
    for _ in range(RECORDS):
        producer.produce(TOPIC, VALUE, partition=0)
        assert producer.flush(PATIENCE_S) == 0
        pause()


def consume_records(servers: str, client_id: str) -> None:
    """Consume records one at a time."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=servers, client_id=client_id, max_partition_fetch_bytes=len(VALUE)
    )
    partition = kafka.TopicPartition(FILLED_TOPIC, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    remaining = RECORDS
    while remaining:
        remaining -= sum(map(len, consumer.poll(1000, max_records=1).values()))
        pause()
    consumer.close()


def request_metadata(servers: str, client_id: str) -> None:
    """Request the metadata of all topics repeatedly: work for the broker, and few bytes."""
    host, port = servers.rsplit(":", 1)
    with Client((host, int(port)), client_id=client_id) as client:
        for _ in range(METADATA_REQUESTS):
            client.ask(MetadataRequest(topics=None, allow_auto_topic_creation=False), 7)


class Job(NamedTuple):
    """The work of a client, and its name."""

    work: Callable[[str, str], None]
    client_id: str


JOBS: Final = (
    Job(produce_records, "producer"),
    Job(consume_records, "consumer"),
    Job(request_metadata, "metadata"),
)


def run_jobs(broker: RunningBroker) -> None:
    """Run all jobs at the same time, until the last one ends."""
    plain = broker.bootstrap_servers.split(",")[0]
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(JOBS), spawning) as clients:
        for work in [clients.submit(job.work, plain, job.client_id) for job in JOBS]:
            work.result(2 * PATIENCE_S)
