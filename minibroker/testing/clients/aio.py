"""A process of a workload with aiokafka.

Owns the event loop that the library needs, and the translation of calls and errors. It must never
know workloads. Invariant: every error of the library is a ``ClientFailure``, and the loop runs in a
thread of its own, so that heartbeats are sent between operations.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError

from minibroker.testing.clients.session import (
    PATIENCE_S,
    POLL_S,
    POLLED_MAX,
    ClientFailure,
    ClientLibrary,
    ClientOptions,
    ConsumedRecord,
    main,
    partition_of,
    polled_records,
)


class AioLibrary(ClientLibrary):
    """aiokafka."""

    name = f"aiokafka {aiokafka.__version__}"

    def __init__(self, options: ClientOptions) -> None:
        super().__init__(options)
        self._producer: Any = None
        self._consumer: Any = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def open_producer(self) -> None:
        self._call(self._open_producer())

    async def _open_producer(self) -> None:
        await _stop(self._producer)
        self._producer = AIOKafkaProducer(
            **self.connection_options(),
            enable_idempotence=self.options.idempotence,
            transactional_id=self.options.transactional_id,
            transaction_timeout_ms=PATIENCE_S * 1000,
            request_timeout_ms=PATIENCE_S * 500,
        )
        await self._producer.start()

    def open_consumer(self) -> None:
        self._call(self._open_consumer())

    async def _open_consumer(self) -> None:
        await _stop(self._consumer)
        self._consumer = AIOKafkaConsumer(**self.consumer_options())
        await self._consumer.start()

    def assign(self, positions: Mapping[str, int]) -> None:
        self._call(self._assign(positions))

    async def _assign(self, positions: Mapping[str, int]) -> None:
        partitions = {
            TopicPartition(*partition_of(key)): offset for key, offset in positions.items()
        }
        self._consumer.assign(list(partitions))
        for partition, offset in partitions.items():
            self._consumer.seek(partition, offset)

    def subscribe(self, topics: list[str]) -> None:
        self._call(self._subscribe(topics))

    async def _subscribe(self, topics: list[str]) -> None:
        listener = self.rebalance_listener(ConsumerRebalanceListener)
        self._consumer.subscribe(topics, listener=listener)

    def poll(self) -> Iterable[ConsumedRecord]:
        wait = self._consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=POLLED_MAX)
        found = self._call(wait)
        return polled_records(found)

    def send(self, topic: str, partition: int, value: bytes) -> int | None:
        metadata = self._call(self._producer.send_and_wait(topic, value, partition=partition))
        offset: int = metadata.offset
        return offset

    def begin(self) -> None:
        self._call(self._producer.begin_transaction())

    def commit(self) -> None:
        self._call(self._producer.commit_transaction())

    def abort(self) -> None:
        self._call(self._producer.abort_transaction())

    def close(self) -> None:
        for client in (self._consumer, self._producer):
            self._call(_stop(client))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        future = asyncio.run_coroutine_threadsafe(
            asyncio.wait_for(coroutine, PATIENCE_S + 5), self._loop
        )
        try:
            return future.result()
        except (KafkaError, TimeoutError, AssertionError) as failure:
            # Calls in a state of the transaction that does not allow them fail an assertion.
            raise ClientFailure(repr(failure)) from failure


async def _stop(client: Any) -> None:
    """Stop a client that may be in any state."""
    if client is not None:
        with suppress(KafkaError, TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(client.stop(), PATIENCE_S)


if __name__ == "__main__":
    main(AioLibrary)
