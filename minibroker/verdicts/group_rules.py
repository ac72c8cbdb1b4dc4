"""Rules: a member commits only what it owns, sends heartbeats in time, and leaves its group.

Owns when a membership is in danger. It must never know the coordinator's state: it sees what the
member was sent. Invariant: a commit that may have been on its way when the member lost its
partitions is not held against it. KIP-62, KIP-848 and Kafka's protocol guide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from minibroker.observability.close_reason import CloseReason
from minibroker.verdicts.membership_events import (
    MembershipEvent,
    MembershipStep,
    Partitions,
    membership_events,
)
from minibroker.verdicts.situations import BehaviorRule, Severity, Situation, duration
from minibroker.verdicts.traffic import ClientTraffic
from protocol.errors import ErrorCode
from protocol.registry import ApiKey

IN_FLIGHT_MS: Final = 500
"""A commit that arrives so soon after a loss may have been sent before the client has read it."""
LATE_FACTOR: Final = 2
"""Heartbeat intervals (KIP-848) after which a heartbeat is late."""
LATE_MS_MIN: Final = 1_000
"""Delay of a heartbeat (KIP-848) that is never late."""


def _by_member(traffic: ClientTraffic) -> list[list[MembershipEvent]]:
    members: defaultdict[object, list[MembershipEvent]] = defaultdict(list)
    for event in membership_events(traffic):
        members[event.member].append(event)
    return list(members.values())


class _Ownership:
    """What a member may own, as far as it was sent."""

    def __init__(self) -> None:
        self.partitions: Partitions | None = None
        """What it may commit; None if that is unknown."""
        self.loss: MembershipEvent | None = None
        """The last event that took partitions from the member, or its membership."""
        self._assigned: Partitions | None = None
        self._is_member = False

    def note(self, event: MembershipEvent) -> MembershipEvent | None:
        """Apply an event; return it if it took something from the member."""
        if event.step is MembershipStep.LOST:
            if not self._is_member:
                return None
            self.loss, self.partitions, self._is_member = event, None, False
            return event
        if event.step is MembershipStep.JOINED:
            self._is_member = True
            if self.loss is not None and self.loss.step is MembershipStep.LOST:
                self.loss = None
        elif event.step is MembershipStep.ASSIGNED:
            self._assigned = event.partitions
            if event.exchange.key is not ApiKey.CONSUMER_GROUP_HEARTBEAT:
                return self._replace(event, event.partitions)
            if self.partitions is not None and event.partitions is not None:
                self.partitions |= event.partitions  # The others are owned until it reports.
            else:
                self.partitions = event.partitions
        elif event.step is MembershipStep.REPORTED:
            reported = event.partitions
            if reported is not None and self._assigned is not None:
                return self._replace(event, reported | self._assigned)
            self.partitions = None
        return None

    def _replace(
        self, event: MembershipEvent, partitions: Partitions | None
    ) -> MembershipEvent | None:
        previous, self.partitions = self.partitions, partitions
        known = previous is not None and partitions is not None
        self.loss = event if known and not previous <= partitions else None  # type: ignore[operator]
        return self.loss

    def fault_of(self, commit: MembershipEvent) -> str:
        """Return what is wrong with a commit; empty if nothing is."""
        loss = self.loss
        if loss is None or commit.ms - loss.ms < IN_FLIGHT_MS or commit.sequence < loss.sequence:
            return ""
        since = duration(commit.ms - loss.ms)
        if loss.step is MembershipStep.LOST:
            return (
                f"committed offsets as {commit.member} in generation {commit.generation}, {since} "
                f"after {ErrorCode.describe(loss.error)}"
            )
        if commit.partitions is None or self.partitions is None:
            return ""
        others = sorted(commit.partitions - self.partitions)
        if not others:
            return ""
        return (
            f"committed an offset of {others[0]} as {commit.member}, {since} after an assignment "
            "without it"
        )


def _observe_commits(traffic: ClientTraffic) -> Iterator[Situation]:
    for events in _by_member(traffic):
        ownership = _Ownership()
        open_losses: list[MembershipEvent] = []
        for event in events:
            if (loss := ownership.note(event)) is not None:
                open_losses.append(loss)
            if event.step is MembershipStep.COMMITTED and ownership.loss is not None:
                fault = ownership.fault_of(event)
                if fault:
                    yield Situation((ownership.loss.sequence, event.sequence), fault)
                    open_losses = [each for each in open_losses if each is not ownership.loss]
        for loss in open_losses:
            yield Situation((loss.sequence,))


def _observe_heartbeats(traffic: ClientTraffic) -> Iterator[Situation]:
    last = traffic.last
    for events in _by_member(traffic):
        alive: MembershipEvent | None = None
        limit_ms, judged = 0.0, 0
        findings = []
        for event in events:
            if alive is not None and limit_ms and traffic.is_steady(alive.sequence, event.sequence):
                judged += event.exchange.key in _HEARTBEATS
                quiet_ms = event.exchange.sent_ms - _alive_ms(alive)
                if quiet_ms > limit_ms and not _was_cut_off(traffic, alive, event.sequence):
                    findings.append(_late(alive, event.sequence, quiet_ms, limit_ms))
            if event.step in {MembershipStep.LEFT, MembershipStep.LOST}:
                alive, limit_ms = None, 0.0
            else:
                alive = event
                limit_ms = _limit_ms(event) or limit_ms
        if alive is not None and limit_ms and last is not None and not _is_closed(traffic, alive):
            quiet_ms = last.clock_ms - _alive_ms(alive)
            if quiet_ms > limit_ms and traffic.is_steady(alive.sequence, last.sequence):
                findings.append(_late(alive, last.sequence, quiet_ms, limit_ms))
        yield from findings
        if judged and not findings:
            yield Situation((events[0].sequence, events[-1].sequence))


def _was_cut_off(traffic: ClientTraffic, alive: MembershipEvent, until: int) -> bool:
    """Whether the client could not reach the coordinator for some time after an event."""
    name = alive.exchange.sent.connection
    for each in traffic.connections:
        opened, closed = each.opened, each.closed
        if opened is not None and alive.sequence < opened.sequence < until and not each.is_served:
            return True
        if (
            each.name == name
            and closed is not None
            and alive.sequence < closed.sequence < until
            and closed.details.get("reason") != CloseReason.CLIENT_CLOSED
        ):
            return True
    return False


def _is_closed(traffic: ClientTraffic, event: MembershipEvent) -> bool:
    """Whether the connection to the coordinator is closed."""
    name = event.exchange.sent.connection
    return any(each.name == name and each.closed is not None for each in traffic.connections)


_HEARTBEATS: Final = frozenset({ApiKey.HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT})


def _alive_ms(event: MembershipEvent) -> float:
    """Until when the member was certainly alive: while the coordinator had a request of it."""
    return event.exchange.last_ms


def _limit_ms(event: MembershipEvent) -> float:
    """How long a member may be silent after an event; 0 if the event does not change it."""
    if event.step is not MembershipStep.JOINED:
        return 0.0
    if event.exchange.key is ApiKey.CONSUMER_GROUP_HEARTBEAT:
        return max(event.interval_ms * LATE_FACTOR, event.interval_ms + LATE_MS_MIN)
    return event.interval_ms


def _late(alive: MembershipEvent, sequence: int, quiet_ms: float, limit_ms: float) -> Situation:
    return Situation(
        (alive.sequence, sequence),
        f"sent nothing to the coordinator for {duration(quiet_ms)} as {alive.member}, and may be "
        f"silent for {duration(limit_ms)}",
    )


def _observe_leaving(traffic: ClientTraffic) -> Iterator[Situation]:
    ends = {each.name: each.closed for each in traffic.connections}
    last_request: dict[str, int] = {}
    for events in _by_member(traffic):
        group = events[0].member.group
        last_request[group] = max(last_request.get(group, 0), events[-1].exchange.sent.sequence)
    for events in _by_member(traffic):
        last, joined = events[-1], [each for each in events if each.step is MembershipStep.JOINED]
        closed = ends.get(last.exchange.sent.connection or "")
        if last.step is MembershipStep.LEFT:
            yield Situation((last.sequence,))
        elif (
            last.step is not MembershipStep.LOST
            and joined
            and not joined[-1].is_static
            and closed is not None
            and closed.details.get("reason") == CloseReason.CLIENT_CLOSED
            and closed.sequence > last_request[last.member.group]
            and closed.clock_ms - _alive_ms(last) < _limit_ms(joined[-1])
        ):
            yield Situation(
                (last.sequence, closed.sequence), f"closed its connection as {last.member}"
            )


RULES: Final = (
    BehaviorRule(
        "commit-ownership",
        "A member that lost partitions does not commit their offsets.",
        "KIP-62 and KIP-848",
        Severity.ERROR,
        "a group member that lost partitions or its membership",
        _observe_commits,
    ),
    BehaviorRule(
        "heartbeats",
        "A member sends heartbeats in time: within its session timeout, or at the interval of the "
        "response (KIP-848).",
        "KIP-62 and KIP-848",
        Severity.ERROR,
        "a group member that sent heartbeats",
        _observe_heartbeats,
    ),
    BehaviorRule(
        "leaves-group",
        "A dynamic member leaves its group before the client closes.",
        "KIP-62 and KIP-848",
        Severity.ADVICE,
        "a client that closed its connections as a group member",
        _observe_leaving,
    ),
)
