"""Outcomes of requests that change topics or configs.

Owns the shapes of the answers. It must never decide anything. Invariant: there is one outcome for
each item of a request, in the order of the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from minibroker.broker.metadata.image import EMPTY, Topic, Update
from minibroker.broker.metadata.store.tree import UnavailableError, UnwritableError
from minibroker.broker.metadata.topics import ChangeRejected
from minibroker_protocol.errors import ErrorCode


class TopicOutcome(NamedTuple):
    """Outcome of one topic: the current topic, or why it was rejected.

    A deleted topic is as it was before; ``config`` is the config of a created one.
    """

    name: str
    rejection: ChangeRejected | None
    topic: Topic | None = None
    config: Mapping[str, str] = EMPTY


class TopicOutcomes(NamedTuple):
    """The outcome for each topic, and the updates to publish."""

    topics: tuple[TopicOutcome, ...]
    updates: list[Update]


class ConfigOutcome(NamedTuple):
    """Why each of several configs was not changed, None if it was, and the updates to publish."""

    rejections: tuple[ChangeRejected | None, ...]
    updates: list[Update]


def duplicate_topic_outcome(name: str) -> TopicOutcome:
    """Return the outcome of a topic that a request names twice."""
    return TopicOutcome(name, ChangeRejected(ErrorCode.INVALID_REQUEST, "Duplicate topic name."))


def reject_all(names: Iterable[str], rejection: ChangeRejected) -> TopicOutcomes:
    """Return the outcome if all topics are rejected for the same reason."""
    return TopicOutcomes(tuple(TopicOutcome(name, rejection) for name in names), [])


def unavailable_rejection(error: UnavailableError) -> ChangeRejected:
    """Return the rejection of changes while the store is unavailable.

    A store that cannot be reached may have made the change, or make it later, so clients get
    REQUEST_TIMED_OUT, with which they try again.
    """
    if isinstance(error, UnwritableError):
        return ChangeRejected(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
    return ChangeRejected(ErrorCode.REQUEST_TIMED_OUT, str(error))
