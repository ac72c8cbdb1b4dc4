"""Topics: hidden, shown, and created ones."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.metadata.topics import NewTopic
from minibroker.broker.security.acl import OPERATIONS_NOT_ASKED, Operation, Resource
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from minibroker_protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.apis.authorization.callers import ALICE, ROOT, SETTINGS, ask_as, grant
from tests.broker.apis.conftest import ApisMaker

REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture
async def apis(make_apis: ApisMaker) -> Any:
    """Of four names there are two topics, and of each pair Alice may see one."""
    made = await make_apis(*SETTINGS)
    outcome = await made.cluster.create_topics([NewTopic("seen"), NewTopic("hidden")])
    await made.controller.publish(outcome.updates)
    await grant(made, Resource.TOPIC, "seen", Operation.DESCRIBE)
    await grant(made, Resource.TOPIC, "absent", Operation.DESCRIBE)
    return made


def asked(*names: str, create: bool = False, **fields: Any) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=create, **fields)


async def names(apis: Any, request: MetadataRequest, version: int = 9) -> dict[Any, int]:
    response = await ask_as(apis, ALICE, request, version)
    return {topic.name: topic.error_code for topic in response.topics}


async def test_metadata_error_of_unauthorized_topic_does_not_reveal_existence(apis: Any) -> None:
    found = await names(apis, asked("seen", "hidden", "absent", "nowhere"))
    assert found == {"seen": 0, "hidden": REFUSED, "absent": UNKNOWN, "nowhere": REFUSED}


@pytest.mark.parametrize("version", [0, 1, 13])
async def test_metadata_of_all_topics_omits_unauthorized_topics(apis: Any, version: int) -> None:
    every = MetadataRequest(topics=[] if version == 0 else None)
    assert await names(apis, every, version) == {"seen": 0}
    assert await names(apis, asked("hidden"), min(version, 11)) == {"hidden": REFUSED}


async def test_metadata_by_id_does_not_reveal_name_of_unauthorized_topic(apis: Any) -> None:
    ids = {name: topic.topic_id for name, topic in apis.cluster.image.topics.items()}
    topics = [
        MetadataRequestTopic(name=None, topic_id=ids["seen"]),
        MetadataRequestTopic(name=None, topic_id=ids["hidden"]),
        MetadataRequestTopic(name=None, topic_id=b"x" * 16),
    ]
    response = await ask_as(apis, ALICE, MetadataRequest(topics=topics), 13)
    assert {(one.name, one.error_code) for one in response.topics} == {
        ("seen", 0),
        (None, REFUSED),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
    }


async def test_auto_topic_creation_requires_create_permission(apis: Any) -> None:
    assert await names(apis, asked("absent", create=True)) == {"absent": REFUSED}
    assert "absent" not in apis.cluster.image.topics
    await grant(apis, Resource.TOPIC, "absent", Operation.CREATE)
    assert await names(apis, asked("absent", create=True)) == {"absent": 0}


async def test_authorized_operations_are_those_of_the_principal(apis: Any) -> None:
    fields = {
        "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": True,
    }
    response = await ask_as(apis, ALICE, asked("seen", "absent", "hidden", **fields), 9)
    found = {topic.name: topic.topic_authorized_operations for topic in response.topics}
    may = 1 << Operation.DESCRIBE
    assert found == {"seen": may, "absent": may, "hidden": OPERATIONS_NOT_ASKED}
    assert response.cluster_authorized_operations == 0


@pytest.mark.parametrize("whole", [False, True])
async def test_create_topics_requires_create_on_topic_or_cluster(apis: Any, whole: bool) -> None:
    if whole:
        await grant(apis, Resource.CLUSTER, "kafka-cluster", Operation.CREATE)
    else:
        await grant(apis, Resource.TOPIC, "mine", Operation.CREATE)
    await grant(apis, Resource.TOPIC, "mine", Operation.DESCRIBE_CONFIGS)
    topics = [
        CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        for name in ("mine", "theirs")
    ]
    response = await ask_as(apis, ALICE, CreateTopicsRequest(topics=topics), 7)
    results = {result.name: result for result in response.topics}
    assert results["mine"].error_code == 0
    assert results["mine"].configs
    theirs = results["theirs"]
    assert theirs.error_code == (0 if whole else REFUSED)
    if whole:
        assert theirs.topic_config_error_code == REFUSED
        assert (theirs.num_partitions, theirs.configs) == (-1, [])


async def test_duplicate_topics_are_rejected_before_authorization(apis: Any) -> None:
    made = [CreatableTopic(name="hidden", num_partitions=1, replication_factor=1)] * 2
    grown = [CreatePartitionsTopic(name="hidden", count=2)] * 2
    gone = [DeleteTopicState(name="hidden")] * 2
    for who in (ALICE, ROOT):
        created = await ask_as(apis, who, CreateTopicsRequest(topics=made), 7)
        enlarged = await ask_as(apis, who, CreatePartitionsRequest(topics=grown), 3)
        deleted = await ask_as(apis, who, DeleteTopicsRequest(topics=gone), 6)
        older = await ask_as(apis, who, DeleteTopicsRequest(topic_names=["hidden"] * 2), 5)
        answers = [created.topics, enlarged.results, deleted.responses, older.responses]
        found = [[(each.name, each.error_code) for each in one] for one in answers]
        assert found == [[("hidden", ErrorCode.INVALID_REQUEST)]] * 4


async def test_duplicate_unauthorized_topic_is_listed_once(apis: Any) -> None:
    response = await ask_as(apis, ALICE, asked("hidden", "hidden"), 9)
    assert [topic.name for topic in response.topics] == ["hidden"]


async def test_delete_of_unknown_topic_is_revealed_only_with_describe(apis: Any) -> None:
    topics = [DeleteTopicState(name=name) for name in ("seen", "hidden", "absent", "nowhere")]
    response = await ask_as(apis, ALICE, DeleteTopicsRequest(topics=topics), 6)
    found = {result.name: result.error_code for result in response.responses}
    assert found == {"seen": REFUSED, "hidden": REFUSED, "absent": UNKNOWN, "nowhere": REFUSED}


async def test_delete_on_cluster_allows_delete_of_every_topic(apis: Any) -> None:
    await grant(apis, Resource.CLUSTER, "kafka-cluster", Operation.DELETE)
    topics = [DeleteTopicState(name="hidden")]
    response = await ask_as(apis, ALICE, DeleteTopicsRequest(topics=topics), 6)
    assert [result.error_code for result in response.responses] == [0]


async def test_delete_by_name_and_id_at_once_is_rejected(apis: Any) -> None:
    hidden = apis.cluster.image.topics["hidden"]
    topics = [DeleteTopicState(name="hidden", topic_id=hidden.topic_id)]
    for who in (ALICE, ROOT):
        response = await ask_as(apis, who, DeleteTopicsRequest(topics=topics), 6)
        assert [one.error_code for one in response.responses] == [ErrorCode.INVALID_REQUEST]


async def test_delete_by_id_does_not_reveal_name_of_unauthorized_topic(apis: Any) -> None:
    ids = {name: topic.topic_id for name, topic in apis.cluster.image.topics.items()}
    topics = [DeleteTopicState(name=None, topic_id=ids[name]) for name in ("seen", "hidden")]
    response = await ask_as(apis, ALICE, DeleteTopicsRequest(topics=topics), 6)
    found = [(result.name, result.error_code) for result in response.responses]
    assert found == [("seen", REFUSED), (None, REFUSED)]
    response = await ask_as(apis, ROOT, DeleteTopicsRequest(topics=topics), 6)
    assert {result.error_code for result in response.responses} == {0}


async def pages(apis: Any, *names: str, at: str | None = None) -> dict[Any, int]:
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        cursor=None if at is None else Cursor(topic_name=at, partition_index=0),
    )
    response = await ask_as(apis, ALICE, request, 0)
    return {topic.name: topic.error_code for topic in response.topics}


async def test_partitions_of_unauthorized_topics_are_not_described(apis: Any) -> None:
    found = await pages(apis, "seen", "hidden", "absent", "nowhere")
    assert found == {"seen": 0, "hidden": REFUSED, "absent": UNKNOWN, "nowhere": REFUSED}
    assert await pages(apis, "hidden") == {"hidden": REFUSED}


async def test_partitions_of_all_topics_omit_unauthorized_topics(apis: Any) -> None:
    assert await pages(apis) == {"seen": 0}
    assert await pages(apis, at="t") == {}


async def test_cursor_at_an_unauthorized_topic_continues_after_it(apis: Any) -> None:
    assert await pages(apis, "seen", "hidden", "absent", at="hidden") == {
        "seen": 0,
        "hidden": REFUSED,
    }


async def test_invalid_cursor_is_rejected_before_authorization(apis: Any) -> None:
    assert await pages(apis, "hidden", at="seen") == {"hidden": ErrorCode.INVALID_REQUEST}


async def test_partitions_show_the_operations_of_the_caller(apis: Any) -> None:
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="seen")])
    [topic] = (await ask_as(apis, ALICE, request, 0)).topics
    assert topic.topic_authorized_operations == 1 << Operation.DESCRIBE
