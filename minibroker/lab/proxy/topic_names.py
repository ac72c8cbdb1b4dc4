"""Names of topic ids, learned from the Metadata responses that pass by.

Owns this table, so that rules select topics also in requests that have only their ids. It must
never ask a broker. Invariant: a client asks for metadata before it uses an id, so the name is known
by then; the table is bounded, and forgets the oldest names.
"""

from __future__ import annotations

from typing import Any, Final

from minibroker_protocol.messages.metadata import MetadataResponse
from minibroker_protocol.types import ZERO_UUID

TOPICS_MAX: Final = 100_000
"""Topics whose names are kept."""


class TopicNames:
    """The names of topic ids."""

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}

    def learn(self, response: MetadataResponse) -> None:
        """Keep the names in a response."""
        for topic in response.topics:
            if topic.name and topic.topic_id != ZERO_UUID:
                self._names.pop(topic.topic_id, None)
                self._names[topic.topic_id] = topic.name
        while len(self._names) > TOPICS_MAX:
            del self._names[next(iter(self._names))]

    def get(self, topic_id: Any) -> str | None:
        """The name of a topic id."""
        return self._names.get(topic_id)
