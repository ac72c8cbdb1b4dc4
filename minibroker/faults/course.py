"""What the fired rules do to one request and to its response.

Owns the changes of the request before it is executed, and of the response and its bytes. It must
never wait or send: the shell asks which rules delay, hold or disconnect at a place. Invariant:
rules act in the order in which they were added, and an entity gets the error of the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from minibroker.faults.actions import AFTER, BEFORE
from minibroker.faults.corruption import add_tagged_field, damage_crc, damage_frame
from minibroker.faults.entities import EntityKey, Keys, MessageEntity, Step
from minibroker.faults.error_responses import (
    ErrorPlan,
    error_response,
    fail_everything,
    plan_error,
    remove_entities,
)
from minibroker.faults.matching import Candidate, RequestMatches, RuleMatch
from minibroker.faults.points import WAITING
from minibroker.faults.response_fields import set_fields
from minibroker.faults.rulebook import Firing
from minibroker.faults.rules import ActiveRule, error_of, selected_keys
from protocol import registry
from protocol.headers import RequestHeader
from protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from protocol.registry import ApiKey
from protocol.schema import Struct

CRC, TAGGED_FIELD = "crc", "tagged_field"
_NOT_OF_FRAMES: Final = frozenset({CRC, TAGGED_FIELD})


class FaultCourse:
    """The course of one request with the rules that fired for it."""

    def __init__(
        self, header: RequestHeader, matches: RequestMatches, fired: Sequence[Firing]
    ) -> None:
        self.fired: Final = {each.rule_id: each for each in fired}
        self._header = (int(header.api_key), header.api_version)
        self._all_matches = matches.matches
        self._matches = [each for each in matches.matches if each.active.id in self.fired]
        self._about_records = [each for each in matches.matches if each.active.rule.part == CRC]
        self._about_waits = [each for each in matches.matches if each.active.place == WAITING]
        self._entity_count = matches.entity_count
        self._early: list[tuple[ErrorPlan, int]] = []
        self._late: list[tuple[ErrorPlan | None, int]] = []
        self._replaces_early = False

    @property
    def api(self) -> ApiKey:
        """The API of the request."""
        return ApiKey(self._header[0])

    def fire(self, fired: Sequence[Firing]) -> None:
        """Add rules that fired later."""
        self.fired.update({each.rule_id: each for each in fired})
        self._matches = [each for each in self._all_matches if each.active.id in self.fired]

    def keys_of(self, rule_id: str) -> Keys:
        """The keys of the first entity that a rule matches."""
        found = (each.found for each in self._matches if each.active.id == rule_id)
        return next((entities[0].keys for entities in found if entities), {})

    def fired_rules(self) -> list[ActiveRule]:
        """The rules that fired for the request."""
        return [match.active for match in self._matches]

    def rules(self, *actions: str, place: str | None = None) -> Iterator[ActiveRule]:
        """The rules with one of these actions, at a place or at any."""
        for match in self._matches:
            active = match.active
            if active.rule.action in actions and place in (None, active.place):
                yield active

    @property
    def has_error(self) -> bool:
        """Whether a rule puts an error into the response."""
        return bool(self._early or self._late)

    def prepare(self, request: Struct) -> bool:
        """Remove from a request what will fail; return whether the rest must be executed."""
        if any(True for _ in self.rules("replace", place=BEFORE)):
            self._replaces_early = True
            return False
        claimed: set[tuple[Step, ...]] = set()
        removed: list[MessageEntity] = []
        is_answered = False
        for match in self._matches:
            if match.active.rule.action != "error":
                continue
            found = [each for each in match.found if each.path not in claimed]
            if not found:
                continue
            claimed.update(each.path for each in found)
            plan, code = self._plan(request, match, found)
            if match.active.place == AFTER or plan is None:
                self._late.append((plan, code))
                continue
            self._early.append((plan, code))
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
        self, request: Struct, match: RuleMatch, found: list[MessageEntity]
    ) -> tuple[ErrorPlan | None, int]:
        rule = match.active.rule
        code = error_of(rule.error or "")
        assert code is not None
        plan = plan_error(
            self._header,
            request,
            found,
            selected_keys(rule),
            code,
            all_found=self._entity_count,
            whole=bool(rule.whole),
        )
        return plan, code

    def finish(self, response: Any) -> Any:
        """The response of this course.

        ``response`` is that to the rest of the request; None if nothing was executed.
        """
        if self._replaces_early:
            response = registry.schema(self._header[0]).response()
        for plan, code in self._early:
            response = error_response(self._header, plan, code, response)
        if response is None:
            return None
        for late, code in self._late:
            if late is None:
                fail_everything(self._header, response, code)
            else:
                response = error_response(self._header, late, code, response, is_complete=True)
        for active in self.rules("replace"):
            set_fields(response, active.rule.response or {})
        if any(each.rule.part == TAGGED_FIELD for each in self.rules("corrupt")):
            add_tagged_field(response)
        for active in self.rules("throttle"):
            if hasattr(response, "throttle_time_ms"):
                response.throttle_time_ms = active.rule.throttle_ms
        return response

    @property
    def is_about_waits(self) -> bool:
        """Whether a rule is about a fetch that waits."""
        return bool(self._about_waits)

    def wait_candidates(self, request: FetchRequest, response: Any) -> list[Candidate]:
        """The rules about waits; they are matches only if what is there is not enough."""
        if not isinstance(response, FetchResponse) or request.max_wait_ms <= 0:
            return []
        partitions = [each for topic in response.responses for each in topic.partitions]
        size = sum(len(each.records or b"") for each in partitions)
        is_failed = response.error_code or any(each.error_code for each in partitions)
        if is_failed or size >= request.min_bytes:
            return []
        return [Candidate(match.active.id, None) for match in self._about_waits]

    def record_candidates(self, response: Any) -> list[Candidate]:
        """The rules about records that a response has; they are matches only if it has any."""
        if not isinstance(response, FetchResponse):
            return []
        return [
            Candidate(match.active.id, None)
            for match in self._about_records
            if any(_records_of(response, match))
        ]

    def damage_records(
        self, response: FetchResponse, fired: Sequence[Firing], load: Callable[[Any], bytes]
    ) -> list[ActiveRule]:
        """Change checksums for the rules that fired, and return these.

        ``load`` returns the bytes of records.
        """
        ids = {each.rule_id for each in fired}
        matches = [match for match in self._about_records if match.active.id in ids]
        for match in matches:
            for partition in _records_of(response, match):
                partition.records = damage_crc(load(partition.records))
        return [match.active for match in matches]

    def damage(self, frame: bytes) -> bytes:
        """The bytes of the response as they are sent."""
        for active in self.rules("corrupt"):
            rule = active.rule
            if rule.part is not None and rule.part not in _NOT_OF_FRAMES:
                frame = damage_frame(frame, rule.part, rule.bytes)
        return frame


def _records_of(response: FetchResponse, match: RuleMatch) -> Iterator[PartitionData]:
    """The partitions with records that a rule is about."""
    selects = bool(selected_keys(match.active.rule))
    for topic in response.responses:
        for partition in topic.partitions:
            if partition.records and (
                not selects
                or any(_is_of(each, topic, partition.partition_index) for each in match.found)
            ):
                yield partition


def _is_of(entity: MessageEntity, topic: FetchableTopicResponse, partition: int) -> bool:
    keys = entity.keys
    if keys.get(EntityKey.PARTITION) != partition:
        return False
    if EntityKey.TOPIC_ID in keys:
        return bool(keys[EntityKey.TOPIC_ID] == topic.topic_id)
    return bool(keys.get(EntityKey.TOPIC) == topic.topic)
