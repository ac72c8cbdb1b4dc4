"""What the rules that match do to one request and to its response, and error responses of any API.

Owns the changes of the request before it is executed, of the response and its bytes, the place of
an error code in a response, and everything else that a response with an error has. It must never
wait, send, know why a request fails, or decide which rules fire: the shell asks. Invariants: rules
act in the order in which they were added, an entity gets the error of the first one, and a rule
that would leave the response as it is does not fire for it; an error response is built from the
schemas and names exactly the entities that the request named, as Kafka's
``AbstractRequest.getErrorResponse`` does for each API by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple, TypeVar

from minibroker.lab.faults.actions import (
    Action,
    ChangedResponse,
    Error,
    LoadRecords,
    Replace,
    ThrottleResponse,
)
from minibroker.lab.faults.fault_rule import ActiveRule
from minibroker.lab.faults.matching import Candidate, RequestMatches, RuleMatch
from minibroker.lab.faults.message_fields import copied, set_fields
from minibroker.lab.faults.places import AFTER, BEFORE, MIDDLE, WAITING
from minibroker.lab.faults.rulebook import Firing
from minibroker_protocol import registry
from minibroker_protocol.compiler import encoder
from minibroker_protocol.entities import (
    UNKNOWN_NUMBERS,
    Keys,
    MessageEntity,
    Step,
    element_of,
    fields_of,
    frozen,
    is_entity_array,
    keys_below,
    keys_by_type,
)
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Array, Field, Message, Struct
from minibroker_protocol.wire import RequestHeader

_COPIED: Final = frozenset({"resource_type", "entity"})
"""Fields of a request's entity that its entity in the response has too."""

_ENTITY_ERRORS: Final = frozenset({ApiKey.FETCH, ApiKey.METADATA})
"""APIs whose error at the top of the response does not stand for errors of their entities."""

_TOP_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.REBOOTSTRAP_REQUIRED,
    }
)
"""Errors that those APIs have at the top of the response."""


class ErrorSite(NamedTuple):
    """A struct of a response that has an error code, and the arrays around it."""

    arrays: tuple[Field, ...]
    keys: frozenset[Meaning]
    field: str
    by_position: bool = False
    """Whether elements correspond to those of the request by their order only."""


class FailedEntity(NamedTuple):
    """An entity of a request that gets an error."""

    keys: Keys
    copied: Mapping[str, Any]
    position: int


class ErrorPlan(NamedTuple):
    """Where an error goes in the response to one request."""

    site: ErrorSite
    targets: tuple[FailedEntity, ...]
    is_whole: bool
    """Whether nothing is left of the request without these entities."""


def plan_error(
    header: tuple[int, int],
    request: Struct,
    found: Sequence[MessageEntity],
    selected: frozenset[Meaning],
    code: int,
    *,
    all_found: int,
    whole: bool = False,
) -> ErrorPlan | None:
    """Plan an error for the entities that a rule has found; ``all_found`` is their total number.

    ``header`` is API key and version; ``selected`` are the keys that the rule selects by. None if
    the response to this request has no place for it before the request is executed.
    """
    api_key, version = header
    prefers_top = api_key not in _ENTITY_ERRORS or code in _TOP_ERRORS or whole
    site = choose_site(api_key, version, selected, prefers_top=prefers_top, whole=whole)
    if site is None:
        return None
    if not site.arrays:
        return ErrorPlan(site, tuple(_targets(request, found, version)), is_whole=True)
    named = [entity for entity in found if entity.path]
    if not named:
        return None
    is_whole = len(named) == all_found
    return ErrorPlan(site, tuple(_targets(request, named, version)), is_whole)


def _targets(
    request: Struct, found: Iterable[MessageEntity], version: int
) -> Iterable[FailedEntity]:
    for entity in found:
        copied: dict[str, Any] = {}
        struct: Any = request
        for step in entity.path:
            struct = getattr(struct, step.array)[step.position]
            if isinstance(struct, Struct):
                copied |= {
                    item.name: getattr(struct, item.name)
                    for item, _ in fields_of(type(struct), version)
                    if item.name in _COPIED
                }
        position = entity.path[0].position if entity.path else 0
        yield FailedEntity(entity.keys, copied, position)


