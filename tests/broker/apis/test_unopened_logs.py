"""Partitions whose log cannot be opened are answered with the log's error, not as unknown."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis import produce
from minibroker.broker.apis.base import Api
from minibroker.broker.apis.fetch import API
from minibroker.broker.apis.partition_logs import (
    DELETE_RECORDS,
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
)
from minibroker.broker.log.errors import LogError
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages import delete_records as dr
from minibroker_protocol.messages import fetch as f
from minibroker_protocol.messages import list_offsets as lo
from minibroker_protocol.messages import offset_for_leader_epoch as oe
from minibroker_protocol.messages import produce as p
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.schema import Message

AnyApi = Api[Any, Any, Any, Any]
BATCH = build_batch([Record(0, 1, None, b"v")])
REQUESTS: list[tuple[AnyApi, int, Message]] = [
    (
        produce.API,
        9,
        p.ProduceRequest(
            acks=1,
            topic_data=[
                p.TopicProduceData(
                    name="t", partition_data=[p.PartitionProduceData(index=0, records=BATCH)]
                )
            ],
        ),
    ),
    (
        API,
        11,
        f.FetchRequest(topics=[f.FetchTopic(topic="t", partitions=[f.FetchPartition()])]),
    ),
    (
        LIST_OFFSETS,
        7,
        lo.ListOffsetsRequest(
            topics=[
                lo.ListOffsetsTopic(name="t", partitions=[lo.ListOffsetsPartition(timestamp=-1)])
            ]
        ),
    ),
    (
        DELETE_RECORDS,
        2,
        dr.DeleteRecordsRequest(
            topics=[
                dr.DeleteRecordsTopic(name="t", partitions=[dr.DeleteRecordsPartition(offset=0)])
            ]
        ),
    ),
    (
        OFFSET_FOR_LEADER_EPOCH,
        4,
        oe.OffsetForLeaderEpochRequest(
            topics=[oe.OffsetForLeaderTopic(topic="t", partitions=[oe.OffsetForLeaderPartition()])]
        ),
    ),
]


def unopened(topic: str, partition: int) -> None:
    raise LogError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic}-{partition} can't be opened")


def codes(response: Any) -> list[int]:
    """The error codes of the response's partitions."""
    topics = response.responses if hasattr(response, "responses") else response.topics
    return [
        each.error_code
        for topic in topics
        for each in (
            topic.partition_responses if hasattr(topic, "partition_responses") else topic.partitions
        )
    ]


@pytest.mark.parametrize(
    ("api", "version", "request_"), REQUESTS, ids=lambda each: getattr(each, "key", None)
)
async def test_partition_with_unopened_log_is_kafka_storage_error(
    log_apis: Any, api: AnyApi, version: int, request_: Message
) -> None:
    for worker in log_apis.workers.values():
        worker.partition = unopened
    response = await log_apis.ask(api, request_, version)
    assert codes(response) == [ErrorCode.KAFKA_STORAGE_ERROR]
