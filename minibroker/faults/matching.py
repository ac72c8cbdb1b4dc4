"""Which rules a request or a connection matches, and which of its entities.

Owns the comparison of selectors with a request. It must never count, decide or know a socket.
Invariant: all selectors of a rule match at the same entity, and a request that does not have a
selected field does not match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from minibroker.control.fault_shapes import FaultRule
from minibroker.faults.actions import ENTITY_FIELDS, NEW_CONNECTION_ACTIONS, STORAGE_ACTIONS
from minibroker.faults.entities import EntityKey, MessageEntity, entities
from minibroker.faults.points import WAITING, is_inside
from minibroker.faults.rules import (
    ActiveRule,
    is_about_requests,
    is_in_network,
    selected_api,
    selected_keys,
)
from minibroker.patterns.wildcard import matches_wildcard
from protocol.headers import RequestHeader
from protocol.registry import ApiKey
from protocol.schema import Struct
from protocol.types import uuid_from_text

_SESSION_KEYS: Final = frozenset({EntityKey.TOPIC, EntityKey.TOPIC_ID, EntityKey.PARTITION})


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


class Candidate(NamedTuple):
    """A match as the controller decides about it: which entities a final action would claim."""

    rule_id: str
    claims: tuple[int, ...] | None
    """Positions of the matching entities in the request; None if the rule claims all of it."""


class RequestMatches(NamedTuple):
    """All rules that match a request, in the order in which they were added."""

    matches: tuple[RuleMatch, ...]
    candidates: tuple[Candidate, ...]
    """Without rules about records, which the response has or not, and about waits."""
    entity_count: int


class Matcher:
    """The rules of a broker, prepared for matching."""

    def __init__(self, rules: Sequence[ActiveRule]) -> None:
        self.rules = tuple(rules)
        self._about_requests = [each for each in rules if is_about_requests(each.rule)]
        self._about_new_connections = [
            each for each in rules if each.rule.action in NEW_CONNECTION_ACTIONS
        ]
        apis = [selected_api(each.rule) for each in self._about_requests]
        self._meets_appends = any(each.rule.action in STORAGE_ACTIONS for each in rules)
        self._apis: frozenset[int] | None = (
            None if None in apis else frozenset(int(api) for api in apis if api is not None)
        )
        self.forbids_fetch_sessions = any(
            selected_keys(each.rule) & _SESSION_KEYS
            or each.rule.action in ("error", "corrupt", "replace")
            or each.place == WAITING
            for each in self._about_requests
            if selected_api(each.rule) in (None, ApiKey.FETCH)
        )
        """Whether fetches must name all their partitions, so that rules can select them."""

    def concerns(self, api_key: int) -> bool:
        """Whether a rule may match requests of an API, or appends of any.

        A request that is executed in one step and fails is executed again, so rules about appends
        would count it twice.
        """
        if self._meets_appends:
            return True
        return bool(self._about_requests) and (self._apis is None or api_key in self._apis)

    def match_request(
        self,
        facts: ConnectionAttributes,
        header: RequestHeader,
        request: Struct,
        topic_of: Callable[[Any], str | None],
    ) -> RequestMatches | None:
        """The rules that match a request; None if there are none.

        ``topic_of`` returns the name of a topic id.
        """
        found: list[MessageEntity] | None = None
        matches: list[RuleMatch] = []
        candidates: list[Candidate] = []
        for active in self._about_requests:
            rule = active.rule
            if not (_matches_header(rule, header) and matches_connection(rule, facts)):
                continue
            if found is None:
                found = entities(request, header.api_version, header.api_key)
            selected = selected_keys(rule)
            at = [i for i, each in enumerate(found) if _matches_entity(rule, each, topic_of)]
            if selected and not at:
                continue
            matches.append(RuleMatch(active, tuple(found[index] for index in at)))
            # Some are matches only if the response has records, or if the request waits.
            if rule.part != "crc" and active.place != WAITING:
                claims = tuple(at) if selected and len(at) < len(found) else None
                candidates.append(Candidate(active.id, claims))
        if found is None or not matches:
            return None
        return RequestMatches(tuple(matches), tuple(candidates), len(found))

    def match_new_connection(self, facts: ConnectionAttributes) -> Sequence[ActiveRule]:
        """The rules that match a new connection."""
        rules: Iterable[ActiveRule] = self._about_new_connections
        return [each for each in rules if matches_connection(each.rule, facts)]


def _matches_header(rule: FaultRule, header: RequestHeader) -> bool:
    if selected_api(rule) not in (None, header.api_key):
        return False
    if rule.version_min is not None and header.api_version < rule.version_min:
        return False
    if rule.version_max is not None and header.api_version > rule.version_max:
        return False
    return rule.correlation_id in (None, header.correlation_id)


def matches_connection(rule: FaultRule, facts: ConnectionAttributes) -> bool:
    """Whether a rule's selectors of clients and connections match."""
    return (
        rule.connection in (None, facts.number)
        and rule.listener in (None, facts.listener)
        and (rule.address is None or is_in_network(facts.address, rule.address))
        and _matches_text(rule.principal, facts.principal)
        and _matches_text(rule.client_id, facts.client_id)
    )


class PointMatcher:
    """The rules of a broker that hold at points inside of it."""

    def __init__(self, rules: Sequence[ActiveRule]) -> None:
        self._rules: dict[str, list[ActiveRule]] = {}
        for each in rules:
            if is_inside(each.rule):
                self._rules.setdefault(str(each.rule.point), []).append(each)

    def match(self, point: str, keys: Mapping[EntityKey, Any]) -> tuple[Candidate, ...]:
        """The rules that match what is at a point, with these keys."""
        entity = MessageEntity(keys, ())
        return tuple(
            Candidate(each.id, None)
            for each in self._rules.get(point, ())
            if _matches_entity(each.rule, entity, _no_topic)
        )


def _no_topic(topic_id: object) -> None:
    del topic_id


def _matches_text(selector: str | None, value: Any) -> bool:
    if selector is None:
        return True
    return isinstance(value, str) and matches_wildcard(value, selector)


def _matches_entity(
    rule: FaultRule, entity: MessageEntity, topic_of: Callable[[Any], str | None]
) -> bool:
    return all(
        _matches_key(getattr(rule, name), key, entity, topic_of)
        for name, key in ENTITY_FIELDS.items()
        if getattr(rule, name) is not None
    )


def _matches_key(
    selector: Any, key: EntityKey, entity: MessageEntity, topic_of: Callable[[Any], str | None]
) -> bool:
    value = entity.keys.get(key)
    if key is EntityKey.PARTITION:
        return bool(value == selector)
    if key is EntityKey.TOPIC_ID:
        return bool(value == uuid_from_text(selector))
    if key is EntityKey.TOPIC and not value and EntityKey.TOPIC_ID in entity.keys:
        value = topic_of(entity.keys[EntityKey.TOPIC_ID])
    return _matches_text(selector, value)
