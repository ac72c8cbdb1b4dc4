"""Which rules a request or a connection matches, and which of its entities.

Owns the comparison of selectors with a request, and an index of the rules: one table for each value
that rules select exactly, or by its start. It must never count, decide or know a socket. Invariant:
all selectors of a rule match at the same entity, a request that does not have a selected field does
not match, and neither does one whose response the rule cannot change. A rule is in one table, or
among those that every request is compared with; adding and removing take the same time however many
rules there are.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final, NamedTuple, TypeAlias

from minibroker.lab.faults.actions import Hold
from minibroker.lab.faults.fault_rule import TEXT_MAX, ActiveRule, FaultRule, is_in_network
from minibroker.lab.faults.message_fields import owner_of
from minibroker.lab.faults.places import CLIENT_FIELDS, CONNECTION_FIELDS, ENTITY_FIELDS, WAITING
from minibroker.lab.journal.filters import matches_wildcard
from minibroker_protocol import registry
from minibroker_protocol.entities import (
    MessageEntity,
    entities,
    is_entity_array,
    selectable,
    structs_around,
)
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Struct
from minibroker_protocol.types import uuid_from_text
from minibroker_protocol.wire import RequestHeader

_SESSION_KEYS: Final = frozenset({Meaning.TOPIC, Meaning.TOPIC_ID, Meaning.PARTITION})
_API_KEY_BYTES: Final = 2
_CLIENT_ID_LENGTH: Final = struct.Struct(">h")
_CLIENT_ID_AT: Final = 8

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
        "_is_deferrable",
        "_request_values",
        "_selectors",
        "active",
        "api",
        "is_about_all_clients",
        "order",
        "selected",
        "selects_elements",
        "table",
    )

    def __init__(self, active: ActiveRule, order: int) -> None:
        """``order`` grows with every rule that is added."""
        rule = active.rule
        self.active = active
        self.order = order
        self.selected = rule.selected_keys
        self.selects_elements = rule.selects_elements
        self._request_values = rule.request_values
        self.api = rule.selected_api
        self.is_about_all_clients = all(getattr(rule, name) is None for name in _CLIENT_SELECTORS)
        self._selectors = [
            (key, uuid_from_text(value) if key is Meaning.TOPIC_ID else value)
            for key, value in rule.entity_selectors.items()
        ]
        self._effects: dict[tuple[int, int], bool] = {}
        self._is_deferrable = _is_deferrable(rule)
        self.table = self._choose_table()

    def _choose_table(self) -> TableKey | None:
        rule = self.active.rule
        if rule.connection is not None:
            return (CONNECTION, None), rule.connection
        selectors: dict[str | Meaning, Any] = {} if self._is_deferrable else dict(self._selectors)
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
            schema = registry.schema(api_key)
            effect = self.active.rule.action.effect_fault(schema, version) is None
            self._effects[api_key, version] = effect
        return effect

    def matches_entity(self, entity: MessageEntity, topic_of: TopicOf) -> bool:
        """Whether all selectors of entities match this one."""
        return all(
            _matches_value(selector, value_of(entity, key, topic_of))
            for key, selector in self._selectors
        )

    def matches_fields(self, request: Struct, version: int, entity: MessageEntity) -> bool:
        """Whether an entity of a request, and what is around it, has the selected fields."""
        if not self._request_values:
            return True
        structs = structs_around(request, entity)
        for name, values in self._request_values.items():
            owner = owner_of(structs, name, version)
            if owner is None or getattr(owner, name) not in values:
                return False
        return True

    # Entities that only a response names --------------------------------------------------------

    def may_match_response(self, asked: _AskedRequest) -> bool:
        """Whether the response may name what the rule selects, and the request does not.

        A request of all topics names none, and one of topics does not name their partitions.
        """
        response, version = registry.schema(asked.header.api_key).response, asked.header.api_version
        if not (self._is_deferrable and self.selected <= selectable(response, (version,))):
            return False
        return any(
            any(key not in entity.keys for key in self.selected)
            and all(
                value is None or _matches_value(selector, value)
                for key, selector in self._selectors
                for value in (value_of(entity, key, asked.topic_of),)
            )
            for entity in asked.entities
        )

    def elements(
        self, response: Struct, version: int, topic_of: TopicOf
    ) -> Iterator[tuple[MessageEntity, Sequence[Struct]]]:
        """The entities of a response that the rule selects, with the structs around each.

        What no entity of the response can have does not matter.
        """
        known = selectable(type(response), (version,))  # type: ignore[arg-type]
        selectors = [(key, selector) for key, selector in self._selectors if key in known]
        for entity in entities(response, version):
            if all(
                _matches_value(selector, value_of(entity, key, topic_of))
                for key, selector in selectors
            ):
                yield entity, structs_around(response, entity)


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


def _is_deferrable(rule: FaultRule) -> bool:
    """Whether responses may name what a rule selects, for requests that do not.

    Only rules for one API are compared with requests that do not have what they select.
    """
    key, selected = rule.selected_api, rule.selected_keys
    if key is None or not selected or rule.request or not rule.action.matches_response:
        return False
    request, response = registry.schema(key).request, registry.schema(key).response
    may_name_all = any(
        is_entity_array(item) and item.nullable.low <= item.nullable.high
        for item in request.__fields__
    )
    is_named = selected <= selectable(request) and not may_name_all
    return not is_named and selected <= selectable(response)


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


# The matchers -------------------------------------------------------------------------------------


class ConnectionAttributes(NamedTuple):
    """What rules can select about a connection."""

    number: int
    listener: str
    address: str
    principal: str
    client_id: str | None = None


class RuleMatch(NamedTuple):
    """A rule that matches a request, with the entities that it matches."""

    active: ActiveRule
    found: tuple[MessageEntity, ...]
    claims: tuple[int, ...] | None
    """As in ``Candidate``."""
    indexed: IndexedRule
    counted: str
    """As in ``Candidate``."""
    topic_of: TopicOf
    is_deferred: bool = False
    """Whether only the response names what the rule selects."""


class Candidate(NamedTuple):
    """A match as the controller decides about it: which entities a final action would claim."""

    rule_id: str
    claims: tuple[int, ...] | None
    """Positions of the matching entities in the request; None if the rule claims all of it."""
    is_late: bool = False
    """Whether the rule claims now if it would fire, and is compared again with the response."""
    counted: str = ""
    """What the rule counts separately, by its text."""
    fired: tuple[str, ...] = ()
    """Rules that have fired for the same request."""


class RequestMatches(NamedTuple):
    """All rules that match a request, in the order in which they were added."""

    matches: tuple[RuleMatch, ...]
    entity_count: int


class Matcher:
    """The rules of a broker, prepared for matching."""

    def __init__(self, rules: Iterable[ActiveRule] = ()) -> None:
        self.rules: dict[str, ActiveRule] = {}
        self._indexed: dict[str, IndexedRule] = {}
        self._by_api: dict[int | None, RuleIndex] = {}
        self._about_new_connections: dict[str, ActiveRule] = {}
        self._about_appends: set[str] = set()
        self._against_sessions: set[str] = set()
        self._last_order = 0
        for each in rules:
            self.add(each)

    def add(self, active: ActiveRule) -> None:
        """Add a rule after those that are there, unless it is there."""
        if active.id in self.rules:
            return
        self.rules[active.id] = active
        matches = active.rule.action.matches
        if matches == "new connections":
            self._about_new_connections[active.id] = active
        if matches == "appends":
            self._about_appends.add(active.id)
        if not active.rule.is_about_requests:
            return
        self._last_order += 1
        indexed = self._indexed[active.id] = IndexedRule(active, self._last_order)
        self._by_api.setdefault(indexed.api, RuleIndex()).add(indexed)
        if _forbids_fetch_sessions(indexed):
            self._against_sessions.add(active.id)

    def remove(self, rule_id: str) -> None:
        """Remove a rule, if it is there."""
        self.rules.pop(rule_id, None)
        self._about_new_connections.pop(rule_id, None)
        self._about_appends.discard(rule_id)
        self._against_sessions.discard(rule_id)
        indexed = self._indexed.pop(rule_id, None)
        if indexed is not None:
            index = self._by_api[indexed.api]
            index.remove(indexed)
            if not index:
                del self._by_api[indexed.api]

    @property
    def forbids_fetch_sessions(self) -> bool:
        """Whether fetches must name all their partitions, so that rules can select them."""
        return bool(self._against_sessions)

    def concerns(self, data: bytes | memoryview) -> bool:
        """Whether a rule may match a request, by its API and client id, or appends of any.

        A request that is executed in one step and fails is executed again, so rules about appends
        would count it twice.
        """
        if self._about_appends:
            return True
        api_key = int.from_bytes(data[:_API_KEY_BYTES], "big", signed=True)
        client_id = partial(client_id_of, data)
        return any(
            index.concerns(client_id)
            for api in (api_key, None)
            if (index := self._by_api.get(api)) is not None
        )

    def match_request(
        self,
        facts: ConnectionAttributes,
        header: RequestHeader,
        request: Struct,
        topic_of: TopicOf,
    ) -> RequestMatches | None:
        """The rules that match a request; None if there are none.

        ``topic_of`` returns the name of a topic id.
        """
        asked = _AskedRequest(facts, header, request, topic_of)
        matches = [
            match for rule in self._candidates(asked) if (match := _match(rule, asked)) is not None
        ]
        return RequestMatches(tuple(matches), len(asked.entities)) if matches else None

    def _candidates(self, asked: _AskedRequest) -> list[IndexedRule]:
        """The rules that may match, in the order in which they were added."""
        values = {CLIENT_ID: asked.facts.client_id, CONNECTION: asked.facts.number}
        candidates: dict[int, IndexedRule] = {}
        for api in (int(asked.header.api_key), None):
            index = self._by_api.get(api)
            if index is not None:
                for rule in index.find(values, lambda: asked.entities, asked.topic_of):
                    candidates[rule.order] = rule
        return [candidates[order] for order in sorted(candidates)]

    def match_new_connection(self, facts: ConnectionAttributes) -> Sequence[ActiveRule]:
        """The rules that match a new connection."""
        rules = self._about_new_connections.values()
        return [each for each in rules if matches_connection(each.rule, facts)]


class _AskedRequest:
    """A request that rules are compared with; its entities are found when a rule needs them."""

    def __init__(
        self,
        facts: ConnectionAttributes,
        header: RequestHeader,
        request: Struct,
        topic_of: TopicOf,
    ) -> None:
        self.facts = facts
        self.header = header
        self.request = request
        self.topic_of = topic_of

    @cached_property
    def entities(self) -> list[MessageEntity]:
        """What the request names, or the request itself if that is nothing."""
        return entities(self.request, self.header.api_version)


def _match(indexed: IndexedRule, asked: _AskedRequest) -> RuleMatch | None:
    facts, header, topic_of = asked.facts, asked.header, asked.topic_of
    rule, version = indexed.active.rule, header.api_version
    if rule.version_min is not None and version < rule.version_min:
        return None
    if rule.version_max is not None and version > rule.version_max:
        return None
    if not (indexed.is_about_all_clients or _matches_client(rule, header, facts)):
        return None
    everything = asked.entities
    at = [
        index
        for index, each in enumerate(everything)
        if indexed.matches_entity(each, topic_of)
        and indexed.matches_fields(asked.request, version, each)
    ]
    if not indexed.has_effect(int(header.api_key), version):
        return None
    selects = bool(indexed.selected or indexed.active.rule.request)
    is_deferred = selects and not at
    if is_deferred and not indexed.may_match_response(asked):
        return None
    claims = tuple(at) if selects and len(at) < len(everything) else None
    matched = tuple(everything[index] for index in at)
    keys = matched[0].keys if matched else {}
    counted = counted_apart(rule, keys, facts, topic_of)
    return RuleMatch(indexed.active, matched, claims, indexed, counted, topic_of, is_deferred)


def counted_apart(
    rule: FaultRule,
    keys: Mapping[Meaning, Any],
    facts: ConnectionAttributes | None = None,
    topic_of: TopicOf | None = None,
) -> str:
    """The text of what a rule counts separately; empty if it counts everything together."""
    if rule.per is None:
        return ""
    if rule.per not in ENTITY_FIELDS:
        name = "number" if rule.per == CONNECTION else rule.per
        return str(getattr(facts, name))
    entity = MessageEntity(keys, ())
    value = value_of(entity, ENTITY_FIELDS[rule.per], topic_of or _no_topic)
    if rule.per == "partition":
        return f"{value_of(entity, Meaning.TOPIC, topic_of or _no_topic)}-{value}"
    return str(value)


def _forbids_fetch_sessions(indexed: IndexedRule) -> bool:
    rule = indexed.active.rule
    return indexed.api in (None, ApiKey.FETCH) and (
        bool(indexed.selected & _SESSION_KEYS)
        or (bool(indexed.active.rule.request) and indexed.selects_elements)
        or rule.action.replaces_response
        or rule.action.place == WAITING
    )


def client_id_of(data: bytes | memoryview) -> str | None:
    """The client id in the header of a request; None if it has none."""
    start = _CLIENT_ID_AT + _CLIENT_ID_LENGTH.size
    if len(data) < start:
        return None
    (length,) = _CLIENT_ID_LENGTH.unpack_from(data, _CLIENT_ID_AT)
    return None if length < 0 else bytes(data[start : start + length]).decode(errors="replace")


def _matches_client(rule: FaultRule, header: RequestHeader, facts: ConnectionAttributes) -> bool:
    is_matched = rule.correlation_id in (None, header.correlation_id)
    return is_matched and matches_connection(rule, facts)


def matches_connection(rule: FaultRule, facts: ConnectionAttributes) -> bool:
    """Whether a rule's selectors of clients and connections match."""
    return (
        rule.connection in (None, facts.number)
        and rule.listener in (None, facts.listener)
        and (rule.address is None or is_in_network(facts.address, rule.address))
        and (rule.principal is None or _matches_value(rule.principal, facts.principal))
        and (rule.client_id is None or _matches_value(rule.client_id, facts.client_id))
    )