# Where the error code is --------------------------------------------------------------------------


@cache
def error_sites(api_key: int, version: int) -> tuple[ErrorSite, ...]:
    """All places of error codes in a response, the outermost first."""
    schema = registry.schema(api_key)
    found: list[ErrorSite] = []

    def walk(cls: type[Struct], arrays: tuple[Field, ...], keys: frozenset[Meaning]) -> None:
        keys |= {key for item, key in fields_of(cls, version) if key is not None and arrays}
        for item, _ in fields_of(cls, version):
            if item.means is Meaning.ERROR:
                found.append(ErrorSite(arrays, keys, item.name))
        for item, _ in fields_of(cls, version):
            if is_entity_array(item):
                walk(element_of(item), (*arrays, item), keys)

    walk(schema.response, (), frozenset())
    asked = keys_below(schema.request, version)
    usable = (_usable(site, schema.request, version, asked) for site in found)
    return tuple(sorted((site for site in usable if site), key=lambda site: len(site.arrays)))


def _usable(
    site: ErrorSite, request: type[Struct], version: int, asked: frozenset[Meaning]
) -> ErrorSite | None:
    """The site if a request says what its elements are."""
    if not site.arrays:
        return site
    if site.keys:
        known = _plain(asked) | {Meaning.PRODUCER_ID}  # Which says more, and names nothing.
        return site if _plain(site.keys) <= known else None
    arrays = [item for item, _ in fields_of(request, version) if is_entity_array(item)]
    if len(site.arrays) > 1 or len(arrays) != 1:
        return None
    return site._replace(keys=keys_below(element_of(arrays[0]), version), by_position=True)


def _plain(keys: Iterable[Meaning]) -> frozenset[Meaning]:
    """Keys with name and id of a topic as one."""
    return frozenset(Meaning.TOPIC if key is Meaning.TOPIC_ID else key for key in keys)


@cache
def choose_site(
    api_key: int,
    version: int,
    selected: frozenset[Meaning],
    *,
    prefers_top: bool = True,
    whole: bool = False,
) -> ErrorSite | None:
    """The outermost place whose struct is about what a rule selects; None if there is none."""
    sites = error_sites(api_key, version)
    if whole and sites and not sites[0].arrays:
        return sites[0]
    request = registry.schema(api_key).request
    around = {key for item, key in fields_of(request, version) if not isinstance(item.kind, Array)}
    generic = keys_by_type(request, version)
    selected = frozenset(generic.get(key, key) for key in selected)
    wanted = _plain(selected) - _plain(key for key in around if key is not None)
    covering = [site for site in sites if wanted <= _plain(site.keys)] or list(sites)
    if not prefers_top:
        covering.sort(key=lambda site: not site.arrays)
    return covering[0] if covering else None


# The response -------------------------------------------------------------------------------------


def error_response(
    header: tuple[int, int],
    plan: ErrorPlan,
    code: int,
    response: Struct | None = None,
    *,
    is_complete: bool = False,
) -> Struct:
    """Return the response with the errors of a plan, instead of what it has of these entities.

    ``response`` is that to the whole request (``is_complete``) or to what was left of it.
    """
    api_key, version = header
    cls = registry.schema(api_key).response
    site = plan.site
    if not site.arrays:
        keys = plan.targets[0].keys if plan.targets else {}
        member = {Meaning.MEMBER: keys[Meaning.MEMBER]} if Meaning.MEMBER in keys else {}
        return _new(cls, version, FailedEntity(member, {}, 0), site, code)
    if response is None:
        response = cls()
    for target in plan.targets:
        if site.by_position:
            elements = getattr(response, site.arrays[0].name)
            end = target.position + is_complete
            elements[target.position : end] = [
                _new(element_of(site.arrays[0]), version, target, site, code)
            ]
        else:
            _place(response, site, version, target, code)
    return response


