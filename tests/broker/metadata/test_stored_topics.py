"""The nodes that a topic takes in a store, and those that Kafka leaves below them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from minibroker.broker.metadata import layout, stored_topics
from minibroker.broker.metadata.image import PartitionRegistration, Topic, TopicCreated
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.metadata.store.tree import BadVersionError, NodeExistsError, Store

TOPIC = Topic("t", b"T" * 16, (PartitionRegistration(0, 1, 0, (1,), (1,)),))


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    created = SqliteStore(MEMORY)
    for path in layout.PERSISTENT_PATHS:
        await created.ensure(path)
    yield created
    await created.close()


async def test_topic_is_seen_with_its_config(store: Store) -> None:
    assert await stored_topics.load(store, "t") is None
    steps = await stored_topics.creation(store, TopicCreated(TOPIC, {"retention.ms": "5"}))
    await store.multi(steps)
    stored = await stored_topics.load(store, "t")
    assert stored == (layout.encode_topic(TOPIC), 0, {"retention.ms": "5"})


async def test_node_is_rewritten_only_if_version_is_unchanged(store: Store) -> None:
    await store.multi([stored_topics.rewriting(TOPIC, None)])
    stored = await stored_topics.load(store, "t")
    await store.set("/brokers/topics/t", b"somebody else")
    with pytest.raises(BadVersionError):
        await store.multi([stored_topics.rewriting(TOPIC, stored)])
    with pytest.raises(NodeExistsError):
        await store.multi([stored_topics.rewriting(TOPIC, None)])


async def test_partition_growth_from_stale_topic_is_rejected(store: Store) -> None:
    extended = TOPIC._replace(
        partitions=(*TOPIC.partitions, PartitionRegistration(1, 1, 0, (1,), (1,)))
    )
    await store.multi([stored_topics.rewriting(TOPIC, None)])
    await store.multi([await stored_topics.addition(store, TOPIC, extended)])
    with pytest.raises(BadVersionError):
        await store.multi([await stored_topics.addition(store, TOPIC, extended)])


async def test_topic_deletion_removes_child_and_config_nodes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_topics, "STEPS_MAX", 2)
    await store.multi(
        await stored_topics.creation(store, TopicCreated(TOPIC, {"retention.ms": "5"}))
    )
    for index in range(3):
        await store.ensure(f"/brokers/topics/t/partitions/{index}/state")
    await store.multi(await stored_topics.deletion(store, "t"))
    assert await store.children("/brokers/topics") == []
    assert await store.children("/config/topics") == []
