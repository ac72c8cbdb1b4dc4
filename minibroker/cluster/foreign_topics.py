"""Rules for topics that other programs wrote to the store: which changes they cause.

Owns the comparison of a topic's node with the image, the resulting changes, and the new content of
the node. It must never read or write a node. Invariant: any node results in changes that fit the
image, or in a sentence why there are none; nodes of this broker change nothing. The topic handlers
of Kafka's ``KafkaController``.

A node without an id was written by a tool of Kafka 2.x. If it was never changed since it was
created, it is a new topic, whatever topic had the name before; otherwise the tool has rewritten a
known topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from minibroker.cluster import layout
from minibroker.cluster.image import (
    EMPTY,
    Change,
    Image,
    PartitionsAdded,
    Topic,
    TopicCreated,
    TopicDeleted,
    Update,
    Uuid,
)
from minibroker.cluster.topics import (
    INTERNAL_TOPICS,
    PARTITIONS_MAX,
    RESERVED_TOPICS,
    name_problem,
    topic_of,
)


class Sight(NamedTuple):
    """Node of a topic in the store, and the topic's config."""

    data: bytes
    version: int
    config: Mapping[str, str] = EMPTY


class AcceptedTopic(NamedTuple):
    """Changes of the image, and the topic that its node must describe.

    ``problem`` is a sentence about parts that were not accepted, empty if all were.
    """

    changes: tuple[Change, ...] = ()
    rewritten: Topic | None = None
    problem: str = ""


class TopicsTaken(NamedTuple):
    """The updates to publish, and by topic why it was not taken over, empty where it was."""

    updates: list[Update]
    problems: Mapping[str, str]


def accept_topic(
    image: Image, broker_id: int, name: str, sight: Sight | None, fresh_id: Callable[[], Uuid]
) -> AcceptedTopic:
    """Decide how a topic node changes the image; without a sight, the node does not exist."""
    known = image.topics.get(name)
    if sight is None:
        return _take_deletion(known)
    problem = _name_problem(name)
    if problem is not None:
        return AcceptedTopic(problem=f"{layout.topic_path(name)}: is no topic: {problem}")
    try:
        node = layout.decode_topic(name, sight.data)
    except layout.LayoutError as error:
        return AcceptedTopic(rewritten=known, problem=f"{error}{_as_it_was(known)}")
    if known is not None and known.internal:
        return _restore(known, node)
    problem = _node_problem(image, broker_id, name, node)
    if problem:
        text = f"{layout.topic_path(name)}: {problem}{_as_it_was(known)}"
        return AcceptedTopic(rewritten=known, problem=text)
    if known is not None and not _is_replaced(known, node, sight):
        return _take_growth(known, broker_id, node)
    made = topic_of(name, node, node.topic_id or fresh_id(), broker_id)
    gone = () if known is None else (TopicDeleted(name, known.topic_id),)
    rewritten = made if node.topic_id is None else None
    return AcceptedTopic((*gone, TopicCreated(made, sight.config)), rewritten)


def _take_deletion(known: Topic | None) -> AcceptedTopic:
    if known is None:
        return AcceptedTopic()
    if known.internal:
        path = layout.topic_path(known.name)
        return AcceptedTopic(
            rewritten=known, problem=f"{path}: was deleted, but is needed: created again"
        )
    return AcceptedTopic((TopicDeleted(known.name, known.topic_id),))


def _name_problem(name: str) -> str | None:
    return "that name is Kafka's own" if name in RESERVED_TOPICS else name_problem(name)


def _as_it_was(known: Topic | None) -> str:
    return "; it is ignored" if known is None else "; the topic stays as it was"


def _restore(known: Topic, node: layout.TopicNode) -> AcceptedTopic:
    replicas = tuple(partition.replicas for partition in known.partitions)
    if node == (known.topic_id, replicas):
        return AcceptedTopic()
    path = layout.topic_path(known.name)
    return AcceptedTopic(rewritten=known, problem=f"{path}: was changed, but is internal: restored")


def _node_problem(image: Image, broker_id: int, name: str, node: layout.TopicNode) -> str:
    if len(node.replicas) > PARTITIONS_MAX:
        count = len(node.replicas)
        return f"{count} partitions are more than the {PARTITIONS_MAX} that a topic may have"
    away = [i for i, ids in enumerate(node.replicas) if broker_id not in ids]
    if away and name not in INTERNAL_TOPICS:
        return f"partition {away[0]} has no replica at broker {broker_id}, the only one there is"
    other = image.topic_names.get(node.topic_id) if node.topic_id is not None else None
    if other not in (None, name):
        return f"its topic_id is that of topic '{other}'"
    return ""


def _is_replaced(known: Topic, node: layout.TopicNode, sight: Sight) -> bool:
    if node.topic_id is None:
        return sight.version == 0
    return bool(node.topic_id != known.topic_id)


def _take_growth(known: Topic, broker_id: int, node: layout.TopicNode) -> AcceptedTopic:
    grown = topic_of(known.name, node, known.topic_id, broker_id)
    before, after = known.partitions, grown.partitions
    if [each.replicas for each in before] != [each.replicas for each in after[: len(before)]]:
        path = layout.topic_path(known.name)
        text = "partitions can be added, but not taken away or moved; the topic stays as it was"
        return AcceptedTopic(rewritten=known, problem=f"{path}: {text}")
    added = after[len(before) :]
    changes = (PartitionsAdded(known.name, added),) if added else ()
    return AcceptedTopic(changes, grown if node.topic_id is None else None)
