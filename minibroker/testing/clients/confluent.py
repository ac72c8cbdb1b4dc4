"""A process of a workload with confluent-kafka (librdkafka).

Owns the translation of calls and errors. It must never know workloads. Invariant: every error of
the library is a ``ClientFailure``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from minibroker.testing.clients.session import (
    PATIENCE_S,
    POLL_S,
    POLLED_MAX,
    ClientFailure,
    ClientLibrary,
    ConsumedRecord,
    main,
    partition_of,
)


class ConfluentLibrary(ClientLibrary):
    """confluent-kafka."""

    name = f"confluent-kafka {confluent_kafka.__version__}"
    _producer: Any
    _consumer: Any

    def _common(self) -> dict[str, Any]:
        common: dict[str, Any] = {
            "bootstrap.servers": self.options.bootstrap_servers,
            "log_level": 0,
        }
        if self.options.username is not None:
            common["security.protocol"] = "SASL_PLAINTEXT"
            common["sasl.mechanism"] = "PLAIN"
            common["sasl.username"] = self.options.username
            common["sasl.password"] = self.options.password
        return common

    def open_producer(self) -> None:
        vars(self).pop("_producer", None)  # Its destructor stops it.
        options = {
            **self._common(),
            "enable.idempotence": self.options.idempotence,
            "message.timeout.ms": PATIENCE_S * 1000,
            "linger.ms": 0,
            "error_cb": lambda _: None,
        }
        if self.options.transactional_id is not None:
            options["transactional.id"] = self.options.transactional_id
            options["transaction.timeout.ms"] = PATIENCE_S * 1000
        self._producer = Producer(options)
        if self.options.transactional_id is not None:
            self._call(self._producer.init_transactions, PATIENCE_S)

    def open_consumer(self) -> None:
        vars(self).pop("_consumer", None)
        self._consumer = Consumer({
            **self._common(),
            "group.id": self.options.group or "unused",
            "enable.auto.commit": self.options.group is not None,
            "auto.commit.interval.ms": 100,
            "auto.offset.reset": "earliest",
            "isolation.level": self.options.isolation_level,
            "fetch.wait.max.ms": 50,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 1000,
            "error_cb": lambda _: None,
        })  # fmt: skip

    def assign(self, positions: Mapping[str, int]) -> None:
        partitions = [
            TopicPartition(*partition_of(key), offset) for key, offset in positions.items()
        ]
        self._call(self._consumer.assign, partitions)

    def subscribe(self, topics: list[str]) -> None:
        def note(_: object, partitions: list[Any]) -> None:
            self.moved.update(f"{each.topic}-{each.partition}" for each in partitions)

        self._call(
            lambda: self._consumer.subscribe(topics, on_assign=note, on_revoke=note, on_lost=note)
        )

    def poll(self) -> Iterable[ConsumedRecord]:
        messages = self._call(self._consumer.consume, POLLED_MAX, POLL_S)
        for message in messages:
            if message.error() is not None:
                raise ClientFailure(message.error())
        return [
            ConsumedRecord(
                f"{message.topic()}-{message.partition()}", message.offset(), message.value()
            )
            for message in messages
        ]

    def send(self, topic: str, partition: int, value: bytes) -> int | None:
        delivered: list[tuple[Any, Any]] = []
        self._call(
            lambda: self._producer.produce(
                topic,
                value,
                partition=partition,
                on_delivery=lambda error, message: delivered.append((error, message)),
            )
        )
        self._call(self._producer.flush, PATIENCE_S + 5)
        if not delivered:
            raise ClientFailure("no delivery report")
        [(error, message)] = delivered
        if error is not None:
            raise ClientFailure(error)
        offset: int = message.offset()
        return offset

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def commit(self) -> None:
        self._call(self._producer.commit_transaction, PATIENCE_S)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction, PATIENCE_S)

    def close(self) -> None:
        self._consumer.close()
        vars(self).pop("_producer", None)

    @staticmethod
    def _call(function: Any, *arguments: object) -> Any:
        try:
            return function(*arguments)
        except (KafkaException, SystemError) as failure:
            # A fatal error in a delivery callback is the cause of a SystemError.
            error = failure.args[0] if failure.args else failure
            abortable = getattr(error, "txn_requires_abort", lambda: False)()
            raise ClientFailure(failure.__cause__ or failure, definite=abortable) from failure


if __name__ == "__main__":
    main(ConfluentLibrary)
