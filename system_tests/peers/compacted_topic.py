"""A compacted topic of a broker that is written, compacted on request and compared batch by batch.

Owns single batches, also idempotent ones and in transactions, as a client library would decide by
itself what goes into a batch; their times, the wait for the broker's own log cleaner, and what a
compacted log consists of. It must never know what a test expects. Invariant: each written batch is
in the log when the call returns; the cleaner compacts only during ``compact``, and each of its runs
starts from the same segments on every broker: a batch starts a new one if it is an hour younger
than the segment.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from minibroker_protocol.compression import Compression
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    Record,
    build_batch,
    iter_batches,
    iter_records,
)
from minibroker_protocol.schema import Message
from system_tests.connections.dialling import Client
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.waiting import PATIENCE_S, wait_until
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


HOUR_MS: Final = 3_600_000
START_MS: Final = int(time.time() * 1000)
NEVER: Final = "1"
"""A dirty ratio that no log exceeds."""
AT_ONCE: Final = "0.0001"
CONFIGS: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": NEVER,
    "segment.ms": str(HOUR_MS),
    "message.timestamp.after.max.ms": str(100 * HOUR_MS),
}
CLEANER_SETTINGS: Final = {"log.cleaner.backoff.ms": "50"}
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
FETCH_BYTES: Final = 1 << 20

Pair = tuple[str, str | None]


class Batch(NamedTuple):
    """What both brokers must have of a batch. Times of markers and horizons are their own."""

    base_offset: int
    last_offset: int
    producer: int
    """The number of the producer id, in the order of the log; -1 without one."""
    epoch: int
    base_sequence: int
    attributes: int
    max_timestamp: int | None
    records: tuple[Record, ...]


class Contents(NamedTuple):
    """A complete log, and what readers of committed records are asked to leave out."""

    segments: tuple[int, ...]
    cleaned_until: int
    batches: tuple[Batch, ...]
    aborted: tuple[tuple[int, int], ...]


class CompactedTopic:
    """A topic with one partition."""

    def __init__(self, broker: RunningBroker, name: str, **configs: str) -> None:
        assert broker.data_dir is not None
        self._broker = broker
        self._name = name
        self._data_dir = broker.data_dir
        self._client = Client(broker.address)
        self._writer = BatchWriter(self._client, name)
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        self._end_offset = 0
        topic = NewTopic(name, 1, 1, config={**CONFIGS, **configs})
        self._admin.create_topics([topic])[name].result(PATIENCE_S)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def write(
        self,
        hour: int,
        *pairs: Pair,
        codec: Compression = Compression.NONE,
        idempotent: bool = False,
    ) -> None:
        """Write one batch, outside of transactions, at an hour after the start."""
        self._writer.write(_records(hour, pairs), codec, idempotent=idempotent)
        self._end_offset += len(pairs)

    def write_in(self, name: str, hour: int, *pairs: Pair) -> None:
        """Write one batch in the open transaction of a transactional id, or begin one."""
        self._writer.write_in(name, _records(hour, pairs))
        self._end_offset += len(pairs)

    def end(self, name: str, *, commit: bool) -> None:
        """End a transaction and wait for its marker."""
        self._writer.end(name, commit=commit)
        self._end_offset += 1
        self._wait_for_end()

    def _wait_for_end(self) -> None:
        def is_written() -> bool:
            return bool(self._fetch(0).high_watermark == self._end_offset)

        wait_until(is_written, f"offset {self._end_offset}")

    def compact(self) -> Contents:
        """Have all segments but the newest compacted, before open transactions; return the log."""
        until = min(self._segments()[-1], self._fetch(0).last_stable_offset)
        wait_until(self._is_on_disk, "all segments but the newest on the disk")
        self._set_ratio(AT_ONCE)
        wait_until(lambda: self._cleaned_until() == until, f"{self._name} compacted until {until}")
        self._set_ratio(NEVER)
        return self.contents()

    def _is_on_disk(self) -> bool:
        """Whether minibroker has flushed what it will compact, as it must to compact it at once."""
        if self._broker.kind != "minibroker":
            return True
        checkpoint = self._data_dir / f"{self._name}-0" / "checkpoint.json"
        point: int = json.loads(checkpoint.read_text())["recovery_point"]
        return point == self._segments()[-1]

    def _set_ratio(self, ratio: str) -> None:
        entry = ConfigEntry(
            "min.cleanable.dirty.ratio", ratio, incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.TOPIC, self._name, incremental_configs=[entry])
        [changed] = self._admin.incremental_alter_configs([resource]).values()
        changed.result(PATIENCE_S)
        asked = ConfigResource(ResourceType.TOPIC, self._name)

        def is_set() -> bool:
            [described] = self._admin.describe_configs([asked]).values()
            value = described.result(PATIENCE_S)["min.cleanable.dirty.ratio"].value
            return float(value) == float(ratio)

        wait_until(is_set, "the changed config")

    def _segments(self) -> tuple[int, ...]:
        files = (self._data_dir / f"{self._name}-0").glob("*.log")
        return tuple(sorted(int(file.stem) for file in files))

    def _cleaned_until(self) -> int:
        """The offset in the checkpoint, which Kafka has in one file for all partitions."""
        for folder in (self._data_dir, self._data_dir / f"{self._name}-0"):
            file = folder / "cleaner-offset-checkpoint"
            for line in file.read_text().splitlines() if file.exists() else []:
                if line.startswith(f"{self._name} 0 "):
                    return int(line.split()[2])
        return -1

    def _fetch(self, offset: int, isolation_level: int = READ_UNCOMMITTED) -> Any:
        partition = FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
        )
        request = FetchRequest(
            max_bytes=FETCH_BYTES,
            isolation_level=isolation_level,
            topics=[FetchTopic(topic=self._name, partitions=[partition])],
        )
        found = self._client.ask(request, 12).responses[0].partitions[0]
        assert found.error_code == ErrorCode.NONE
        return found

    def contents(self) -> Contents:
        """Read the complete log, and what a reader of committed records leaves out."""
        numbers: dict[int, int] = {NO_PRODUCER_ID: NO_PRODUCER_ID}
        batches = []
        for found in self._fetch_all(READ_UNCOMMITTED):
            data = bytes(found.records)
            for position, header in iter_batches(data):
                number = numbers.setdefault(header.producer_id, len(numbers) - 1)
                records = tuple(iter_records(data[position : position + header.size]))
                batches.append(_comparable(header, records, number))
        aborted = {
            (numbers[each.producer_id], each.first_offset)
            for found in self._fetch_all(READ_COMMITTED)
            for each in found.aborted_transactions
        }
        segments = self._segments()
        return Contents(segments, self._cleaned_until(), tuple(batches), tuple(sorted(aborted)))

    def _fetch_all(self, isolation_level: int) -> Iterator[Any]:
        """Yield responses until there are no more records; each is of one segment in Kafka."""
        offset = 0
        while (found := self._fetch(offset, isolation_level)).records:
            yield found
            *_, (_, last) = iter_batches(bytes(found.records))
            offset = last.next_offset


def _records(hour: int, pairs: Sequence[Pair]) -> list[Record]:
    return [
        Record(
            timestamp=START_MS + hour * HOUR_MS + number,
            key=key.encode(),
            value=None if value is None else value.encode(),
            headers=(("n", b"%d" % number),),
        )
        for number, (key, value) in enumerate(pairs)
    ]


def _comparable(header: BatchHeader, records: tuple[Record, ...], producer: int) -> Batch:
    if header.is_control:
        records = tuple(record._replace(timestamp=START_MS) for record in records)
    return Batch(
        header.base_offset,
        header.last_offset,
        producer,
        header.producer_epoch,
        header.base_sequence,
        header.attributes,
        None if header.is_control else header.max_timestamp - START_MS,
        tuple(record._replace(timestamp=record.timestamp - START_MS) for record in records),
    )
