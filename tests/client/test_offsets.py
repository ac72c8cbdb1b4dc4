from __future__ import annotations

from typing import Any

import pytest

from minibroker.client.errors import BrokerError
from minibroker.client.kafka_client import KafkaClient
from minibroker.client.offsets import EARLIEST, LATEST, committed_offsets, list_offsets
from minibroker.client.producer import RecordProducer
from minibroker.testing import MiniBroker
from minibroker_protocol.compression import Compression
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from minibroker_protocol.messages.metadata import MetadataResponsePartition
from minibroker_protocol.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from minibroker_protocol.records import Record
from minibroker_protocol.registry import ApiKey
from tests.client.fake_broker import in_thread


def test_list_offsets_returns_every_partition(
    minibroker: MiniBroker, minibroker_group: str
) -> None:
    topic = minibroker.create_topic(minibroker_group, 3)
    with KafkaClient(minibroker.bootstrap_servers) as client:
        producer = RecordProducer(client, topic, acks=-1, compression=Compression.NONE, partition=1)
        for value in (b"a", b"b"):
            producer.send(Record(timestamp=1, value=value))
        producer.flush()
        found = client.topic(topic)
        assert list_offsets(client, found, EARLIEST) == {0: 0, 1: 0, 2: 0}
        assert list_offsets(client, found, LATEST) == {0: 0, 1: 2, 2: 0}
        assert list_offsets(client, found, 0) == {0: -1, 1: 0, 2: -1}


def test_list_offsets_of_missing_partition_raises(
    minibroker: MiniBroker, minibroker_topic: str
) -> None:
    with KafkaClient(minibroker.bootstrap_servers) as client:
        found = client.topic(minibroker_topic)
        found.partitions = [MetadataResponsePartition(partition_index=9, leader_id=1)]
        with pytest.raises(BrokerError, match=f"offsets of {minibroker_topic}-9"):
            list_offsets(client, found, LATEST)


@pytest.fixture
def coordinator(fake_broker: Any) -> Any:
    """A coordinator with offset 42 for cats-0 only, which answers in both forms of the response."""
    found = Coordinator(key="g", node_id=1, host="127.0.0.1", port=fake_broker.port)
    old = [
        OffsetFetchResponsePartition(partition_index=index, committed_offset=offset)
        for index, offset in enumerate((42, -1))
    ]
    new = [
        OffsetFetchResponsePartitions(partition_index=index, committed_offset=offset)
        for index, offset in enumerate((42, -1))
    ]
    group = OffsetFetchResponseGroup(
        group_id="g", topics=[OffsetFetchResponseTopics(name="cats", partitions=new)]
    )
    answer = OffsetFetchResponse(
        topics=[OffsetFetchResponseTopic(name="cats", partitions=old)], groups=[group]
    )
    fake_broker.answers |= {
        ApiKey.FIND_COORDINATOR: lambda _: FindCoordinatorResponse(coordinators=[found]),
        ApiKey.OFFSET_FETCH: lambda _: answer,
    }
    return fake_broker


async def fetch_committed(broker: Any, *arguments: Any) -> dict[tuple[str, int], int]:
    def run() -> dict[tuple[str, int], int]:
        with KafkaClient(broker.address) as client:
            return committed_offsets(client, "g", *arguments)

    return await in_thread(run)


@pytest.mark.parametrize("newest", [5, 8, 9])
@pytest.mark.parametrize("wanted", [(), ("cats", [0, 1])])
async def test_committed_offsets_omit_partitions_without_commit(
    coordinator: Any, newest: int, wanted: tuple[Any, ...]
) -> None:
    coordinator.versions[ApiKey.OFFSET_FETCH] = (1, newest)
    assert await fetch_committed(coordinator, *wanted) == {("cats", 0): 42}


async def test_committed_offsets_request_uses_topic_names(coordinator: Any) -> None:
    await fetch_committed(coordinator)
    version, _ = coordinator.requests[-1]
    assert version == 9


async def test_committed_offsets_of_unknown_group_raise(coordinator: Any) -> None:
    group = OffsetFetchResponseGroup(group_id="g", error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    coordinator.answers[ApiKey.OFFSET_FETCH] = lambda _: OffsetFetchResponse(groups=[group])
    with pytest.raises(BrokerError, match="offsets of group g: GROUP_ID_NOT_FOUND"):
        await fetch_committed(coordinator)
