"""Writes single batches to a topic, also idempotent ones and in transactions, request by request.

Owns producer ids, sequences and retries of what a broker is not ready for; a client library would
decide by itself what goes into a batch. It must never know compaction. Invariant: each call appends
one batch, which is in the log when the call returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from minibroker_protocol.compression import Compression
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Record,
    build_batch,
)
from minibroker_protocol.schema import Message
from system_tests.connections.dialling import Client
from system_tests.harness.waiting import wait_until
from system_tests.peers.transactions import add, end, find, init

PARTITION: Final = 0
TIMEOUT_MS: Final = 30_000


@dataclass
class _Producer:
    """A producer id and the sequence of its next record."""

    transactional_id: str | None = None
    id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH
    sequence: int = NO_SEQUENCE


class BatchWriter:
    """Writes to partition 0 of a topic through one connection."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._producers: dict[str | None, _Producer] = {}

    def write(
        self, records: Sequence[Record], codec: Compression, *, idempotent: bool = False
    ) -> None:
        """Write a batch outside of transactions."""
        self._write(records, codec, self._producer(None) if idempotent else _Producer())

    def write_in(self, name: str, records: Sequence[Record]) -> None:
        """Write a batch in the open transaction of a transactional id, or begin one."""
        producer = self._producer(f"{self._topic}-{name}")
        transactional_id = producer.transactional_id
        assert transactional_id is not None
        current = (producer.id, producer.epoch)
        self._succeed(add(transactional_id, current, **{self._topic: [PARTITION]}), 3)
        self._write(records, Compression.NONE, producer)

    def end(self, name: str, *, commit: bool) -> None:
        """End a transaction; its marker follows."""
        producer = self._producer(f"{self._topic}-{name}")
        assert producer.transactional_id is not None
        current = (producer.id, producer.epoch)
        self._succeed(end(producer.transactional_id, current, committed=commit), 3)

    def _producer(self, transactional_id: str | None) -> _Producer:
        if transactional_id not in self._producers:
            if transactional_id is not None:
                self._succeed(find(transactional_id, 3), 3)
            request = init("")
            request.transactional_id = transactional_id
            made = self._succeed(request, 4)
            producer = _Producer(transactional_id, made.producer_id, made.producer_epoch, 0)
            self._producers[transactional_id] = producer
        return self._producers[transactional_id]

    def _write(self, records: Sequence[Record], codec: Compression, producer: _Producer) -> None:
        batch = build_batch(
            records,
            compression=codec,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=producer.sequence,
            transactional=producer.transactional_id is not None,
        )
        data = [PartitionProduceData(index=PARTITION, records=batch)]
        request = ProduceRequest(
            transactional_id=producer.transactional_id,
            acks=-1,
            timeout_ms=TIMEOUT_MS,
            topic_data=[TopicProduceData(name=self._topic, partition_data=data)],
        )
        self._succeed(request, 9)
        if producer.sequence != NO_SEQUENCE:
            producer.sequence += len(records)

    def _succeed(self, request: Message, version: int) -> Any:
        """Send a request until the broker is ready for it; return the response."""

        def response() -> Any:
            answer = self._client.ask(request, version)
            error = ErrorCode(_error(answer))
            assert error is ErrorCode.NONE or error.retriable, f"{error.name}: {request}"
            return None if error is not ErrorCode.NONE else answer

        return wait_until(response, f"a response to {type(request).__name__}")


def _error(answer: Any) -> int:
    """The error of a response about one partition."""
    if hasattr(answer, "responses"):
        [answer] = answer.responses[0].partition_responses
    elif hasattr(answer, "results_by_topic_v3_and_below"):
        [answer] = answer.results_by_topic_v3_and_below[0].results_by_partition
        return int(answer.partition_error_code)
    return int(answer.error_code)
