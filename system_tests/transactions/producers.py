"""Transactional producers of several client libraries behind one interface.

Owns the translation of calls and errors; no expectations are here. Invariant: every failure of the
library is raised as `Failed` with the library's own words, and `Fenced` if a newer producer has the
transactional id.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import KafkaError as AioError
from aiokafka.errors import ProducerFenced
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaProducer
from kafka import TopicPartition as PurePartition
from kafka.consumer.group import ConsumerGroupMetadata as PureGroup
from kafka.errors import KafkaError as PureError
from kafka.structs import OffsetAndMetadata

from system_tests.harness.compiling import built_with_go, installed_with_npm
from system_tests.harness.jars import java_driver
from system_tests.harness.jvm import QUIET, short_jvm
from system_tests.harness.line_process import LineProcess, ProcessEnded
from system_tests.harness.waiting import PATIENCE_S

HERE = Path(__file__).parent


class Consumes(NamedTuple):
    """The group and the topic of which a producer will commit offsets."""

    group: str
    topic: str


class Failed(Exception):
    """A call of the library failed."""


class Fenced(Failed):
    """A newer producer has the transactional id, or the transaction was aborted by a timeout."""


class TransactionalProducer(ABC):
    """One producer; it is initialized when it is created."""

    name: ClassVar[str]
    marks: ClassVar[Sequence[pytest.MarkDecorator]] = ()
    newest_version: ClassVar[int] = 1
    """The newest transaction version that the library uses. Version 1 is also what a client of
    version 0 uses: they differ only in the records of the broker's log.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        transactional_id: str,
        timeout_ms: int,
        consumes: Consumes | None = None,
    ) -> None:
        """``consumes`` is required if offsets are sent."""
        self.bootstrap_servers = bootstrap_servers
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.consumes = consumes
        self._open()

    @abstractmethod
    def _open(self) -> None:
        """Create the library's producer, and initialize it."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, topic: str, value: str, partition: int = 0) -> None:
        """Send a record and wait for its acknowledgement."""

    @abstractmethod
    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Stop, whatever state the transaction has; may be called twice."""


FENCED_WORDS = ("FENCED", "INVALID_PRODUCER_EPOCH", "fenced", "Fenced", "InvalidProducerEpoch")


def failure(text: str) -> Failed:
    kind = Fenced if any(word in text for word in FENCED_WORDS) else Failed
    return kind(text)


@contextmanager
def translated(*kinds: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kinds as error:
        raise failure(f"{error!r} {error.__cause__!r}") from error


class ConfluentProducer(TransactionalProducer):
    name = "confluent-kafka"

    def _open(self) -> None:
        self._common = {"bootstrap.servers": self.bootstrap_servers, "log_level": 0}
        self._producer = Producer({
            **self._common,
            "transactional.id": self.transactional_id,
            "transaction.timeout.ms": self.timeout_ms,
            "error_cb": lambda _error: None,
        })  # fmt: skip
        with translated(KafkaException):
            self._producer.init_transactions(PATIENCE_S)

    def begin(self) -> None:
        with translated(KafkaException):
            self._producer.begin_transaction()

    def send(self, topic: str, value: str, partition: int = 0) -> None:
        errors: list[Any] = []
        # The package raises a fatal error through a delivery callback, as the cause of another.
        with translated(KafkaException, SystemError):
            self._producer.produce(
                topic, value, partition=partition, on_delivery=lambda error, _: errors.append(error)
            )
            self._producer.flush(PATIENCE_S)
        if errors != [None]:
            raise failure(repr(errors))

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        with translated(KafkaException):
            # Only a consumer can make the object that names its group.
            consumer = Consumer({**self._common, "group.id": group})
            metadata = consumer.consumer_group_metadata()
            self._producer.send_offsets_to_transaction(
                [TopicPartition(topic, partition, offset)], metadata, PATIENCE_S
            )
            consumer.close()

    def commit(self) -> None:
        with translated(KafkaException):
            self._producer.commit_transaction(PATIENCE_S)

    def abort(self) -> None:
        with translated(KafkaException):
            self._producer.abort_transaction(PATIENCE_S)

    def close(self) -> None:
        vars(self).pop("_producer", None)  # Its destructor stops it.


class PureProducer(TransactionalProducer):
    name = "kafka-python"

    def _open(self) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=self.bootstrap_servers,
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
        )
        with translated(PureError):
            self._producer.init_transactions()

    def begin(self) -> None:
        with translated(PureError):
            self._producer.begin_transaction()

    def send(self, topic: str, value: str, partition: int = 0) -> None:
        with translated(PureError):
            self._producer.send(topic, value.encode(), partition=partition).get(PATIENCE_S)

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        offsets = {PurePartition(topic, partition): OffsetAndMetadata(offset, "", -1)}
        with translated(PureError):
            self._producer.send_offsets_to_transaction(offsets, PureGroup(group, -1, "", None))

    def commit(self) -> None:
        with translated(PureError):
            self._producer.commit_transaction()

    def abort(self) -> None:
        with translated(PureError):
            self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=0)


