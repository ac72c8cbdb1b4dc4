"""The nodes that a topic takes in a store, and those that Kafka leaves below them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.metadata import layout, stored_topics
from minibroker.broker.metadata.image import (
    Image,
    PartitionRegistration,
    PartitionsAdded,
    Topic,
    TopicCreated,
    TopicDeleted,
    apply,
)
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.metadata.store.tree import BadVersionError, NodeExistsError, Store
from minibroker.broker.metadata.stored_topics import AcceptedTopic, StoredTopic, accept_topic
from minibroker_protocol.types import uuid_text

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
    assert stored == (layout.encode_topic(TOPIC), 0, {"retention.ms": "5"}, b"")


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


US = 1
FRESH, OLD, NEW = b"F" * 16, b"O" * 16, b"N" * 16
LED = PartitionRegistration(0, US, 0, (US,), (US,))
KNOWN = Topic("t", OLD, (LED,))
OFFSETS = Topic("__consumer_offsets", b"G" * 16, (LED,), internal=True)
IMAGE = apply(apply(Image(), TopicCreated(KNOWN)), TopicCreated(OFFSETS))
PATH = "/brokers/topics/"


def node(partitions: Any, topic_id: bytes | None = None, version: int = 0) -> StoredTopic:
    fields = {"version": 2, "partitions": partitions}
    if topic_id is not None:
        fields |= {"version": 3, "topic_id": uuid_text(topic_id)}
    return StoredTopic(json.dumps(fields).encode(), version)


def taken(name: str, stored: StoredTopic | None, image: Image = IMAGE) -> AcceptedTopic:
    return accept_topic(image, US, name, stored, lambda: FRESH)


def test_own_topic_node_causes_no_change() -> None:
    for topic in IMAGE.topics.values():
        assert taken(topic.name, StoredTopic(layout.encode_topic(topic), 0)) == AcceptedTopic()
        assert taken(topic.name, StoredTopic(layout.encode_topic(topic), 7)) == AcceptedTopic()
    assert taken("nobody-knows-it", None) == AcceptedTopic()


def test_new_topic_node_with_id_is_created_unchanged() -> None:
    created = Topic("new", NEW, (LED, LED.__class__(1, US, 0, (2, US), (US,))))
    seen = node({"1": [2, 1], "0": [1]}, NEW)._replace(config={"retention.ms": "5"})
    found = taken("new", seen)
    assert found == AcceptedTopic((TopicCreated(created, {"retention.ms": "5"}),))


@pytest.mark.parametrize(
    "data", [b"[]", b"{}", b'{"leader_epochs": {"a": 1}}', b'{"leader_epochs": {"0": -1}}']
)
def test_topic_with_damaged_leader_epochs_is_ignored_with_the_reason(data: bytes) -> None:
    stored = node({"0": [US]}, NEW)._replace(leader_epochs=data)
    found = taken("new", stored)
    assert found.changes == ()
    assert found.problem.startswith("/brokers/topics/new/leader_epochs: ")


def test_new_topic_node_without_id_gets_generated_id() -> None:
    created = Topic("new", FRESH, (LED,))
    assert taken("new", node({"0": [1]})) == AcceptedTopic((TopicCreated(created),), created)


def test_removed_topic_node_deletes_topic() -> None:
    assert taken("t", None) == AcceptedTopic((TopicDeleted("t", OLD),))


def test_node_with_other_topic_id_recreates_topic() -> None:
    deletion = TopicDeleted("t", OLD)
    other = Topic("t", NEW, (LED,))
    assert taken("t", node({"0": [1]}, NEW, 3)) == AcceptedTopic((deletion, TopicCreated(other)))
    fresh = Topic("t", FRESH, (LED,))
    assert taken("t", node({"0": [1]})) == AcceptedTopic((deletion, TopicCreated(fresh)), fresh)


def test_added_partitions_are_created_and_missing_id_is_rewritten() -> None:
    second = PartitionRegistration(1, US, 0, (US,), (US,))
    extended = KNOWN._replace(partitions=(LED, second))
    change = PartitionsAdded("t", (second,))
    assert taken("t", node({"0": [1], "1": [1]}, OLD, 4)) == AcceptedTopic((change,))
    assert taken("t", node({"0": [1], "1": [1]}, None, 4)) == AcceptedTopic((change,), extended)
    assert taken("t", node({"0": [1]}, None, 4)) == AcceptedTopic((), KNOWN)


@pytest.mark.parametrize("partitions", [{"0": [1, 2]}, {"0": [2, 1], "1": [1]}])
def test_moved_partitions_are_rejected(partitions: Any) -> None:
    found = taken("t", node(partitions, OLD, 1))
    assert (found.changes, found.rewritten) == ((), KNOWN)
    assert found.problem.startswith(f"{PATH}t: partitions can be added, but not taken away")


def test_removed_partitions_are_rejected() -> None:
    extended = KNOWN._replace(partitions=(LED, PartitionRegistration(1, US, 0, (US,), (US,))))
    image = apply(Image(), TopicCreated(extended))
    found = taken("t", node({"0": [1]}, OLD, 1), image)
    assert (found.changes, found.rewritten) == ((), extended)


@pytest.mark.parametrize(
    ("name", "stored", "text"),
    [
        ("a b", node({"0": [1]}), "/a b: is not a topic: it has characters other than"),
        ("..", node({"0": [1]}), "/..: is not a topic: '..' is not allowed"),
        ("x" * 250, node({"0": [1]}), "its length of 250 exceeds"),
        ("__cluster_metadata", node({"0": [1]}), "that name is Kafka's own"),
        ("n", StoredTopic(b"", 0), "/n: is not JSON: "),
        ("n", StoredTopic(b"\xff", 0), "/n: is not JSON: "),
        ("n", StoredTopic(b"[]", 0), "/n: is not a JSON object; it is ignored"),
        ("n", node([]), "/n: cannot be read as a topic"),
        ("n", node({"1": [1]}), "/n: cannot be read as a topic"),
        ("n", node({}), "/n: has no partitions"),
        ("n", node({"0": []}), "/n: partition 0 has no replicas"),
        ("n", node({"0": [1], "1": [5]}), "/n: partition 1 has no replica at broker 1"),
        ("n", node({str(i): [1] for i in range(10_001)}), "10001 partitions are more than"),
        ("n", node({"0": [1]}, OLD), "/n: its topic_id is that of topic 't'"),
    ],
)
def test_invalid_topic_node_is_skipped_with_reason(
    name: str, stored: StoredTopic, text: str
) -> None:
    found = taken(name, stored)
    assert (found.changes, found.rewritten) == ((), None)
    assert text in found.problem


def test_invalid_node_does_not_delete_known_topic() -> None:
    for stored in (StoredTopic(b"{", 3), node({"0": [5]}, OLD, 3)):
        found = taken("t", stored)
        assert (found.changes, found.rewritten) == ((), KNOWN)
        assert found.problem.endswith("; the topic stays as it was")


@pytest.mark.parametrize("stored", [None, node({"0": [1], "1": [1]}), node({"0": [1]}, NEW, 2)])
def test_changed_internal_topic_node_is_restored(stored: StoredTopic | None) -> None:
    found = taken("__consumer_offsets", stored)
    assert (found.changes, found.rewritten) == ((), OFFSETS)
    assert "/__consumer_offsets: was " in found.problem


@given(
    st.sampled_from(["t", "new", "__consumer_offsets"]),
    st.none()
    | st.builds(
        StoredTopic,
        st.binary(max_size=20)
        | st.builds(
            lambda replicas, topic_id: json.dumps(
                {"partitions": dict(enumerate(replicas)), "topic_id": topic_id}
            ).encode(),
            st.lists(st.lists(st.integers(-1, 3), max_size=3), max_size=4),
            st.none() | st.sampled_from([uuid_text(each) for each in (OLD, NEW, FRESH)] + ["?"]),
        ),
        st.integers(0, 3),
    ),
)
def test_any_topic_node_yields_valid_idempotent_changes(
    name: str, stored: StoredTopic | None
) -> None:
    found = taken(name, stored)
    image = IMAGE
    for change in found.changes:
        image = apply(image, change)
    assert image.topics["__consumer_offsets"] == OFFSETS
    if found.rewritten is not None:
        assert image.topics[name] == found.rewritten
        stored = StoredTopic(layout.encode_topic(found.rewritten), 5)
    again = taken(name, stored, image)
    assert (again.changes, again.rewritten) == ((), None)