class EntityMatcher:
    """Rules that are matched with a single entity."""

    def __init__(self) -> None:
        self._rules: dict[str, IndexedRule] = {}
        self._index = RuleIndex()
        self._last_order = 0

    def __bool__(self) -> bool:
        return bool(self._rules)

    def add(self, active: ActiveRule) -> None:
        """Add a rule after those that are there, unless it is there."""
        if active.id not in self._rules:
            self._last_order += 1
            indexed = self._rules[active.id] = IndexedRule(active, self._last_order)
            self._index.add(indexed)

    def remove(self, rule_id: str) -> None:
        """Remove a rule, if it is there."""
        if (indexed := self._rules.pop(rule_id, None)) is not None:
            self._index.remove(indexed)

    def all(self) -> Iterator[ActiveRule]:
        """All rules, in the order in which they were added."""
        return (each.active for each in self._rules.values())

    def match(self, keys: Mapping[Meaning, Any]) -> list[ActiveRule]:
        """The rules that match an entity with these keys, in the order in which they were added."""
        entity = MessageEntity(keys, ())
        found = {rule.order: rule for rule in self._index.find({}, lambda: [entity], _no_topic)}
        return [
            found[order].active
            for order in sorted(found)
            if found[order].matches_entity(entity, _no_topic)
        ]


class PointMatcher:
    """The rules of a broker that hold at points inside of it."""

    def __init__(self) -> None:
        self._by_point: dict[str, EntityMatcher] = {}

    def __bool__(self) -> bool:
        return any(self._by_point.values())

    def add(self, active: ActiveRule) -> None:
        """Add a rule after those that are there, if it is about such a point."""
        action = active.rule.action
        if active.rule.is_inside and isinstance(action, Hold):
            self._by_point.setdefault(str(action.point), EntityMatcher()).add(active)

    def remove(self, rule_id: str) -> None:
        """Remove a rule, if it is there."""
        for rules in self._by_point.values():
            rules.remove(rule_id)

    def match(self, point: str, keys: Mapping[Meaning, Any]) -> tuple[Candidate, ...]:
        """The rules that match what is at a point, with these keys."""
        rules = self._by_point.get(point)
        matching = () if rules is None else rules.match(keys)
        return tuple(
            Candidate(each.id, None, counted=counted_apart(each.rule, keys)) for each in matching
        )


def _no_topic(topic_id: object) -> None:
    del topic_id
