"""Clients that produce or fetch as fast as their quota allows, each in a separate process.

Owns what a client of each library does and records; quotas and expectations belong to the tests.
Invariant: a client never waits by itself, so its throughput is its quota; only at first it may
have to keep a pace.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import kafka

TOPIC, FILLED_TOPIC = "t", "fed"
PATIENCE_S = 90
IN_FLIGHT, KAFKA_PYTHON_IN_FLIGHT = 10, 5
"""Requests in flight, so that the broker has one whenever the quota allows it."""

POLL_MS = 10
"""Maximum delay of a client that polls for the end of its throttle."""

ANONYMOUS = "ANONYMOUS"

Events = list[tuple[float, float]]
"""Pairs of a time and an amount."""


class Pace(NamedTuple):
    """Records a second between two times."""

    begins: float
    ends: float
    per_s: float


class ClientRun:
    """The time and the credentials of one client's run, and its recorded throughput."""

    def __init__(
        self,
        servers: str,
        ends: float,
        user: str,
        client_id: str,
        pace: Pace | None = None,
        *,
        begins: float = 0.0,
    ) -> None:
        """Nothing is sent before ``begins``."""
        self.servers = servers
        self.begins = begins
        self.ends = ends
        self._pace = pace
        self._sent = 0
        self.user = user
        self.client_id = client_id
        self.events: Events = []

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.ends

    def pause_s(self) -> float:
        """Return the pause before the next record, to keep the pace."""
        if self._pace is None or time.monotonic() >= self._pace.ends:
            return 0
        self._sent += 1
        due = self._pace.begins + self._sent / self._pace.per_s
        return max(0, min(due, self._pace.ends) - time.monotonic())

    def record(self) -> None:
        self.events.append((time.monotonic(), 1))

    def client_config(self) -> dict[str, Any]:
        """Return the credentials of kafka-python and aiokafka."""
        if self.user == ANONYMOUS:
            return {"bootstrap_servers": self.servers, "client_id": self.client_id}
        return {
            "bootstrap_servers": self.servers,
            "client_id": self.client_id,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.user,
        }

    def librdkafka_config(self) -> dict[str, Any]:
        client_config = {"bootstrap.servers": self.servers, "client.id": self.client_id}
        if self.user != ANONYMOUS:
            client_config |= {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
            client_config |= {"sasl.username": self.user, "sasl.password": self.user}
        return client_config


Work = Callable[[ClientRun, bytes], None]


def produce_with_librdkafka(minute: ClientRun, value: bytes) -> None:
    producer = confluent_kafka.Producer(
        minute.librdkafka_config() | {"linger.ms": 0, "batch.num.messages": 1, "log_level": 3}
    )
    in_flight = 0

    def delivered(error: object, _: object) -> None:
        nonlocal in_flight
        assert error is None or minute.is_over
        in_flight -= 1
        minute.record()

    while not minute.is_over:
        while in_flight < IN_FLIGHT:
            time.sleep(minute.pause_s())
            in_flight += 1
            producer.produce(TOPIC, value, partition=0, on_delivery=delivered)
        producer.poll(0.1)
    producer.purge()
    producer.flush(PATIENCE_S)


def produce_with_kafka_python(minute: ClientRun, value: bytes) -> None:
    producer = kafka.KafkaProducer(**minute.client_config(), batch_size=0, linger_ms=0)
    free_slots = threading.Semaphore(KAFKA_PYTHON_IN_FLIGHT)

    def delivered(_: object) -> None:
        minute.record()
        free_slots.release()

    while not minute.is_over:
        time.sleep(minute.pause_s())
        free_slots.acquire(timeout=PATIENCE_S)
        producer.send(TOPIC, value, partition=1).add_callback(delivered)
    producer.close()


def produce_with_aiokafka(minute: ClientRun, value: bytes) -> None:
    async def produce() -> None:
        producer = aiokafka.AIOKafkaProducer(**minute.client_config())
        await producer.start()
        while not minute.is_over:
            await asyncio.sleep(minute.pause_s())
            await producer.send_and_wait(TOPIC, value, partition=2)
            minute.record()
        await producer.stop()

    asyncio.run(produce())


def consume_with_librdkafka(minute: ClientRun, value: bytes) -> None:
    consumer = confluent_kafka.Consumer(
        minute.librdkafka_config() | {"group.id": "none", "max.partition.fetch.bytes": len(value)}
    )
    consumer.assign([confluent_kafka.TopicPartition(FILLED_TOPIC, 0, 0)])
    while not minute.is_over:
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None
            minute.record()
    consumer.close()


def consume_with_kafka_python(minute: ClientRun, value: bytes) -> None:
    consumer = kafka.KafkaConsumer(**minute.client_config(), max_partition_fetch_bytes=len(value))
    consumer.assign([kafka.TopicPartition(FILLED_TOPIC, 0)])
    consumer.seek(kafka.TopicPartition(FILLED_TOPIC, 0), 0)
    while not minute.is_over:
        for records in consumer.poll(POLL_MS, max_records=1).values():
            for _ in records:
                minute.record()
    consumer.close()


def consume_with_aiokafka(minute: ClientRun, value: bytes) -> None:
    async def consume() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            **minute.client_config(), max_partition_fetch_bytes=len(value), enable_auto_commit=False
        )
        await consumer.start()
        consumer.assign([aiokafka.TopicPartition(FILLED_TOPIC, 0)])
        consumer.seek(aiokafka.TopicPartition(FILLED_TOPIC, 0), 0)
        while not minute.is_over:
            for records in (await consumer.getmany(timeout_ms=POLL_MS, max_records=1)).values():
                for _ in records:
                    minute.record()
        await consumer.stop()

    asyncio.run(consume())


def wait_for(all_started: Barrier) -> None:
    """Wait until every process has started, which takes many seconds on a busy machine."""
    all_started.wait(PATIENCE_S)


def run_client(work: Work, minute: ClientRun, value: bytes) -> Events:
    """Run one client until its time is over."""
    logging.disable()  # Some libraries log each throttle.
    time.sleep(max(0, minute.begins - time.monotonic()))
    work(minute, value)
    return minute.events


def run_clients(count: int, work: Work, minute: ClientRun, value: bytes) -> Events:
    """Run several clients with the same name; return the events of all."""
    with ThreadPoolExecutor(count) as threads:
        for done in [threads.submit(run_client, work, minute, value) for _ in range(count)]:
            done.result()
    return minute.events