class AioProducer(TransactionalProducer):
    name = "aiokafka"

    def _open(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._producer: AIOKafkaProducer = self._run(self._start())

    async def _start(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap_servers,
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
        )
        await producer.start()
        return producer

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        with translated(AioError, ProducerFenced):
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_S)

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, value: str, partition: int = 0) -> None:
        self._run(self._producer.send_and_wait(topic, value.encode(), partition=partition))

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        offsets = {AioPartition(topic, partition): offset}
        self._run(self._producer.send_offsets_to_transaction(offsets, group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        if self._loop.is_closed():
            return
        with suppress(Failed, TimeoutError):
            self._run(self._producer.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()


class ProcessProducer(TransactionalProducer):
    """A producer in another process, which answers each line of words with one line."""

    def _open(self) -> None:
        arguments = [self.bootstrap_servers, self.transactional_id, str(self.timeout_ms)]
        self._process = LineProcess([*self.command(), *arguments, *self.more_arguments()])
        self._ask("init")

    @classmethod
    @abstractmethod
    def command(cls) -> list[str]:
        """Return the command without its arguments. Raises ``ToolchainMissing``."""

    def more_arguments(self) -> Sequence[str]:
        return ()

    def _ask(self, *words: object) -> None:
        try:
            answer = self._process.ask(" ".join(map(str, words)), 3 * PATIENCE_S).strip()
        except ProcessEnded as error:
            raise failure(str(error)) from None
        if answer != "ok":
            raise failure(answer)

    def begin(self) -> None:
        self._ask("begin")

    def send(self, topic: str, value: str, partition: int = 0) -> None:
        self._ask("send", topic, partition, value)

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        self._ask("offsets", group, topic, partition, offset)

    def commit(self) -> None:
        self._ask("commit")

    def abort(self) -> None:
        self._ask("abort")

    def close(self) -> None:
        self._process.close()


class JavaProducer(ProcessProducer):
    name = "java"
    marks = (pytest.mark.java,)
    newest_version = 2

    @classmethod
    def command(cls) -> list[str]:
        return [
            *short_jvm("-Xmx128m", QUIET),
            *("-cp", java_driver(), "TransactionalProducer"),
        ]


class FranzProducer(ProcessProducer):
    name = "franz-go"
    newest_version = 2

    @classmethod
    def command(cls) -> list[str]:
        return [str(built_with_go(HERE / "franz_producer"))]

    def more_arguments(self) -> Sequence[str]:
        return self.consumes or ()


class SaramaProducer(ProcessProducer):
    name = "sarama"

    @classmethod
    def command(cls) -> list[str]:
        return [str(built_with_go(HERE / "sarama_producer"))]


class KafkajsProducer(ProcessProducer):
    name = "kafkajs"
    marks = (pytest.mark.node,)

    @classmethod
    def command(cls) -> list[str]:
        return ["node", str(installed_with_npm(HERE / "kafkajs_producer") / "producer.js")]


PRODUCERS: tuple[type[TransactionalProducer], ...] = (
    ConfluentProducer,
    PureProducer,
    AioProducer,
    JavaProducer,
    FranzProducer,
    SaramaProducer,
    KafkajsProducer,
)
