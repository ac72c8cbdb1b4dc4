from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner import murmur2 as oracle

from minibroker.client.errors import BrokerError, InvalidArgument
from minibroker.client.kafka_client import KafkaClient
from minibroker.client.producer import (
    BatchAcknowledgement,
    RecordProducer,
    murmur2,
    partition_of,
)
from minibroker_protocol.compression import Compression
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from minibroker_protocol.records import Record, iter_records
from minibroker_protocol.registry import ApiKey

PARTITIONS = 3


@pytest.fixture
def leader(fake_broker: Any) -> Any:
    """A leader that appends every batch at offset 100."""

    def produce(request: ProduceRequest) -> ProduceResponse | None:
        answers = [
            PartitionProduceResponse(index=item.index, base_offset=100)
            for item in request.topic_data[0].partition_data
        ]
        topic = TopicProduceResponse(name="cats", partition_responses=answers)
        return ProduceResponse(responses=[topic]) if request.acks else None

    topic = MetadataResponseTopic(
        name="cats",
        partitions=[
            MetadataResponsePartition(partition_index=index, leader_id=1)
            for index in range(PARTITIONS)
        ],
    )
    fake_broker.answers |= {
        ApiKey.METADATA: lambda _: MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="127.0.0.1", port=fake_broker.port)],
            topics=[topic],
        ),
        ApiKey.PRODUCE: produce,
    }
    return fake_broker


async def send(broker: Any, work: Callable[[RecordProducer], Any], **options: Any) -> Any:
    choices = {"acks": -1, "compression": Compression.NONE, **options}

    def run() -> Any:
        with KafkaClient(broker.address) as client:
            result = work(RecordProducer(client, "cats", **choices))
            client.metadata([])  # The response shows that the previous requests have arrived.
            return result

    with trio.fail_after(10):
        return await trio.to_thread.run_sync(run)


def flush(*records: Record) -> Callable[[RecordProducer], list[BatchAcknowledgement]]:
    def work(sender: RecordProducer) -> list[BatchAcknowledgement]:
        for record in records:
            sender.send(record)
        return sender.flush()

    return work


def produced(broker: Any) -> dict[int, list[Record]]:
    (request,) = [item for _, item in broker.requests if isinstance(item, ProduceRequest)]
    return {
        item.index: list(iter_records(item.records))
        for item in request.topic_data[0].partition_data
        if item.records is not None
    }


@pytest.mark.parametrize("codec", list(Compression))
async def test_producer_sends_records_unchanged(leader: Any, codec: Compression) -> None:
    record = Record(0, 1_700_000_000_000, b"tom", b"black", (("colour", b"black"),))
    await send(leader, flush(record), compression=codec)
    assert produced(leader) == {partition_of(b"tom", PARTITIONS): [record]}


async def test_producer_batches_records_without_key(leader: Any) -> None:
    acknowledged = await send(leader, flush(Record(value=b"a"), Record(value=b"b")))
    assert [(item.first_offset, item.records) for item in acknowledged] == [(100, 2)]


async def test_producer_with_partition_sends_all_records_there(leader: Any) -> None:
    await send(leader, flush(Record(key=b"x"), Record(key=b"y")), partition=2)
    assert list(produced(leader)) == [2]


async def test_producer_rejects_a_missing_partition(leader: Any) -> None:
    with pytest.raises(InvalidArgument, match="topic cats has partitions 0 to 2"):
        await send(leader, flush(), partition=3)


async def test_producer_with_acks_0_does_not_wait(leader: Any) -> None:
    (acknowledged,) = await send(leader, flush(Record(value=b"a")), acks=0)
    assert acknowledged.first_offset == -1
    assert produced(leader)


async def test_producer_raises_for_a_rejected_batch(leader: Any) -> None:
    answer = PartitionProduceResponse(
        index=1, error_code=ErrorCode.MESSAGE_TOO_LARGE, error_message="too large"
    )
    leader.answers[ApiKey.PRODUCE] = lambda _: ProduceResponse(
        responses=[TopicProduceResponse(name="cats", partition_responses=[answer])]
    )
    with pytest.raises(
        BrokerError, match="partition 1 of topic cats: MESSAGE_TOO_LARGE: too large"
    ):
        await send(leader, flush(Record(value=b"a")))


@given(st.binary(max_size=64))
def test_murmur2_agrees_with_kafka_python(data: bytes) -> None:
    assert murmur2(data) == oracle(data) & 0xFFFFFFFF


@given(st.binary(max_size=64), st.integers(1, 1000))
def test_partition_of_is_in_range(key: bytes, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions
