"""The rules that may match a request, found by client, connection and entities.

Owns one table for each value that rules select exactly, or by its start. It must never decide
whether a rule matches: it leaves out those that cannot. Invariant: a rule is in one table, or among
those that every request is compared with; adding and removing take the same time however many rules
there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from minibroker.broker.patterns.wildcard import matches_wildcard
from minibroker.lab.faults.actions import CLIENT_FIELDS, CONNECTION_FIELDS, ENTITY_FIELDS
from minibroker.lab.faults.effects import effect_fault
from minibroker.lab.faults.fault_rule import TEXT_MAX
from minibroker.lab.faults.rules import ActiveRule, selected_api, selected_keys
from minibroker_protocol.entities import MessageEntity
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.types import uuid_from_text

TopicOf: TypeAlias = Callable[[Any], "str | None"]
"""Returns the name of a topic id."""

CLIENT_ID, CONNECTION = "client_id", "connection"

_CLIENT_SELECTORS: Final = (*CLIENT_FIELDS, *CONNECTION_FIELDS, "correlation_id")

_SELECTIVE: Final[tuple[str | Meaning, ...]] = (
    CLIENT_ID,
    Meaning.TRANSACTIONAL_ID,
    Meaning.GROUP,
    Meaning.TOPIC,
    Meaning.TOPIC_ID,
    Meaning.MEMBER,
    Meaning.RESOURCE,
)
"""By what rules are found; a partition alone would select little."""

ValueKind: TypeAlias = "tuple[str | Meaning, int | None]"
"""What tables are about, and the length of the start of its text; None for the whole value."""

TableKey: TypeAlias = "tuple[ValueKind, Any]"


class IndexedRule:
    """A rule with what matching needs of it."""

    __slots__ = (
        "_effects",
        "_selectors",
        "active",
        "api",
        "is_about_all_clients",
        "order",
        "selected",
        "table",
    )

    def __init__(self, active: ActiveRule, order: int) -> None:
        """``order`` grows with every rule that is added."""
        rule = active.rule
        self.active = active
        self.order = order
        self.selected = selected_keys(rule)
        self.api = selected_api(rule)
        self.is_about_all_clients = all(getattr(rule, name) is None for name in _CLIENT_SELECTORS)
        values = [(key, getattr(rule, name)) for name, key in ENTITY_FIELDS.items()]
        self._selectors = [
            (key, uuid_from_text(value) if key is Meaning.TOPIC_ID else value)
            for key, value in values
            if value is not None
        ]
        self._effects: dict[tuple[int, int], bool] = {}
        self.table = self._choose_table()

    def _choose_table(self) -> TableKey | None:
        rule = self.active.rule
        if rule.connection is not None:
            return (CONNECTION, None), rule.connection
        selectors: dict[str | Meaning, Any] = dict(self._selectors)
        selectors[CLIENT_ID] = rule.client_id
        tables = (
            table
            for kind in _SELECTIVE
            if (table := _table_of(kind, selectors.get(kind))) is not None
        )
        # A whole value before a start, and a longer start before a shorter one.
        return max(tables, key=lambda table: table[0][1] or TEXT_MAX + 1, default=None)

    def has_effect(self, api_key: int, version: int) -> bool:
        """Whether it can change anything for an API and version."""
        effect = self._effects.get((api_key, version))
        if effect is None:
            effect = effect_fault(self.active.rule, api_key, version) is None
            self._effects[api_key, version] = effect
        return effect

    def matches_entity(self, entity: MessageEntity, topic_of: TopicOf) -> bool:
        """Whether all selectors of entities match this one."""
        return all(
            _matches_value(selector, value_of(entity, key, topic_of))
            for key, selector in self._selectors
        )


class RuleIndex:
    """Rules of which one table leads to those that may match."""

    def __init__(self) -> None:
        self._compared: dict[str, IndexedRule] = {}
        self._tables: dict[TableKey, dict[str, IndexedRule]] = {}
        self._kinds: Counter[ValueKind] = Counter()
        """How many rules are found by each kind of value."""

    def __bool__(self) -> bool:
        return bool(self._compared or self._tables)

    def add(self, rule: IndexedRule) -> None:
        """Add a rule."""
        if rule.table is None:
            self._compared[rule.active.id] = rule
        else:
            self._tables.setdefault(rule.table, {})[rule.active.id] = rule
            self._kinds[rule.table[0]] += 1

    def remove(self, rule: IndexedRule) -> None:
        """Remove a rule that was added."""
        if rule.table is None:
            del self._compared[rule.active.id]
            return
        table = self._tables[rule.table]
        del table[rule.active.id]
        if not table:
            del self._tables[rule.table]
        self._kinds[rule.table[0]] -= 1
        if not self._kinds[rule.table[0]]:
            del self._kinds[rule.table[0]]

    def concerns(self, client_id: Callable[[], str | None]) -> bool:
        """Whether a rule may match a request of a client with any entities."""
        if self._compared or any(kind != CLIENT_ID for kind, _ in self._kinds):
            return True
        return any((kind, _start(client_id(), kind[1])) in self._tables for kind in self._kinds)

    def find(
        self,
        values: Mapping[str, Any],
        entities: Callable[[], Sequence[MessageEntity]],
        topic_of: TopicOf,
    ) -> Iterator[IndexedRule]:
        """The rules that may match, in any order; one may come several times.

        ``values`` are those of the connection by ``CLIENT_ID`` and ``CONNECTION``.
        """
        yield from self._compared.values()
        for kind in self._kinds:
            name, length = kind
            if isinstance(name, str):
                yield from self._tables.get((kind, _start(values.get(name), length)), {}).values()
                continue
            for entity in entities():
                value = _start(value_of(entity, name, topic_of), length)
                found = self._tables.get((kind, value))
                if found is not None:
                    yield from found.values()


def _table_of(kind: str | Meaning, selector: Any) -> TableKey | None:
    """The table of a selector; None if it says nothing about the start of a value."""
    if not isinstance(selector, str):
        return None if selector is None else ((kind, None), selector)
    start, *others = selector.split("*")
    if not others:
        return (kind, None), selector
    return ((kind, len(start)), start) if start else None


def _start(value: Any, length: int | None) -> Any:
    """The start of a text, or the whole value."""
    return value if length is None or not isinstance(value, str) else value[:length]


def value_of(entity: MessageEntity, key: Meaning, topic_of: TopicOf) -> Any:
    """The value of an entity that a selector is compared with; None if it has none."""
    value = entity.keys.get(key)
    if key is Meaning.TOPIC and not value and Meaning.TOPIC_ID in entity.keys:
        return topic_of(entity.keys[Meaning.TOPIC_ID])
    return value


def _matches_value(selector: Any, value: Any) -> bool:
    if isinstance(selector, str):
        return isinstance(value, str) and matches_wildcard(value, selector)
    return bool(value == selector)
