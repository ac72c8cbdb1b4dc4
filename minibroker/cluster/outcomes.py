"""What became of a request that changes topics or configs.

Owns the shapes of the answers. It must never decide anything. Invariant: there is one outcome for
each item of a request, in the order of the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from minibroker.cluster.image import EMPTY, Topic, Update
from minibroker.cluster.topics import ChangeRejected
from protocol.errors import ErrorCode


class TopicOutcome(NamedTuple):
    """Outcome of one topic: the topic as it is now, or why nothing was done.

    A deleted topic is as it was before; ``config`` is the config of a created one.
    """

    name: str
    refusal: ChangeRejected | None
    topic: Topic | None = None
    config: Mapping[str, str] = EMPTY


class TopicOutcomes(NamedTuple):
    """The outcome for each topic, and the updates to publish."""

    topics: tuple[TopicOutcome, ...]
    updates: list[Update]


class ConfigOutcome(NamedTuple):
    """Why each of several configs was not changed, None if it was, and the updates to publish."""

    refusals: tuple[ChangeRejected | None, ...]
    updates: list[Update]


def refused_repetition(name: str) -> TopicOutcome:
    """The outcome for a topic that a request names twice."""
    return TopicOutcome(name, ChangeRejected(ErrorCode.INVALID_REQUEST, "Duplicate topic name."))


def all_refused(names: Iterable[str], refusal: ChangeRejected) -> TopicOutcomes:
    """Return the outcome if all topics are rejected for the same reason."""
    return TopicOutcomes(tuple(TopicOutcome(name, refusal) for name in names), [])
