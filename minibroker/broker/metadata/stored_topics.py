"""Topics in the store: reading one, and the operations that create, rewrite and delete its nodes.

Owns which nodes a topic uses; the meaning of a node is in ``foreign_topics``. Invariant:
deleting a topic deletes everything that Kafka may have written below it, and its config. The topic
methods of Kafka's ``KafkaZkClient``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from minibroker.broker.metadata import layout, stored_configs
from minibroker.broker.metadata.foreign_topics import StoredTopic
from minibroker.broker.metadata.image import EMPTY, TOPIC, Topic, TopicCreated
from minibroker.broker.metadata.store.tree import Create, Delete, NoNodeError, Operation, Set, Store

STEPS_MAX: Final = 1000
"""Operations in one transaction that deletes nodes below a topic, so that no server rejects it."""


async def load(store: Store, name: str) -> StoredTopic | None:
    """Read a topic's node and config; None if there is no node."""
    try:
        data, version = await store.get(layout.topic_path(name))
    except NoNodeError:
        return None
    return StoredTopic(data, version, await stored_configs.load(store, TOPIC, name))


async def creation(store: Store, created: TopicCreated) -> list[Operation]:
    """Return the operations that store a new topic and its config."""
    topic, config = created
    create = Create(layout.topic_path(topic.name), layout.encode_topic(topic))
    return [create, *await stored_configs.steps(store, TOPIC, topic.name, config)]


def rewriting(topic: Topic, seen: StoredTopic | None) -> Operation:
    """Return the operation that rewrites a topic's node, if it is unchanged."""
    path, data = layout.topic_path(topic.name), layout.encode_topic(topic)
    return Create(path, data) if seen is None else Set(path, data, seen.version)


async def addition(store: Store, topic: Topic, extended: Topic) -> Operation:
    """Return the operation that adds partitions to a topic's node, if it is unchanged."""
    path = layout.topic_path(topic.name)
    found = await store.get(path)
    stored = layout.decode_topic(topic.name, found.data)
    is_unchanged = stored == (topic.topic_id, tuple(each.replicas for each in topic.partitions))
    # Otherwise an impossible version, so that the change of the other program is read first.
    return Set(
        path, layout.encode_topic(extended), found.version if is_unchanged else found.version + 1
    )


async def deletion(store: Store, name: str) -> list[Operation]:
    """Return the operations that delete a topic; nodes below its node are deleted at once."""
    path = layout.topic_path(name)
    below = await _below(store, path)
    for first in range(0, len(below), STEPS_MAX):
        await store.multi([Delete(each) for each in below[first : first + STEPS_MAX]])
    return [Delete(path), *await stored_configs.steps(store, TOPIC, name, EMPTY)]


async def reset(store: Store, topics: Iterable[str], internal: Sequence[Topic]) -> list[Operation]:
    """Return the operations that delete topics, and rewrite the internal ones among them."""
    kept = {topic.name for topic in internal}
    operations = list[Operation]()
    for name in topics:
        if name not in kept:
            operations += await deletion(store, name)
    for topic in internal:
        operations.append(Set(layout.topic_path(topic.name), layout.encode_topic(topic)))
    return operations


async def states(store: Store, topic: Topic, controller_epoch: int) -> list[Operation]:
    """Return the operations that write the missing states of a topic's partitions."""
    parent = layout.partitions_path(topic.name)
    try:
        existing, operations = set(await store.children(parent)), list[Operation]()
    except NoNodeError:
        existing, operations = set(), [Create(parent)]
    for partition in topic.partitions:
        if str(partition.index) not in existing:
            path = f"{parent}/{partition.index}"
            state = layout.encode_state(partition, controller_epoch)
            operations += [Create(path), Create(f"{path}/state", state)]
    return operations


async def _below(store: Store, path: str) -> list[str]:
    """Return all nodes below a node, children before their parents."""
    try:
        children = await store.children(path)
    except NoNodeError:
        return []
    found: list[str] = []
    for child in children:
        found += [*await _below(store, f"{path}/{child}"), f"{path}/{child}"]
    return found
