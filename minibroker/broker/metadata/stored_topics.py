"""Topics in the store: the nodes of a topic, and what nodes of other programs change.

Owns which nodes a topic uses, the operations that create, rewrite and delete them, the comparison
of a node with the image, the resulting changes, and the new content of the node. Invariant:
deleting a topic deletes everything that Kafka may have written below it, and its config; any node
results in changes that fit the image, or in a sentence why there are none; nodes of this broker
change nothing. The topic methods of Kafka's ``KafkaZkClient`` and the topic handlers of its
``KafkaController``.

A node without an id was written by a tool of Kafka 2.x. If it was never changed since it was
created, it is a new topic, whatever topic had the name before; otherwise the tool has rewritten a
known topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from minibroker.broker.metadata import layout
from minibroker.broker.metadata.configs import config_steps, load_config
from minibroker.broker.metadata.image import (
    EMPTY,
    TOPIC,
    Change,
    Image,
    PartitionsAdded,
    Topic,
    TopicCreated,
    TopicDeleted,
    Update,
    Uuid,
    with_leader_epochs,
)
from minibroker.broker.metadata.store.tree import Create, Delete, NoNodeError, Operation, Set, Store
from minibroker.broker.metadata.topics import (
    INTERNAL_TOPICS,
    PARTITIONS_MAX,
    RESERVED_TOPICS,
    name_problem,
    topic_of,
)


class StoredTopic(NamedTuple):
    """Content of a topic's node, and the topic's config."""

    data: bytes
    version: int
    config: Mapping[str, str] = EMPTY
    leader_epochs: bytes = b""
    """The content of the node of leader epochs; empty if there is none."""


class AcceptedTopic(NamedTuple):
    """Changes of the image, and the topic that its node must describe.

    ``problem`` is a sentence about parts that were not accepted, empty if all were.
    """

    changes: tuple[Change, ...] = ()
    rewritten: Topic | None = None
    problem: str = ""


class AppliedTopics(NamedTuple):
    """The updates to publish, and by topic why it was not applied, empty if it was."""

    updates: list[Update]
    problems: Mapping[str, str]


def accept_topic(
    image: Image, broker_id: int, name: str, stored: StoredTopic | None, new_id: Callable[[], Uuid]
) -> AcceptedTopic:
    """Decide how a topic node changes the image; ``stored`` is None if the node does not exist."""
    current = image.topics.get(name)
    if stored is None:
        return _accept_deletion(current)
    problem = _name_problem(name)
    if problem is not None:
        return AcceptedTopic(problem=f"{layout.topic_path(name)}: is not a topic: {problem}")
    try:
        node = layout.decode_topic(name, stored.data)
        data = stored.leader_epochs
        epochs = layout.decode_leader_epochs(name, data) if data else {}
    except layout.LayoutError as error:
        return AcceptedTopic(rewritten=current, problem=f"{error}{_unchanged_text(current)}")
    if current is not None and current.internal:
        return _restore(current, node)
    problem = _node_problem(image, broker_id, name, node)
    if problem:
        text = f"{layout.topic_path(name)}: {problem}{_unchanged_text(current)}"
        return AcceptedTopic(rewritten=current, problem=text)
    if current is not None and not _is_replaced(current, node, stored):
        return _accept_new_partitions(current, broker_id, node)
    created = topic_of(name, node, node.topic_id or new_id(), broker_id)
    created = with_leader_epochs(created, epochs)
    deletion = () if current is None else (TopicDeleted(name, current.topic_id),)
    rewritten = created if node.topic_id is None else None
    return AcceptedTopic((*deletion, TopicCreated(created, stored.config)), rewritten)


def _accept_deletion(current: Topic | None) -> AcceptedTopic:
    if current is None:
        return AcceptedTopic()
    if current.internal:
        path = layout.topic_path(current.name)
        return AcceptedTopic(
            rewritten=current, problem=f"{path}: was deleted, but is needed: created again"
        )
    return AcceptedTopic((TopicDeleted(current.name, current.topic_id),))


def _name_problem(name: str) -> str | None:
    return "that name is Kafka's own" if name in RESERVED_TOPICS else name_problem(name)


def _unchanged_text(current: Topic | None) -> str:
    return "; it is ignored" if current is None else "; the topic stays as it was"


def _restore(current: Topic, node: layout.TopicNode) -> AcceptedTopic:
    replicas = tuple(partition.replicas for partition in current.partitions)
    if node == (current.topic_id, replicas):
        return AcceptedTopic()
    path = layout.topic_path(current.name)
    return AcceptedTopic(
        rewritten=current, problem=f"{path}: was changed, but is internal: restored"
    )


def _node_problem(image: Image, broker_id: int, name: str, node: layout.TopicNode) -> str:
    if len(node.replicas) > PARTITIONS_MAX:
        count = len(node.replicas)
        return f"{count} partitions are more than the {PARTITIONS_MAX} that a topic may have"
    unassigned = [i for i, ids in enumerate(node.replicas) if broker_id not in ids]
    if unassigned and name not in INTERNAL_TOPICS:
        return f"partition {unassigned[0]} has no replica at broker {broker_id}, the only broker"
    other = image.topic_names.get(node.topic_id) if node.topic_id is not None else None
    if other not in (None, name):
        return f"its topic_id is that of topic '{other}'"
    return ""


def _is_replaced(current: Topic, node: layout.TopicNode, stored: StoredTopic) -> bool:
    if node.topic_id is None:
        return stored.version == 0
    return bool(node.topic_id != current.topic_id)


def _accept_new_partitions(current: Topic, broker_id: int, node: layout.TopicNode) -> AcceptedTopic:
    extended = topic_of(current.name, node, current.topic_id, broker_id)
    before, after = current.partitions, extended.partitions
    if [each.replicas for each in before] != [each.replicas for each in after[: len(before)]]:
        path = layout.topic_path(current.name)
        text = "partitions can be added, but not taken away or moved; the topic stays as it was"
        return AcceptedTopic(rewritten=current, problem=f"{path}: {text}")
    added = after[len(before) :]
    changes = (PartitionsAdded(current.name, added),) if added else ()
    return AcceptedTopic(changes, extended if node.topic_id is None else None)


STEPS_MAX: Final = 1000
"""Operations in one transaction that deletes nodes below a topic, so that no server rejects it."""


async def load(store: Store, name: str) -> StoredTopic | None:
    """Read a topic's node and config; None if there is no node."""
    try:
        data, version = await store.get(layout.topic_path(name))
    except NoNodeError:
        return None
    config = await load_config(store, TOPIC, name)
    return StoredTopic(data, version, config, await _load_leader_epochs(store, name))


async def _load_leader_epochs(store: Store, name: str) -> bytes:
    try:
        return (await store.get(layout.leader_epochs_path(name))).data
    except NoNodeError:
        return b""


async def election(store: Store, topic: Topic, elected: Topic, epoch: int) -> list[Operation]:
    """Return the operations that store new leader epochs, also where tools of Kafka read them.

    ``epoch`` is that of the controller.
    """
    path, data = layout.leader_epochs_path(topic.name), layout.encode_leader_epochs(elected)
    operations: list[Operation] = [
        Set(path, data) if await store.exists(path) else Create(path, data)
    ]
    for before, after in zip(topic.partitions, elected.partitions, strict=True):
        state = f"{layout.partitions_path(topic.name)}/{after.index}/state"
        if before != after and await store.exists(state):
            operations.append(Set(state, layout.encode_state(after, epoch)))
    return operations


async def creation(store: Store, created: TopicCreated) -> list[Operation]:
    """Return the operations that store a new topic and its config."""
    topic, config = created
    create = Create(layout.topic_path(topic.name), layout.encode_topic(topic))
    return [create, *await config_steps(store, TOPIC, topic.name, config)]


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
    return [Delete(path), *await config_steps(store, TOPIC, name, EMPTY)]


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
