"""The topics and other resources that an update of the metadata changes.

Owns their names, as fault rules select them. It must never know rules. Invariant: an update about
anything else affects one unnamed thing, so that a rule without selectors matches every update.
Kafka has no equivalent.
"""

from __future__ import annotations

from collections.abc import Iterator

from minibroker.broker.metadata.image import (
    TOPIC,
    Change,
    ConfigChanged,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
    Update,
)


def affected(update: Update) -> Iterator[tuple[str | None, str | None]]:
    """Topic and resource of each change, each None if there is none."""
    yield from map(_affected, update.changes)


def _affected(change: Change) -> tuple[str | None, str | None]:
    match change:
        case TopicCreated(topic):
            return topic.name, None
        case TopicDeleted(name) | PartitionsAdded(name):
            return name, None
        case ConfigChanged(kind, name):
            return (name if kind == TOPIC else None), name
        case _:
            return None, None
