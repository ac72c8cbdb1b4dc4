"""Real clients above their quota are throttled, whether they obey the throttle time or not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest

from system_tests.connections.conftest import Dial, Limited
from system_tests.connections.dialling import gauge, set_quota
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.waiting import PATIENCE_S

pytestmark = pytest.mark.minibroker

TOPIC = "t"
RECORD = bytes(20_000)


def produce_with_librdkafka(servers: str, client_id: str, count: int) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "client.id": client_id, "linger.ms": 0}
    )
    for _ in range(count):
        producer.produce(TOPIC, RECORD)
        assert producer.flush(PATIENCE_S) == 0


def produce_with_kafka_python(servers: str, client_id: str, count: int) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=servers, client_id=client_id)
    for _ in range(count):
        producer.send(TOPIC, RECORD).get(PATIENCE_S)
    producer.close()


def produce_with_aiokafka(servers: str, client_id: str, count: int) -> None:
    async def produce() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, client_id=client_id)
        await producer.start()
        for _ in range(count):
            await producer.send_and_wait(TOPIC, RECORD)
        await producer.stop()

    asyncio.run(produce())


def consume_with_librdkafka(servers: str, client_id: str, count: int) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "client.id": client_id, "group.id": client_id}
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    for _ in range(count):
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None
    consumer.close()


def consume_with_kafka_python(servers: str, client_id: str, count: int) -> None:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=servers,
        client_id=client_id,
        consumer_timeout_ms=PATIENCE_S * 1000,
        auto_offset_reset="earliest",
    )
    consumer.assign([kafka.TopicPartition(TOPIC, 0)])
    for _ in range(count):
        next(consumer)
    consumer.close()


def consume_with_aiokafka(servers: str, client_id: str, count: int) -> None:
    async def consume() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=servers, client_id=client_id, auto_offset_reset="earliest"
        )
        await consumer.start()
        consumer.assign([aiokafka.TopicPartition(TOPIC, 0)])
        for _ in range(count):
            await asyncio.wait_for(consumer.getone(), PATIENCE_S)
        await consumer.stop()

    asyncio.run(consume())


Work = Callable[[str, str, int], None]
PRODUCERS: list[Work] = [
    produce_with_librdkafka,
    produce_with_kafka_python,
    produce_with_aiokafka,
]
CONSUMERS: list[Work] = [
    consume_with_librdkafka,
    consume_with_kafka_python,
    consume_with_aiokafka,
]


@pytest.fixture
def broker(limited: Limited) -> RunningBroker:
    started = limited()
    servers = ":".join(map(str, started.address))
    produce_with_librdkafka(servers, "maker", 25)
    return started


def timed(work: Work, broker: RunningBroker, count: int) -> float:
    began = time.monotonic()
    work(":".join(map(str, broker.address)), "held", count)
    return time.monotonic() - began


def throttled_s(broker: RunningBroker, api: str) -> float:
    """Return the seconds of throttles in responses of an API."""
    return gauge(broker, "minibroker_request_throttle_seconds_sum", api=api)


def name_of(work: Any) -> str:
    return str(work.__name__)


@pytest.mark.parametrize("work", PRODUCERS, ids=name_of)
def test_producer_above_byte_rate_is_throttled(
    work: Work, broker: RunningBroker, dial: Dial
) -> None:
    set_quota(dial(broker)[0], {"client-id": "held"}, producer_byte_rate=100_000)
    # Ten seconds' worth may pass at once, which is fifty; each further one waits a little.
    took = timed(work, broker, 60)
    throttles = throttled_s(broker, "Produce")
    assert throttles > 2
    assert took > throttles - 2  # the last throttle started when all was done


@pytest.mark.parametrize("work", CONSUMERS, ids=name_of)
def test_consumer_above_byte_rate_is_throttled_and_reads_all(
    work: Work, broker: RunningBroker, dial: Dial
) -> None:
    set_quota(dial(broker)[0], {"client-id": "held"}, consumer_byte_rate=40_000)
    took = timed(work, broker, 25)
    assert throttled_s(broker, "Fetch") > 1
    assert took > 1


@pytest.mark.parametrize("work", PRODUCERS, ids=name_of)
def test_client_above_request_percentage_is_throttled(
    work: Work, broker: RunningBroker, dial: Dial
) -> None:
    both: dict[str, str | None] = {"user": "ANONYMOUS", "client-id": "held"}
    set_quota(dial(broker)[0], both, request_percentage=0.001)
    set_quota(dial(broker)[0], {"user": None}, request_percentage=1000)  # a decoy
    assert timed(work, broker, 4) > 2


def test_neighbour_is_not(broker: RunningBroker, dial: Dial) -> None:
    set_quota(dial(broker)[0], {"client-id": "other"}, producer_byte_rate=1)
    produce_with_librdkafka(broker.bootstrap_servers, "held", 20)
    assert throttled_s(broker, "Produce") == 0