def _place(
    response: Struct, site: ErrorSite, version: int, target: FailedEntity, code: int
) -> None:
    struct = response
    *outer, innermost = site.arrays
    for array in outer:
        elements = getattr(struct, array.name)
        index = _index(elements, version, target)
        if index is None:
            elements.append(_new(element_of(array), version, target))
            index = -1
        struct = elements[index]
    elements = getattr(struct, innermost.name)
    failed = _new(element_of(innermost), version, target, site, code)
    index = _index(elements, version, target)
    if index is None:
        elements.append(failed)
    else:
        elements[index] = failed


def _index(elements: Sequence[Struct], version: int, target: FailedEntity) -> int | None:
    """The element that is about an entity."""
    for index, element in enumerate(elements):
        same = [
            frozen(getattr(element, item.name)) == target.keys[key]
            for item, key in fields_of(type(element), version)
            if key is not None and target.keys.get(key) is not None
        ]
        if same and all(same):
            return index
    return None


def _new(
    cls: type[Struct],
    version: int,
    target: FailedEntity,
    site: ErrorSite | None = None,
    code: int = ErrorCode.NONE,
) -> Struct:
    struct = cls()
    for item, key in fields_of(cls, version):
        if item.name in target.copied:
            setattr(struct, item.name, target.copied[item.name])
        elif key is not None and key in target.keys:
            setattr(struct, item.name, target.keys[key])
        elif site is not None and item.name == site.field:
            setattr(struct, item.name, int(code))
        elif site is not None and item.name == "records":
            struct.records = b""  # type: ignore[attr-defined]
        elif item.means in UNKNOWN_NUMBERS and getattr(struct, item.name) == 0:
            setattr(struct, item.name, -1)
    return struct


def error_owner(
    structs: Sequence[Struct], version: int, selected: frozenset[Meaning]
) -> tuple[Struct, str] | None:
    """The outermost of nested structs of a response that is about what a rule selects and has an
    error code, and its field.
    """
    wanted = _plain(selected)
    for struct in structs:
        fields = _fields(struct, version)
        wanted -= _plain(key for _, key in fields if key is not None)
        for item, _ in fields:
            if item.means is Meaning.ERROR and not wanted:
                return struct, item.name
    return None


def fail_everything(header: tuple[int, int], response: Struct, code: int) -> None:
    """Put an error into a response whose request named nothing, e.g. Metadata of all topics."""
    version = header[1]
    level = [response]
    while level:
        fields = [(item, struct) for struct in level for item, _ in _fields(struct, version)]
        errors = [(item.name, struct) for item, struct in fields if item.means is Meaning.ERROR]
        is_top = level == [response]
        if errors and not (is_top and header[0] in _ENTITY_ERRORS and code not in _TOP_ERRORS):
            for name, struct in errors:
                setattr(struct, name, int(code))
            return
        level = [
            element
            for struct in level
            for item, _ in _fields(struct, version)
            if is_entity_array(item)
            for element in getattr(struct, item.name) or ()
        ]


def _fields(struct: Struct, version: int) -> tuple[tuple[Field, Meaning | None], ...]:
    return fields_of(type(struct), version)


def remove_entities(request: Struct, found: Iterable[MessageEntity]) -> None:
    """Remove entities from a request, and the arrays around them that have become empty."""
    paths = sorted({entity.path for entity in found if entity.path}, reverse=True)
    for path in paths:
        structs: list[Any] = [request]
        for step in path[:-1]:
            structs.append(getattr(structs[-1], step.array)[step.position])
        for struct, step in zip(reversed(structs), reversed(path), strict=True):
            elements = getattr(struct, step.array)
            del elements[step.position]
            if elements:
                break


ActionT = TypeVar("ActionT", bound=Action)

