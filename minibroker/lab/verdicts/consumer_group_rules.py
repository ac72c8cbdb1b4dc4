"""Rules: a member of a consumer group joins again after a fence, and reports what it was assigned.

Owns what a member reports, as far as it was sent. It must never know the coordinator's state.
Invariant: a heartbeat that may have been on its way when the member was fenced is not held against
it, nor a report of partitions that an assignment before the journal had. KIP-848.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from minibroker.lab.verdicts.commit_rules import IN_FLIGHT_MS
from minibroker.lab.verdicts.exchanges import Body, ObservedExchange
from minibroker.lab.verdicts.membership_events import (
    MEMBER_HEARTBEATS,
    MemberId,
    topic_names,
)
from minibroker.lab.verdicts.situations import BehaviorRule, Severity, Situation, duration
from minibroker.lab.verdicts.traffic import ClientTraffic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.registry import ApiKey

FENCES: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
"""Errors after which a member gives up its partitions and joins again."""
JOIN_EPOCH: Final = 0

_Partitions: TypeAlias = frozenset[tuple[str, int]]
"""Partitions by topic id."""


def _heartbeats(traffic: ClientTraffic, *keys: ApiKey) -> Mapping[MemberId, list[ObservedExchange]]:
    found: defaultdict[MemberId, list[ObservedExchange]] = defaultdict(list)
    for exchange in traffic.of_api(*keys):
        request = exchange.request
        if request is not None and request["member_id"]:
            found[MemberId(request["group_id"], request["member_id"])].append(exchange)
    return found


def _body(heartbeat: ObservedExchange) -> Body:
    assert heartbeat.request is not None
    return heartbeat.request


def _partitions(topics: Sequence[Body]) -> _Partitions:
    return frozenset((topic["topic_id"], each) for topic in topics for each in topic["partitions"])


# Joining again ------------------------------------------------------------------------------------


def _observe_rejoins(traffic: ClientTraffic) -> Iterator[Situation]:
    for member, heartbeats in _heartbeats(traffic, *MEMBER_HEARTBEATS).items():
        fence: ObservedExchange | None = None
        for heartbeat in heartbeats:
            epoch = _body(heartbeat)["member_epoch"]
            if fence is not None and was_sent_after(fence, heartbeat):
                if epoch >= JOIN_EPOCH:
                    evidence = (fence.sequences[-1], heartbeat.sent.sequence)
                    yield Situation(evidence, _fault_of_rejoin(member, fence, heartbeat))
                fence = None
            if heartbeat.response is not None and epoch > JOIN_EPOCH:
                is_fenced = heartbeat.response["error_code"] in FENCES
                fence = heartbeat if is_fenced else fence


def was_sent_after(fence: ObservedExchange, heartbeat: ObservedExchange) -> bool:
    """Whether the client certainly knew of a fence when it sent a heartbeat."""
    answer = fence.answer
    if answer is None or heartbeat.sent.sequence < answer.sequence:
        return False
    is_certain = heartbeat.sent.connection == fence.sent.connection
    return is_certain or heartbeat.sent_ms - fence.last_ms >= IN_FLIGHT_MS


def _fault_of_rejoin(member: MemberId, fence: ObservedExchange, heartbeat: ObservedExchange) -> str:
    assert fence.response is not None
    body = _body(heartbeat)
    since = f"{duration(heartbeat.sent_ms - fence.last_ms)} after "
    since += ErrorCode.describe(fence.response["error_code"])
    if body["member_epoch"] != JOIN_EPOCH:
        return f"sent a heartbeat as {member} in epoch {body['member_epoch']}, {since}"
    if heartbeat.key is ApiKey.STREAMS_GROUP_HEARTBEAT:
        kept, what = sum(len(task["partitions"]) for task in body["active_tasks"] or ()), "tasks"
    else:
        kept, what = len(_partitions(body["topic_partitions"] or ())), "partitions"
    return f"joined as {member} with {kept} {what} that it had, {since}" if kept else ""


# Reporting an assignment --------------------------------------------------------------------------


class _Assignment(NamedTuple):
    """What a member was assigned, and has not reported yet."""

    exchange: ObservedExchange
    partitions: _Partitions


class _Reports:
    """What one member has reported since it joined."""

    def __init__(self, traffic: ClientTraffic, member: MemberId) -> None:
        self._traffic = traffic
        self._member = member
        self._names = topic_names(traffic)
        self._reported: _Partitions | None = None
        """What it reported last; None if that is unknown."""
        self._may_report: _Partitions = frozenset()
        """That, and what it was assigned since."""
        self._assignment: _Assignment | None = None
        self._timeout_ms = 0

    def note_request(self, heartbeat: ObservedExchange) -> Iterator[Situation]:
        body = _body(heartbeat)
        owned = body["topic_partitions"]
        self._timeout_ms = max(body["rebalance_timeout_ms"], self._timeout_ms)
        if body["member_epoch"] <= JOIN_EPOCH:
            joins = body["member_epoch"] == JOIN_EPOCH
            self._reported = frozenset() if joins else None
            self._may_report = frozenset()
            self._assignment = None
        elif self._reported is not None:
            if owned is not None:
                yield from self._note_report(heartbeat, _partitions(owned))
            yield from self._find_silence(heartbeat)

    def _note_report(
        self, heartbeat: ObservedExchange, reported: _Partitions
    ) -> Iterator[Situation]:
        pending = self._assignment
        others = sorted(self._name(*each) for each in reported - self._may_report)
        if others:
            before = () if pending is None else (pending.exchange.sequences[-1],)
            fault = f"reported {others[0]} as {self._member}, which was not assigned to it"
            yield Situation((*before, heartbeat.sent.sequence), fault)
        self._reported = reported
        if pending is not None and reported == pending.partitions:
            yield Situation((pending.exchange.sequences[-1], heartbeat.sent.sequence))
            self._assignment, self._may_report = None, reported

    def _find_silence(self, heartbeat: ObservedExchange) -> Iterator[Situation]:
        """Find an assignment that has not been reported within the rebalance timeout."""
        pending = self._assignment
        if pending is None or not self._timeout_ms:
            return
        first, last = pending.exchange.sequences[-1], heartbeat.sent.sequence
        late_ms = heartbeat.sent_ms - pending.exchange.last_ms
        if late_ms <= self._timeout_ms or not self._traffic.is_steady(first, last):
            return
        self._assignment = None
        yield Situation(
            (first, last),
            f"has not reported its assignment as {self._member} after {duration(late_ms)}, and "
            f"its rebalance timeout is {duration(self._timeout_ms)}",
        )

    def note_response(self, heartbeat: ObservedExchange) -> None:
        response = heartbeat.response
        if response is None or self._reported is None:
            return
        if response["error_code"] in FENCES:
            self._forget()
        elif response["error_code"] == ErrorCode.NONE and response["assignment"] is not None:
            assigned = _partitions(response["assignment"]["topic_partitions"])
            self._may_report |= assigned
            is_known = all(topic in self._names for topic, _ in assigned)
            is_new = is_known and assigned != self._reported
            self._assignment = _Assignment(heartbeat, assigned) if is_new else None

    def _forget(self) -> None:
        self._reported = self._assignment = None

    def _name(self, topic: str, partition: int) -> str:
        return f"{self._names.get(topic, topic)}-{partition}"


def _observe_reports(traffic: ClientTraffic) -> Iterator[Situation]:
    for member, heartbeats in _heartbeats(traffic, ApiKey.CONSUMER_GROUP_HEARTBEAT).items():
        reports = _Reports(traffic, member)
        steps = [(each.sent.sequence, True, each) for each in heartbeats]
        steps += [(each.answer.sequence, False, each) for each in heartbeats if each.answer]
        for _, is_request, heartbeat in sorted(steps, key=lambda step: step[0]):
            if is_request:
                yield from reports.note_request(heartbeat)
            else:
                reports.note_response(heartbeat)


RULES: Final = (
    BehaviorRule(
        "rejoins-after-fence",
        "After FENCED_MEMBER_EPOCH or UNKNOWN_MEMBER_ID a member gives up its partitions and joins "
        "with epoch 0, or leaves.",
        "KIP-848",
        Severity.ERROR,
        "a member of a consumer group (KIP-848) or streams group (KIP-1071) that was fenced",
        _observe_rejoins,
        "Report partitions as lost, not revoked, forget the member epoch, and send a heartbeat "
        "with epoch 0 and the same member id.",
    ),
    BehaviorRule(
        "reports-assignment",
        "A member reports the partitions that it was assigned, and no others, within its rebalance "
        "timeout.",
        "KIP-848",
        Severity.ERROR,
        "a member of a consumer group (KIP-848) with an assignment",
        _observe_reports,
        "Put the owned partitions into the next heartbeat as soon as they were revoked or "
        "assigned, without waiting for the interval.",
    ),
)
