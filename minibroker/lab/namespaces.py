"""Names in a namespace: its clients know them without a prefix, and the broker with it.

Owns which fields of messages are such names, which follows from the schemas, and their translation
in both directions. It must never know frames, connections, nor which namespaces exist. Invariant:
what a client names gets the prefix, what a response names loses it, and what names others is
removed. Kafka has no equivalent.
"""

from __future__ import annotations

import re
from typing import Any, Final

from minibroker_protocol.entities import marked_fields, marks, meaning_in, struct_in
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
)
from minibroker_protocol.schema import Struct


def prefix_of(namespace: str) -> str:
    """The start of the broker's names of what is in a namespace."""
    return f"{namespace}."


NAMES: Final = frozenset(
    {
        Meaning.TOPIC,
        Meaning.GROUP,
        Meaning.TRANSACTIONAL_ID,
        Meaning.COORDINATOR_KEY,
        Meaning.SHARE_STATE,
    }
)
PATTERNS: Final = frozenset({Meaning.TOPIC_PATTERN, Meaning.TRANSACTIONAL_ID_PATTERN})
TRANSLATED: Final = NAMES | PATTERNS | {Meaning.MESSAGE}


class PrefixedNames:
    """The names of one namespace."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def to_broker(self, request: Struct, version: int) -> None:
        """Give all names in a request the prefix."""
        for mark in marks(request, version, NAMES | PATTERNS):
            if isinstance(mark.value, list):
                mark.replace([self._internal(each, mark.meaning) for each in mark.value])
            else:
                mark.replace(self._internal(mark.value, mark.meaning))
        if isinstance(request, DescribeTopicPartitionsRequest) and not request.topics:
            # All topics, sorted: those of the namespace follow its prefix.
            request.cursor = request.cursor or Cursor(topic_name=self.prefix, partition_index=0)

    def _internal(self, value: str | None, meaning: Meaning) -> str | None:
        if not value:
            return value
        if meaning in PATTERNS:
            return f"{re.escape(self.prefix)}(?:{value})"
        return self.prefix + value

    def to_client(self, response: Struct, version: int) -> bool:
        """Remove the prefix, and what lacks it; return whether the struct's own names have it."""
        is_own = True
        for item in marked_fields(type(response), version, TRANSLATED):
            value = getattr(response, item.name)
            meaning = meaning_in(response, item)
            if struct_in(item) is not None:
                setattr(response, item.name, self._own_structs(value, version))
            elif meaning is Meaning.MESSAGE:
                setattr(response, item.name, value and value.replace(self.prefix, ""))
            elif isinstance(value, list):
                kept = [each.removeprefix(self.prefix) for each in value if self._is_own(each)]
                setattr(response, item.name, kept)
            elif value and meaning in NAMES:
                is_own = is_own and self._is_own(value)
                setattr(response, item.name, value.removeprefix(self.prefix))
        return is_own

    def _own_structs(self, value: Any, version: int) -> Any:
        if isinstance(value, list):
            return [each for each in value if self.to_client(each, version)]
        return value if value is not None and self.to_client(value, version) else None

    def _is_own(self, name: str) -> bool:
        return not name or self.has(name)

    def has(self, name: Any) -> bool:
        """Whether a name of the broker is one of the namespace."""
        return isinstance(name, str) and name.startswith(self.prefix)
