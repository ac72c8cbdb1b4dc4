"""One producer and one consumer of each Python client library, with the same few calls.

Owns the configuration that makes retries fast and checks checksums. It must never know a fault.
Invariant: ``produce`` returns when the client calls the record delivered, and ``consume`` returns
each record that the client gives, and each error as its text.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError as KafkaPythonError

TIMEOUT_S: Final = 30.0


class PythonClient(ABC):
    """A client library."""

    name: ClassVar[str]
    errors_max: ClassVar[int] = 3
    """Errors after which ``consume`` ends."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    @abstractmethod
    def produce(self, topic: str, values: list[bytes], *, idempotent: bool) -> None:
        """Send records to partition 0, one after the other, each until it is acknowledged."""

    @abstractmethod
    def consume(self, topic: str, count: int, group: str | None = None) -> list[bytes | str]:
        """Return records until there are ``count``, with the texts of errors between them.

        Ends with the error number ``errors_max``. Offsets are committed if there is a group.
        """

    def _lacks(self, found: list[bytes | str], count: int) -> bool:
        records = sum(isinstance(each, bytes) for each in found)
        return records < count and len(found) - records < self.errors_max


class ConfluentKafka(PythonClient):
    name = "confluent-kafka"

    def produce(self, topic: str, values: list[bytes], *, idempotent: bool) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "enable.idempotence": idempotent,
                "retry.backoff.ms": 20,
                "log_level": 0,
            }
        )
        failures: list[Any] = []
        for value in values:
            producer.produce(topic, value, partition=0, on_delivery=lambda e, _: failures.append(e))
            assert producer.flush(TIMEOUT_S) == 0
        assert failures == [None] * len(values)

    def consume(self, topic: str, count: int, group: str | None = None) -> list[bytes | str]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": group or f"{topic}-readers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "check.crcs": True,
                "retry.backoff.ms": 20,
                "log_level": 0,
            }
        )
        consumer.subscribe([topic])
        found: list[bytes | str] = []
        deadline = time.monotonic() + TIMEOUT_S
        while self._lacks(found, count) and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None:
                error = message.error()
                found.append(str(error) if error else message.value() or b"")
        if group is not None:
            consumer.commit(asynchronous=False)
        consumer.close()
        return found


class KafkaPython(PythonClient):
    name = "kafka-python"
    errors_max = 1  # After a wrong checksum, the next poll of version 3.0.12 never returns.

    def produce(self, topic: str, values: list[bytes], *, idempotent: bool) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap_servers,
            enable_idempotence=idempotent,
            acks="all",
            retries=10,
            retry_backoff_ms=20,
        )
        for value in values:
            producer.send(topic, value, partition=0).get(TIMEOUT_S)
        producer.close()

    def consume(self, topic: str, count: int, group: str | None = None) -> list[bytes | str]:
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=self.bootstrap_servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            check_crcs=True,
            retry_backoff_ms=20,
        )
        # Version 3.0.12 assigns nothing, for minutes, if it joins a group before it has metadata.
        consumer.partitions_for_topic(topic)
        found: list[bytes | str] = []
        deadline = time.monotonic() + TIMEOUT_S
        while self._lacks(found, count) and time.monotonic() < deadline:
            try:
                polled = consumer.poll(200)
            except KafkaPythonError as error:
                found.append(str(error))
                continue
            found += [record.value for records in polled.values() for record in records]
        if group is not None:
            consumer.commit()
        consumer.close()
        return found


class Aiokafka(PythonClient):
    name = "aiokafka"

    def produce(self, topic: str, values: list[bytes], *, idempotent: bool) -> None:
        async def send() -> None:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap_servers,
                enable_idempotence=idempotent,
                acks="all",
                retry_backoff_ms=20,
            )
            async with producer:
                for value in values:
                    await producer.send_and_wait(topic, value, partition=0)

        asyncio.run(asyncio.wait_for(send(), TIMEOUT_S))

    def consume(self, topic: str, count: int, group: str | None = None) -> list[bytes | str]:
        async def read() -> list[bytes | str]:
            found: list[bytes | str] = []
            consumer = AIOKafkaConsumer(
                topic,
                bootstrap_servers=self.bootstrap_servers,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                check_crcs=True,
                retry_backoff_ms=20,
            )
            async with consumer:
                while self._lacks(found, count):
                    try:
                        message = await consumer.getone()
                    except AiokafkaError as error:
                        found.append(repr(error))
                        continue
                    found.append(message.value or b"")
                if group is not None:
                    await consumer.commit()
            return found

        return asyncio.run(asyncio.wait_for(read(), TIMEOUT_S))


CLIENTS: Final = (ConfluentKafka, KafkaPython, Aiokafka)