NO_EFFECT: Final = object()
"""What a rule would do to a response that it leaves as it is."""


class FaultCourse:
    """The course of one request with the rules that match it."""

    def __init__(self, header: RequestHeader, request: Any, matches: RequestMatches) -> None:
        self.fired: Final[dict[str, Firing]] = {}
        self._header = (int(header.api_key), header.api_version)
        self._matches = matches.matches
        self._entity_count = matches.entity_count
        is_produce = header.api_key == ApiKey.PRODUCE
        self.has_response: Final = not (is_produce and request.acks == 0)
        self._late = [each for each in self._matches if self._is_late(request, each)]
        self._late_ids = {each.active.id for each in self._late}
        self._claimed: set[int] = set()
        """Positions of entities that final actions have claimed."""
        self._is_claimed_whole = False
        self._failing: dict[str, list[MessageEntity]] = {}
        """The entities that get the error of a rule, by its id."""
        self._early_errors: list[tuple[ErrorPlan, int]] = []
        self._late_errors: dict[str, tuple[ErrorPlan | None, int]] = {}
        self._failed_elements: set[tuple[Step, ...]] = set()
        """Entities that only the response names and that have the error of a rule."""
        self._loses_response = False
        self._has_ended = False
        self.has_error = False
        """Whether a rule puts an error into the response."""

    def _is_late(self, request: Struct, match: RuleMatch) -> bool:
        """Whether it depends on the response whether a rule acts."""
        action = match.active.rule.action
        if action.counts_on_arrival or action.place == WAITING:
            return False
        if match.is_deferred:
            return True
        if isinstance(action, Error) and action.place == BEFORE:
            return self._plan(action, request, match, match.found) is None
        return action.place != BEFORE

    @property
    def api(self) -> ApiKey:
        """The API of the request."""
        return ApiKey(self._header[0])

    # Before the work --------------------------------------------------------------------------

    def candidates(self) -> list[Candidate]:
        """The rules that fire before the work, and those that claim entities for later."""
        return [
            Candidate(match.active.id, match.claims, is_late, match.counted)
            for match in self._matches
            if match.active.place != WAITING
            and (not (is_late := match.active.id in self._late_ids) or _claims(match))
        ]

    def begin(self, fired: Sequence[Firing]) -> None:
        """Take note of the rules that fire before the work, and of those that claim for later."""
        winners = {each.rule_id for each in fired if each.is_late}
        self.fired.update({each.rule_id: each for each in fired if not each.is_late})
        failed: set[tuple[Step, ...]] = set()
        for match in self._matches:
            rule_id, action = match.active.id, match.active.rule.action
            if match.is_deferred:
                continue
            if rule_id in self.fired and action.is_final:
                self._claim(match)
            if isinstance(action, Error) and (rule_id in self.fired or rule_id in self._late_ids):
                found = [each for each in match.found if each.path not in failed]
                self._failing[rule_id] = found
                if rule_id in self.fired or rule_id in winners:
                    failed.update(each.path for each in found)
            if rule_id in winners and action.ends_request and action.place == AFTER:
                self._loses_response = True

    def _claim(self, match: RuleMatch) -> None:
        if match.claims is None:
            self._is_claimed_whole = True
        else:
            self._claimed.update(match.claims)

    def prepare(self, request: Struct) -> bool:
        """Remove from a request what will fail; return whether the rest must be executed."""
        removed: list[MessageEntity] = []
        is_answered = any(self.rules(Replace, BEFORE))
        for match in self._matches:
            rule_id, action = match.active.id, match.active.rule.action
            found = self._failing.get(rule_id)
            if not found or not isinstance(action, Error):
                continue
            plan = self._plan(action, request, match, found)
            if rule_id in self._late_ids or plan is None:
                self._late_errors[rule_id] = plan, action.code
                continue
            self._early_errors.append((plan, action.code))
            self.has_error |= action.code != ErrorCode.NONE
            removed += found
            if plan.is_whole or len(removed) == self._entity_count:
                is_answered = True
        if is_answered:
            return False
        if removed:
            remove_entities(request, removed)
            if hasattr(request, "max_wait_ms"):  # A partition with an error ends a long poll.
                request.max_wait_ms = 0
        return True

    def _plan(
        self, error: Error, request: Struct, match: RuleMatch, found: Sequence[MessageEntity]
    ) -> ErrorPlan | None:
        return plan_error(
            self._header,
            request,
            found,
            match.active.rule.selected_keys,
            error.code,
            all_found=self._entity_count,
            whole=bool(error.whole),
        )

    def respond(self, response: Any) -> Any:
        """The response with what rules have decided before the work.

        ``response`` is that to the rest of the request; None if nothing was executed.
        """
        if not self.has_response:
            return None
        replacements = [action for _, action in self.rules(Replace, BEFORE)]
        if replacements:
            response = registry.schema(self._header[0]).response()
        for plan, code in self._early_errors:
            response = error_response(self._header, plan, code, response)
        for action in replacements:
            set_fields(response, action.response)
        return response

    # With the response ------------------------------------------------------------------------

    def late_matches(self) -> Iterator[RuleMatch]:
        """The rules that may fire now that the response is known, in their order."""
        for match in self._late:
            if self._has_ended:
                return
            if not (_claims(match) and self._is_claimed(match)):
                yield match

    def _is_claimed(self, match: RuleMatch) -> bool:
        """Whether other rules have claimed all entities of a match."""
        claims = match.claims
        return self._is_claimed_whole or (claims is not None and self._claimed.issuperset(claims))

    def late_candidate(self, match: RuleMatch) -> Candidate:
        """A rule that would change the response, as the controller decides about it."""
        return Candidate(match.active.id, None, counted=match.counted, fired=tuple(self.fired))

    def effect(self, match: RuleMatch, response: Any, load: LoadRecords) -> Any:
        """The response if a rule fires; `NO_EFFECT` if that changes neither it nor its time."""
        action, point = match.active.rule.action, match.active.rule.point
        if point is not None and response is not None and not point.is_reached(response):
            return NO_EFFECT
        if not action.needs_response and action.place != MIDDLE:
            return response
        if self._loses_response:
            return NO_EFFECT
        if response is None:
            acts = action.acts_without_response(has_response=self.has_response)
            return response if acts else NO_EFFECT
        if not action.changes_fields:
            return response
        copy = copied(response)
        changed = action.change(
            ChangedResponse(
                copy,
                *self._header,
                partitions=partial(_records_of, copy, match),
                load=load,
                fail=partial(self._fail, match, copy),
                elements=partial(self._elements, match, copy),
            )
        )
        return changed if action.mutes or self._differ(response, changed) else NO_EFFECT

    def _elements(self, match: RuleMatch, response: Any) -> Iterator[Sequence[Struct]]:
        found = match.indexed.elements(response, self._header[1], match.topic_of)
        return (structs for _, structs in found)

    def _fail_elements(self, match: RuleMatch, response: Any) -> None:
        """Put an error into what only the response names, unless an earlier rule has failed it."""
        version = self._header[1]
        action = match.active.rule.action
        assert isinstance(action, Error)
        for entity, structs in match.indexed.elements(response, version, match.topic_of):
            owner = error_owner(structs, version, match.active.rule.selected_keys)
            if owner is not None and entity.path not in self._failed_elements:
                setattr(*owner, action.code)

    def _fail(self, match: RuleMatch, response: Any) -> Any:
        if match.is_deferred:
            self._fail_elements(match, response)
            return response
        if match.active.id not in self._late_errors:
            return response  # Another rule has claimed its entities.
        plan, code = self._late_errors[match.active.id]
        if plan is None:
            fail_everything(self._header, response, code)
            return response
        return error_response(self._header, plan, code, response, is_complete=True)

    def _differ(self, one: Message, other: Message) -> bool:
        encode = encoder(type(one), self._header[1])
        return encode(one) != encode(other)

    def fire_late(self, match: RuleMatch, fired: Firing, response: Any) -> None:
        """Take note of a rule that fires, with the response as it has changed that."""
        action = match.active.rule.action
        self.fired[match.active.id] = fired
        if match.is_deferred and isinstance(action, Error):
            found = match.indexed.elements(response, self._header[1], match.topic_of)
            self._failed_elements.update(entity.path for entity, _ in found)
        if _claims(match):
            self._claim(match)
        self.has_error |= isinstance(action, Error) and not self.has_response
        self._has_ended |= action.ends_request and action.place == AFTER

    # Waits ------------------------------------------------------------------------------------

    @property
    def is_about_waits(self) -> bool:
        """Whether a rule is about a fetch that waits."""
        return any(match.active.place == WAITING for match in self._matches)

    def wait_candidates(self, request: FetchRequest, response: Any) -> list[Candidate]:
        """The rules about waits; they are matches only if what is there is not enough."""
        if not isinstance(response, FetchResponse) or request.max_wait_ms <= 0:
            return []
        partitions = [each for topic in response.responses for each in topic.partitions]
        size = sum(len(each.records or b"") for each in partitions)
        is_failed = response.error_code or any(each.error_code for each in partitions)
        if is_failed or size >= request.min_bytes:
            return []
        return [
            self.late_candidate(match) for match in self._matches if match.active.place == WAITING
        ]

    def fire(self, fired: Sequence[Firing]) -> None:
        """Take note of rules that fire while the request waits."""
        self.fired.update({each.rule_id: each for each in fired})

    # What has fired ---------------------------------------------------------------------------

    def fired_rules(self) -> list[ActiveRule]:
        """The rules that fired for the request."""
        return [match.active for match in self._matches if match.active.id in self.fired]

    def rules(
        self, kind: type[ActionT], place: str | None = None
    ) -> Iterator[tuple[ActiveRule, ActionT]]:
        """The rules that fired with an action, at a place or at any."""
        for active in self.fired_rules():
            if isinstance(active.rule.action, kind) and place in (None, active.place):
                yield active, active.rule.action

    def keys_of(self, rule_id: str) -> Keys:
        """The keys of the first entity that a rule matches."""
        found = (each.found for each in self._matches if each.active.id == rule_id)
        return next((entities[0].keys for entities in found if entities), {})

    @property
    def sets_throttle_time(self) -> bool:
        """Whether rules have set the throttle time of the response."""
        return any(self.rules(ThrottleResponse)) or any(
            "throttle_time_ms" in action.response for _, action in self.rules(Replace)
        )

    @property
    def changes_response(self) -> bool:
        """Whether rules have changed more of the response than its throttle time."""
        return any(active.rule.action.replaces_response for active in self.fired_rules())

    def damage(self, frame: bytes) -> bytes:
        """The bytes of the response as they are sent."""
        for active in self.fired_rules():
            frame = active.rule.action.damage(frame)
        return frame


def _claims(match: RuleMatch) -> bool:
    return match.active.rule.action.claims and not match.is_deferred


def _records_of(response: Any, match: RuleMatch) -> Iterator[PartitionData]:
    """The partitions with records that a rule is about."""
    selects = bool(match.active.rule.selected_keys)
    for topic in response.responses if isinstance(response, FetchResponse) else ():
        for partition in topic.partitions:
            if partition.records and (
                not selects
                or any(_is_of(each, topic, partition.partition_index) for each in match.found)
            ):
                yield partition


def _is_of(entity: MessageEntity, topic: FetchableTopicResponse, partition: int) -> bool:
    keys = entity.keys
    if keys.get(Meaning.PARTITION) != partition:
        return False
    if Meaning.TOPIC_ID in keys:
        return bool(keys[Meaning.TOPIC_ID] == topic.topic_id)
    return bool(keys.get(Meaning.TOPIC) == topic.topic)
