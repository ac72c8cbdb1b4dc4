from __future__ import annotations

from typing import Any

import pytest
import trio

from minibroker.client.errors import BrokerError
from minibroker.client.fetcher import ConsumerRecord, Fetcher
from minibroker.client.kafka_client import KafkaClient
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from minibroker_protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.registry import ApiKey

RECORDS = [Record(offset, 0, None, b"%d" % offset) for offset in range(10, 14)]


def answer(records: bytes | None = None, code: int = 0) -> FetchResponse:
    data = PartitionData(partition_index=0, error_code=code, records=records)
    return FetchResponse(responses=[FetchableTopicResponse(topic="cats", partitions=[data])])


@pytest.fixture
def leader(fake_broker: Any) -> Any:
    topic = MetadataResponseTopic(
        name="cats", partitions=[MetadataResponsePartition(partition_index=0, leader_id=1)]
    )
    fake_broker.answers |= {
        ApiKey.METADATA: lambda _: MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="127.0.0.1", port=fake_broker.port)],
            topics=[topic],
        ),
        ApiKey.FETCH: lambda _: answer(build_batch(RECORDS, base_offset=10)),
    }
    return fake_broker


async def poll(broker: Any, position: int, times: int = 1) -> tuple[list[ConsumerRecord], int]:
    """Fetch from ``position``; return the records and the new position."""

    def run() -> tuple[list[ConsumerRecord], int]:
        with KafkaClient(broker.address) as client:
            reader = Fetcher(client, "cats", {0: position})
            found = [message for _ in range(times) for message in reader.poll(1)]
            return found, reader.positions[0]

    with trio.fail_after(10):
        return await trio.to_thread.run_sync(run)


async def test_fetcher_returns_records_in_order_and_advances(leader: Any) -> None:
    found, position = await poll(leader, 10)
    assert found == [ConsumerRecord("cats", 0, record) for record in RECORDS]
    assert position == 14


async def test_fetcher_omits_records_before_the_position(leader: Any) -> None:
    found, _ = await poll(leader, 12)
    assert [message.record.offset for message in found] == [12, 13]


async def test_fetcher_skips_control_batches(leader: Any) -> None:
    control = build_batch(RECORDS, base_offset=10, control=True)
    more = build_batch(RECORDS[:1], base_offset=14)
    leader.answers[ApiKey.FETCH] = lambda _: answer(control + more)
    found, position = await poll(leader, 10)
    assert [message.record.offset for message in found] == [14]
    assert position == 15


async def test_fetcher_ignores_a_truncated_batch(leader: Any) -> None:
    first, second = build_batch(RECORDS, base_offset=10), build_batch(RECORDS, base_offset=14)
    leader.answers[ApiKey.FETCH] = lambda _: answer(first + second[:-1])
    _, position = await poll(leader, 10)
    assert position == 14


async def test_fetcher_without_new_records_returns_none(leader: Any) -> None:
    leader.answers[ApiKey.FETCH] = lambda _: answer()
    assert await poll(leader, 10) == ([], 10)


async def test_fetcher_refreshes_a_changed_leader(leader: Any) -> None:
    replies = [
        answer(code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        answer(build_batch(RECORDS, base_offset=10)),
    ]
    leader.answers[ApiKey.FETCH] = lambda _: replies.pop(0)
    found, _ = await poll(leader, 10, times=2)
    assert len(found) == 4
    assert len([item for _, item in leader.requests if isinstance(item, MetadataRequest)]) == 2


async def test_fetcher_raises_for_offset_out_of_range(leader: Any) -> None:
    leader.answers[ApiKey.FETCH] = lambda _: answer(code=ErrorCode.OFFSET_OUT_OF_RANGE)
    with pytest.raises(BrokerError, match="cats-0: OFFSET_OUT_OF_RANGE"):
        await poll(leader, 99)
    (request,) = [item for _, item in leader.requests if isinstance(item, FetchRequest)]
    assert request.topics[0].partitions[0].fetch_offset == 99
