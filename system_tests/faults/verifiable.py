"""A producer and consumers that record all results while the broker fails.

They own their threads and librdkafka clients and fill a `History`; the faults belong to the test.
Invariant: a record counts as acknowledged only by its delivery report, and the log is read from
start to end when all has been sent. Kafka's own system tests call them VerifiableProducer and
VerifiableConsumer.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from system_tests.faults.history import Entry, History, Mark, Place
from system_tests.harness.waiting import PATIENCE_S, TimedOut, wait_until

KEYS_PER_PARTITION = 2
# Few enough that records are always in flight, in several batches, when a process dies.
OUTSTANDING_MAX = 40
FAST_RETRIES = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "log_level": 0,
}


def _entry(message: Message) -> Entry:
    key, sequence = message.value().decode().split()
    return Entry(Place(message.partition(), message.offset()), Mark(int(key), int(sequence)))


class VerifiableProducer:
    """Sends the next number of each key in turn; a key always uses the same partition."""

    def __init__(
        self,
        settings: Mapping[str, str],
        topic: str,
        partitions: int,
        history: History,
        *,
        idempotent: bool,
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._history = history
        self._outstanding = 0
        self._stopping = threading.Event()
        self._abandoned = False
        self.fatal: KafkaError | None = None
        self._producer = Producer(
            {
                **FAST_RETRIES,
                **settings,
                "enable.idempotence": idempotent,
                "acks": "all",
                "linger.ms": 2,
                "message.timeout.ms": int(PATIENCE_S * 1000),
                "error_cb": self._on_error,
            }
        )
        self._thread = threading.Thread(
            target=self._send_all, name="verifiable producer", daemon=True
        )
        self._thread.start()

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._FATAL:
            self.fatal = error

    def _send_all(self) -> None:
        sequence = 0
        while not self._stopping.is_set():
            for key in range(self._partitions * KEYS_PER_PARTITION):
                self._send(Mark(key, sequence))
            sequence += 1
            while self._outstanding >= OUTSTANDING_MAX and not self._stopping.is_set():
                self._producer.poll(0.05)
        if self._abandoned:
            self._producer.purge()
        if self._producer.flush(PATIENCE_S):
            raise TimedOut(f"{self._outstanding} records were neither acknowledged nor failed")

    def _send(self, mark: Mark) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            self._outstanding -= 1
            if error is None:
                place = Place(message.partition(), message.offset())
                self._history.acknowledged[mark] = place
            else:
                self._history.failed[mark] = error.str()

        self._history.sent.add(mark)
        self._outstanding += 1
        self._producer.produce(
            self._topic,
            f"{mark.key} {mark.sequence}".encode(),
            partition=mark.key % self._partitions,
            on_delivery=delivered,
        )

    def abandon(self) -> None:
        """Stop sending and abandon the records in flight."""
        self._abandoned = True
        self._stopping.set()
        self._thread.join(PATIENCE_S)

    def stop(self) -> None:
        """Send nothing new and wait until everything sent is acknowledged or failed."""
        self._stopping.set()
        self._thread.join(PATIENCE_S + 5)
        assert not self._thread.is_alive(), "the producer did not end"


class VerifiableConsumer:
    """A group member that commits its position every few records and on revocation."""

    def __init__(
        self, settings: Mapping[str, str], topic: str, group: str, seen: list[Entry]
    ) -> None:
        self._seen = seen
        self._stopping = threading.Event()
        self._abandoned = False
        self.failure: Exception | None = None
        self._consumer = Consumer(
            {
                **FAST_RETRIES,
                **settings,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 300,
                "partition.assignment.strategy": "cooperative-sticky",
            }
        )
        self._consumer.subscribe([topic], on_revoke=lambda _consumer, _partitions: self._commit())
        self._thread = threading.Thread(
            target=self._consume, name="verifiable consumer", daemon=True
        )
        self._thread.start()

    def _consume(self) -> None:
        try:
            while not self._stopping.is_set():
                message = self._consumer.poll(0.1)
                if message is None or message.error():
                    continue  # librdkafka handles these errors by itself.
                self._seen.append(_entry(message))
                if len(self._seen) % 200 == 0:
                    self._consumer.commit(asynchronous=True)
        except Exception as failure:  # noqa: BLE001 (handed to the test's own thread)
            self.failure = failure
        finally:
            self._consumer.close()

    def _commit(self) -> None:
        if self._abandoned:
            return  # There may be no coordinator.
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException:
            return  # Uncommitted records are delivered again, which is allowed.

    def abandon(self) -> None:
        self._abandoned = True
        self._stopping.set()
        self._thread.join(PATIENCE_S)

    def stop(self) -> None:
        """Commit what was returned, leave the group, and raise the errors of the run."""
        self._stopping.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "a consumer did not end"
        if self.failure is not None:
            raise self.failure


class Run:
    """A producer and two consumers with a topic of their own.

    ``security`` holds the settings with which they authenticate themselves.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        partitions: int = 4,
        idempotent: bool = True,
        security: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = {"bootstrap.servers": servers, **(security or {})}
        self._topic = topic
        self._partitions = partitions
        self.history = History()
        self._create_topic()
        self.producer = VerifiableProducer(
            self._settings, topic, partitions, self.history, idempotent=idempotent
        )
        self.consumers = []
        for name in ("consumer-0", "consumer-1"):
            seen = self.history.consumed.setdefault(name, [])
            self.consumers.append(VerifiableConsumer(self._settings, topic, f"{topic}-group", seen))

    def _create_topic(self) -> None:
        admin = AdminClient({**FAST_RETRIES, **self._settings})
        [created] = admin.create_topics([NewTopic(self._topic, self._partitions, 1)]).values()
        created.result(PATIENCE_S)

    def acknowledged(self) -> Counter[int]:
        """Return how many records of each partition are acknowledged."""
        return Counter(mark.key % self._partitions for mark in list(self.history.acknowledged))

    def consumed(self) -> Counter[int]:
        return Counter(
            entry.place.partition for seen in self.history.consumed.values() for entry in list(seen)
        )

    def wait_progress(self, *, records: int = 100, also_consumed: bool = True) -> None:
        """Wait until every partition has `records` more, acknowledged and consumed."""
        self._wait_more(self.acknowledged, records, "acknowledged")
        if also_consumed:
            self._wait_more(self.consumed, records, "consumed")

    def _wait_more(self, count: Callable[[], Counter[int]], records: int, what: str) -> None:
        before = count()

        def more() -> bool:
            if self.producer.fatal is not None:
                raise AssertionError(f"the producer gave up: {self.producer.fatal.str()}")
            now = count()
            return all(now[at] - before[at] >= records for at in range(self._partitions))

        wait_until(more, f"{records} more of each partition {what}", within_s=PATIENCE_S)

    def finish(self) -> History:
        """Stop sending, read the whole log, let the consumers catch up, and stop them."""
        self.producer.stop()
        self.history.log = read_log(self._settings, self._topic, self._partitions)
        wanted = {entry.place for entry in self.history.log}
        wait_until(
            lambda: wanted <= self._consumed_places(),
            "the consumers to reach the end",
            within_s=PATIENCE_S,
        )
        for consumer in self.consumers:
            consumer.stop()
        return self.history

    def _consumed_places(self) -> set[Place]:
        return {e.place for seen in self.history.consumed.values() for e in list(seen)}

    def abandon(self) -> None:
        """Stop everything, whatever state the broker is in."""
        self.producer.abandon()
        for consumer in self.consumers:
            consumer.abandon()


