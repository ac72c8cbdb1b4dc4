"""Requests that name a topic only by its id are found by its name."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.testing import MiniBroker
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.network.raw_client import RawClient

OTHER = bytes(15) + b"\1"


def topic_id(client: RawClient, name: str) -> bytes:
    (topic,) = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 12).topics
    return bytes(topic.topic_id)


def fetch(client: RawClient, *ids: bytes) -> None:
    partition = FetchPartition(partition=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic_id=each, partitions=[partition]) for each in ids]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=topics)
    client.ask(request, 13)


@pytest.mark.parametrize("enabled_later", [False, True])
def test_fetches_by_id_are_found_by_the_name_also_of_a_deleted_topic(enabled_later: bool) -> None:
    with MiniBroker(settings={"journal.enable": not enabled_later}) as broker:
        broker.create_topic("t")
        broker.create_topic("u")
        with broker.journal as journal, RawClient(broker.bootstrap_servers, "c") as client:
            first, other = topic_id(client, "t"), topic_id(client, "u")
            fetch(client, first, OTHER)
            broker.delete_topic("t")
            broker.create_topic("t")
            second = topic_id(client, "t")
            assert second != first
            fetch(client, second)
            fetch(client, other)

            def ids(name: str) -> list[list[Any]]:
                found = journal.entries(kind="request", api="Fetch", topic=name, decode=True)
                return [[topic["topic_id"] for topic in each["body"]["topics"]] for each in found]

            assert [len(each) for each in ids("t")] == [2, 1]
            assert len(ids("u")) == 1
            assert ids("v") == []
            journal.assert_in_order(
                {"kind": "request", "api": "Fetch", "topic": "t"},
                {"kind": "state", "topic": "t", "details": {"to": None}},
                {"kind": "response", "api": "Fetch", "topic": "t"},
                {"kind": "request", "api": "Fetch", "topic": "u"},
            )
