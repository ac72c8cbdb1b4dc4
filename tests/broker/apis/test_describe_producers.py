"""DescribeProducers: idempotent and transactional producers of partitions, and errors."""

from __future__ import annotations

from typing import Any

from minibroker.broker.apis.describe_producers import API, UNKNOWN_TOPIC_TEXT
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.describe_producers import (
    DescribeProducersRequest,
    ProducerState,
    TopicRequest,
)
from tests.broker.apis.transactional import PID, WALL_MS, producer_at


def request(**topics: list[int]) -> DescribeProducersRequest:
    return DescribeProducersRequest(
        topics=[
            TopicRequest(name=name, partition_indexes=indexes) for name, indexes in topics.items()
        ]
    )


async def test_open_transaction_has_its_start_offset(log_apis: Any) -> None:
    producer = producer_at(log_apis, "t", 1)
    producer.write()
    producer.write()
    response = await log_apis.ask(API, request(t=[0, 1]), 0)
    empty, described = response.topics[0].partitions
    assert (empty.error_code, empty.active_producers) == (0, [])
    assert described.active_producers == [
        ProducerState(
            producer_id=PID,
            producer_epoch=0,
            last_sequence=1,
            last_timestamp=WALL_MS,
            coordinator_epoch=-1,
            current_txn_start_offset=0,
        )
    ]
    producer.end(committed=True)
    response = await log_apis.ask(API, request(t=[1]), 0)
    (state,) = response.topics[0].partitions[0].active_producers
    assert (state.producer_epoch, state.last_sequence) == (1, -1)
    assert (state.coordinator_epoch, state.current_txn_start_offset) == (0, -1)


async def test_partitions_that_cannot_be_described_have_errors(log_apis: Any) -> None:
    log_apis.hosted("t", 0).update_leadership(2, 1)
    response = await log_apis.ask(API, request(**{"t": [0, 9], "no": [0], "a/b": [0]}), 0)
    assert [
        (each.error_code, each.error_message)
        for topic in response.topics
        for each in topic.partitions
    ] == [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, None),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_TEXT),
        (
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            response.topics[2].partitions[0].error_message,
        ),
    ]
    assert "is invalid" in response.topics[2].partitions[0].error_message