def end_offsets(settings: Mapping[str, str], topic: str, partitions: int) -> dict[int, int]:
    admin = AdminClient({**FAST_RETRIES, **settings})
    wanted = {TopicPartition(topic, at): OffsetSpec.latest() for at in range(partitions)}
    answers = admin.list_offsets(wanted)
    return {at.partition: answer.result(PATIENCE_S).offset for at, answer in answers.items()}


def read_log(settings: Mapping[str, str], topic: str, partitions: int) -> list[Entry]:
    """Read every partition from its beginning to its present end."""
    ends = end_offsets(settings, topic, partitions)
    left = {at: end for at, end in ends.items() if end > 0}
    auditing: dict[str, Any] = {
        **FAST_RETRIES,
        **settings,
        "group.id": f"{topic}-audit",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
    }
    auditor = Consumer(auditing)
    auditor.assign([TopicPartition(topic, at, 0) for at in left])
    entries = []
    deadline = time.monotonic() + PATIENCE_S
    try:
        while left:
            for message in auditor.consume(1000, 0.2):
                if message.error():
                    raise KafkaException(message.error())
                entries.append(_entry(message))
                if message.offset() + 1 >= left.get(message.partition(), 0):
                    left.pop(message.partition(), None)
            if time.monotonic() > deadline:
                raise TimedOut(f"the log was not read to its end: {left} of {ends}")
    finally:
        auditor.close()
    return sorted(entries)
