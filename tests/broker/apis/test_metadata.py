"""Metadata: requested topics, automatically created ones, and advertised addresses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from minibroker.broker.apis.base import CONTROLLER
from minibroker.broker.apis.metadata import API
from minibroker.broker.metadata.image import (
    Broker,
    PartitionRegistration,
    TopicCreated,
    Update,
    apply,
)
from minibroker.broker.metadata.topics import NewTopic
from minibroker.broker.security.acl import (
    CLUSTER_OPERATIONS,
    OPERATIONS_NOT_ASKED,
    TOPIC_OPERATIONS,
)
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.types import ZERO_UUID

VERSIONS = range(14)
OFFSETS = "__consumer_offsets"
ACTIVITY = "__minibroker_activity"


def about(*names: str, **fields: Any) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], **fields)


async def with_topics(apis: Any, *names: str) -> None:
    await apis.create_topics([NewTopic(name, 2) for name in names])


@pytest.mark.parametrize("version", VERSIONS)
async def test_topic_is_described_in_every_version(apis: Any, version: int) -> None:
    await with_topics(apis, "a")
    response = await apis.ask(API, about("a"), version)
    assert apis.asked == {}
    [broker] = response.brokers
    assert (broker.node_id, broker.host, broker.port) == (1, "127.0.0.1", 9092)
    [topic] = response.topics
    assert (topic.error_code, topic.name) == (0, "a")
    assert [
        (p.error_code, p.partition_index, p.leader_id, p.replica_nodes, p.isr_nodes)
        for p in topic.partitions
    ] == [(0, 0, 1, [1], [1]), (0, 1, 1, [1], [1])]
    if version >= 1:
        assert response.controller_id == 1
        assert not topic.is_internal
    if version >= 2:
        assert response.cluster_id == apis.cluster.image.cluster_id
    if version >= 10:
        assert topic.topic_id == apis.cluster.image.topics["a"].topic_id


async def test_broker_address_is_that_of_the_request_listener(apis: Any) -> None:
    response = await apis.ask(API, about(), 9, listener="OUTSIDE")
    assert [(broker.host, broker.port) for broker in response.brokers] == [("example.test", 19092)]


@pytest.mark.parametrize("version", VERSIONS)
async def test_null_topics_or_empty_in_version_0_return_all_topics(apis: Any, version: int) -> None:
    await with_topics(apis, "a", "b")
    everything = MetadataRequest(topics=None if version else [])
    response = await apis.ask(API, everything, version)
    assert {topic.name for topic in response.topics} == {"a", "b", OFFSETS}
    if version:
        assert {topic.name for topic in response.topics if topic.is_internal} == {OFFSETS}
        assert (await apis.ask(API, MetadataRequest(topics=[]), version)).topics == []


async def test_activity_topic_is_not_reported_as_internal(make_apis: Any) -> None:
    apis = await make_apis("activity.enable=true")
    [topic] = (await apis.ask(API, about(ACTIVITY), 9)).topics
    assert apis.cluster.image.topics[ACTIVITY].internal
    assert not topic.is_internal


@pytest.mark.parametrize("version", [0, 4, 13])
async def test_missing_topic_is_created_and_described_in_same_response(
    apis: Any, version: int
) -> None:
    await with_topics(apis, "a")
    response = await apis.ask(API, about("new", "a", "new"), version)
    assert apis.asked[CONTROLLER].names == ("new",)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [("new", 0), ("a", 0)]
    assert len(response.topics[0].partitions) == 1


async def test_topic_is_auto_created_only_if_client_and_broker_allow_it(make_apis: Any) -> None:
    apis = await make_apis()
    response = await apis.ask(API, about("new", allow_auto_topic_creation=False), 4)
    assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    forbidding = await make_apis("auto.create.topics.enable=false")
    response = await forbidding.ask(API, about("new"), 13)
    assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for used in (apis, forbidding):
        assert used.asked == {}
        assert set(used.cluster.image.topics) == {OFFSETS}


@pytest.mark.parametrize("name", ["", "a b", ".."])
async def test_invalid_topic_name_is_not_auto_created(apis: Any, name: str) -> None:
    response = await apis.ask(API, about(name), 9)
    assert apis.asked == {}
    assert response.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert response.topics[0].name == name


async def test_failed_auto_creation_returns_its_error(make_apis: Any) -> None:
    apis = await make_apis("default.replication.factor=3")
    response = await apis.ask(API, about("new"), 9)
    assert response.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize("version", [0, 4, 13])
async def test_auto_creation_beyond_mutation_quota_is_unknown_topic(
    make_apis: Any, version: int
) -> None:
    apis = await make_apis("num.partitions=3")
    apis.controller.permits = 2
    response = await apis.ask(API, about("first", "second"), version)
    assert [topic.error_code for topic in response.topics] == [
        ErrorCode.NONE,  # which overdraws it
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert "second" not in apis.cluster.image.topics
    assert response.throttle_time_ms == 0
    assert apis.controller.mutator is not None
    assert apis.controller.mutator.strict
    apis.controller.permits = 3
    [topic] = (await apis.ask(API, about("second"), version)).topics
    assert topic.error_code == ErrorCode.NONE
    assert len(topic.partitions) == 3
    assert apis.controller.permits == 0


async def test_topic_created_concurrently_is_leader_not_available(apis: Any) -> None:
    before = apis.cluster.image
    await apis.cluster.create_topics([NewTopic("new")])
    apis.image = before
    response = await apis.ask(API, about("new"), 9)
    assert response.topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE


@pytest.mark.parametrize("version", [12, 13])
async def test_topics_are_found_by_id(apis: Any, version: int) -> None:
    await with_topics(apis, "a", "b")
    known = apis.cluster.image.topics["a"].topic_id
    unknown = b"\x01" * 16
    request = MetadataRequest(
        topics=[
            MetadataRequestTopic(name=None, topic_id=known),
            MetadataRequestTopic(name=None, topic_id=unknown),
            MetadataRequestTopic(name="b"),
            MetadataRequestTopic(name="new"),
        ]
    )
    response = await apis.ask(API, request, version)
    assert apis.asked == {}, "names are passed over, so none of them is made"
    assert [(topic.name, topic.topic_id, topic.error_code) for topic in response.topics] == [
        ("a", known, ErrorCode.NONE),
        (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


@pytest.mark.parametrize(
    "topic",
    [
        MetadataRequestTopic(name=None, topic_id=ZERO_UUID),
        MetadataRequestTopic(name="a", topic_id=b"\x01" * 16),
    ],
)
async def test_topic_ids_before_version_12_are_rejected(
    apis: Any, topic: MetadataRequestTopic
) -> None:
    response = await apis.ask(API, MetadataRequest(topics=[topic]), 11)
    assert response.topics[0].error_code == ErrorCode.INVALID_REQUEST
    assert response.topics[0].name == (topic.name or "")
    assert apis.asked == {}


async def test_authorized_operations_are_included_if_requested(apis: Any) -> None:
    await with_topics(apis, "a")
    asking = about(
        "a", include_cluster_authorized_operations=True, include_topic_authorized_operations=True
    )
    response = await apis.ask(API, asking, 8)
    assert response.cluster_authorized_operations == CLUSTER_OPERATIONS
    assert response.topics[0].topic_authorized_operations == TOPIC_OPERATIONS
    response = await apis.ask(API, about("a"), 8)
    assert response.cluster_authorized_operations == OPERATIONS_NOT_ASKED
    assert response.topics[0].topic_authorized_operations == OPERATIONS_NOT_ASKED


@pytest.fixture
async def torn(apis: Any) -> Any:
    """A cluster that has lost broker 3 and whose broker 2 has no listener OUTSIDE."""
    image = apis.cluster.image
    second = Broker(2, None, {"PLAINTEXT": ("h2", 9092)})
    image = replace(image, brokers={**image.brokers, 2: second})
    topic = apis.cluster.image.topics[OFFSETS]._replace(
        name="a",
        topic_id=b"\x02" * 16,
        internal=False,
        partitions=(
            PartitionRegistration(0, 1, 4, (1, 2), (1, 2)),
            PartitionRegistration(1, 2, 5, (2, 3), (2,)),
            PartitionRegistration(2, 3, 6, (3,), (3,)),
        ),
    )
    apis.image = apply(image, TopicCreated(topic))
    return apis


async def test_replicas_on_dead_brokers_are_offline(torn: Any) -> None:
    response = await torn.ask(API, about("a"), 9)
    assert [
        (p.error_code, p.leader_id, p.leader_epoch, p.replica_nodes, p.offline_replicas)
        for p in response.topics[0].partitions
    ] == [
        (ErrorCode.NONE, 1, 4, [1, 2], []),
        (ErrorCode.NONE, 2, 5, [2, 3], [3]),
        (ErrorCode.LEADER_NOT_AVAILABLE, -1, 6, [3], [3]),
    ]


async def test_leader_without_listener_is_listener_not_found_since_version_6(torn: Any) -> None:
    for version, error in ((5, ErrorCode.LEADER_NOT_AVAILABLE), (6, ErrorCode.LISTENER_NOT_FOUND)):
        response = await torn.ask(API, about("a"), version, listener="OUTSIDE")
        assert [p.error_code for p in response.topics[0].partitions] == [
            ErrorCode.NONE,
            error,
            ErrorCode.LEADER_NOT_AVAILABLE,
        ]


async def test_version_0_omits_offline_replicas_with_replica_not_available(torn: Any) -> None:
    response = await torn.ask(API, about("a"), 0)
    assert [
        (p.error_code, p.replica_nodes, p.isr_nodes) for p in response.topics[0].partitions
    ] == [
        (ErrorCode.NONE, [1, 2], [1, 2]),
        (ErrorCode.REPLICA_NOT_AVAILABLE, [2], [2]),
        (ErrorCode.LEADER_NOT_AVAILABLE, [], []),
    ]


async def test_auto_created_topic_is_published_before_response(apis: Any) -> None:
    await apis.ask(API, about("new"), 9)
    [update] = apis.controller.published
    assert isinstance(update, Update)
    assert [type(change) for change in update.changes] == [TopicCreated]
