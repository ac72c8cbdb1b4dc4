"""The ids of topics by their names, also of topics that were deleted.

Owns which ids a name had, for requests that have only the id (KIP-516). It must never know where
topics come from. Invariant: memory is bounded by forgetting the ids that were learned first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

Uuid: TypeAlias = bytes

TOPIC_IDS_MAX: Final = 50_000
"""Ids that are kept, in some ten megabytes."""


class TopicIds:
    """Ids with their names."""

    def __init__(self, ids_max: int = TOPIC_IDS_MAX) -> None:
        self._ids_max = ids_max
        self._names: dict[Uuid, str] = {}
        self._ids: dict[str, frozenset[Uuid]] = {}

    def learn(self, names: Mapping[Uuid, str]) -> None:
        """Add names by their ids."""
        for topic_id in names.keys() - self._names.keys():
            name = self._names[topic_id] = names[topic_id]
            self._ids[name] = self.of(name) | {topic_id}
        while len(self._names) > self._ids_max:
            self._forget(next(iter(self._names)))

    def _forget(self, topic_id: Uuid) -> None:
        name = self._names.pop(topic_id)
        rest = self._ids.pop(name) - {topic_id}
        if rest:
            self._ids[name] = rest

    def of(self, name: str) -> frozenset[Uuid]:
        """Return the ids of all topics that have, or had, a name."""
        return self._ids.get(name, frozenset())
