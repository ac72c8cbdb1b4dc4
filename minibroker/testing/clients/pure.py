"""A process of a workload with kafka-python.

Owns the translation of calls and errors. It must never know workloads. Invariant: every error of
the library is a ``ClientFailure``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import kafka
from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from minibroker.testing.clients.session import (
    PATIENCE_S,
    POLL_S,
    POLLED_MAX,
    ClientFailure,
    ClientLibrary,
    ConsumedRecord,
    main,
    partition_of,
    polled_records,
)


class KafkaPythonLibrary(ClientLibrary):
    """kafka-python."""

    name = f"kafka-python {kafka.__version__}"
    _producer: Any = None
    _consumer: Any = None

    def open_producer(self) -> None:
        if self._producer is not None:
            self._producer.close(timeout=0)
        options: dict[str, Any] = {"enable_idempotence": self.options.idempotence}
        if self.options.transactional_id is not None:
            options["transactional_id"] = self.options.transactional_id
            options["transaction_timeout_ms"] = PATIENCE_S * 1000
        self._producer = KafkaProducer(
            **self.connection_options(),
            delivery_timeout_ms=PATIENCE_S * 1000,
            request_timeout_ms=PATIENCE_S * 500,
            max_block_ms=PATIENCE_S * 1000,
            **options,
        )
        if self.options.transactional_id is not None:
            self._call(self._producer.init_transactions)

    def open_consumer(self) -> None:
        if self._consumer is not None:
            self._consumer.close(autocommit=False)
        self._consumer = KafkaConsumer(**self.consumer_options())

    def assign(self, positions: Mapping[str, int]) -> None:
        partitions = {
            TopicPartition(*partition_of(key)): offset for key, offset in positions.items()
        }
        self._call(self._consumer.assign, list(partitions))
        for partition, offset in partitions.items():
            self._call(self._consumer.seek, partition, offset)

    def subscribe(self, topics: list[str]) -> None:
        # A member that joins a group before it has metadata assigns no partition for minutes.
        for topic in topics:
            self._call(self._consumer.partitions_for_topic, topic)
        listener = self.rebalance_listener(ConsumerRebalanceListener)
        self._call(lambda: self._consumer.subscribe(topics, listener=listener))

    def poll(self) -> Iterable[ConsumedRecord]:
        found = self._call(
            lambda: self._consumer.poll(timeout_ms=int(POLL_S * 1000), max_records=POLLED_MAX)
        )
        return polled_records(found)

    def send(self, topic: str, partition: int, value: bytes) -> int | None:
        metadata = self._call(
            lambda: self._producer.send(topic, value, partition=partition).get(PATIENCE_S + 5)
        )
        offset: int = metadata.offset
        return offset

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def commit(self) -> None:
        self._call(self._producer.commit_transaction)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction)

    def close(self) -> None:
        with suppress(KafkaError):
            self._consumer.close()
            self._producer.close(timeout=PATIENCE_S)

    @staticmethod
    def _call(function: Any, *arguments: object) -> Any:
        try:
            return function(*arguments)
        except KafkaError as failure:
            raise ClientFailure(repr(failure)) from failure


if __name__ == "__main__":
    main(KafkaPythonLibrary)
