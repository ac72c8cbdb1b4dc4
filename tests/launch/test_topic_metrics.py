"""Bytes and records by topic, and lag, of a broker whose clients fetch in every way."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from minibroker.client.connection import BrokerConnection, parse_bootstrap
from minibroker.testing import MiniBroker
from minibroker_protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.types import uuid_from_text

WITH_NAMES, WITH_IDS = 12, 16
NO_SESSION, NEW_SESSION = -1, 0
SMALL, LARGE = 10, 100_000
"""Bytes of a record; large ones are sent from the file."""


def shown(broker: MiniBroker, name: str, **labels: str) -> float:
    text = broker.control.request("GET", "/metrics").decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("session_epoch", [NO_SESSION, NEW_SESSION])
@pytest.mark.parametrize("version", [WITH_NAMES, WITH_IDS])
def test_bytes_are_counted_by_topic(
    minibroker: MiniBroker, minibroker_topic: str, version: int, session_epoch: int, size: int
) -> None:
    batch = build_batch([Record(value=bytes(size)), Record(value=b"")])
    topic_id = uuid_from_text(minibroker.control.get("v1", "topics", minibroker_topic)["topic_id"])
    (address,) = parse_bootstrap(minibroker.bootstrap_servers)
    connection = BrokerConnection(address)
    parts = [PartitionProduceData(index=0, records=batch)]
    produce: Any = ProduceRequest(
        acks=-1, topic_data=[TopicProduceData(name=minibroker_topic, partition_data=parts)]
    )
    connection._exchange(produce, ProduceResponse, 9)
    wanted = FetchPartition(
        partition=0,
        fetch_offset=0,
        current_leader_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=1_000_000,
    )
    topics = [FetchTopic(topic=minibroker_topic, topic_id=topic_id, partitions=[wanted])]
    fetch = FetchRequest(
        max_wait_ms=0, max_bytes=1_000_000, session_epoch=session_epoch, topics=topics
    )
    answer = connection._exchange(fetch, FetchResponse, version)
    connection.close()
    assert len(answer.responses[0].partitions[0].records or b"") == len(batch)
    of_topic = {"topic": minibroker_topic}
    assert shown(minibroker, "minibroker_topic_bytes_in_total", **of_topic) == len(batch)
    assert shown(minibroker, "minibroker_topic_records_in_total", **of_topic) == 2
    assert shown(minibroker, "minibroker_topic_bytes_out_total", **of_topic) == len(batch)


def test_lag_is_the_distance_to_the_end_of_the_log(
    minibroker: MiniBroker, minibroker_topic: str, minibroker_group: str
) -> None:
    (address,) = parse_bootstrap(minibroker.bootstrap_servers)
    connection = BrokerConnection(address)
    batch = build_batch([Record(value=b"")] * 3)
    parts = [PartitionProduceData(index=0, records=batch)]
    connection.send(
        ProduceRequest(
            acks=-1, topic_data=[TopicProduceData(name=minibroker_topic, partition_data=parts)]
        ),
        ProduceResponse,
    )
    offset = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=""
    )
    topics = [OffsetCommitRequestTopic(name=minibroker_topic, partitions=[offset])]
    commit = OffsetCommitRequest(
        group_id=minibroker_group, generation_id_or_member_epoch=-1, topics=topics
    )
    connection.send(commit, OffsetCommitResponse)
    connection.close()
    of_group = {"group": minibroker_group, "topic": minibroker_topic, "partition": "0"}
    assert shown(minibroker, "minibroker_group_lag", **of_group) == 2
    assert shown(minibroker, "minibroker_group_committed_offset", **of_group) == 1


def test_disk_is_shown(minibroker: MiniBroker) -> None:
    free = shown(minibroker, "minibroker_log_dir_free_bytes")
    assert 0 < free <= shown(minibroker, "minibroker_log_dir_total_bytes")
