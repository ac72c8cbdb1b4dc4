"""Rules: a group member commits only what it owns, in its generation, and not while it joins.

Owns what a member may own, as far as it was sent. It must never know the coordinator's state.
Invariant: a commit that may have been on its way when the member lost its partitions is not held
against it; only the order of requests on one connection is certain. KIP-62, KIP-429, KIP-848 and
Kafka's ``ConsumerCoordinator``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from minibroker.lab.verdicts.exchanges import ObservedExchange
from minibroker.lab.verdicts.membership_events import (
    MEMBER_HEARTBEATS,
    MembershipEvent,
    MembershipStep,
    Partitions,
    events_by_member,
)
from minibroker.lab.verdicts.situations import BehaviorRule, Severity, Situation, duration
from minibroker.lab.verdicts.traffic import ClientTraffic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.registry import ApiKey

IN_FLIGHT_MS: Final = 500
"""A commit that arrives so soon after a loss may have been sent before the client has read it,
unless the connection shows that the client knew.
"""
EAGER_PROTOCOLS: Final = frozenset({"range", "roundrobin", "sticky", "RoundRobinAssigner"})
"""Assignors of eager rebalances: a member gives up all partitions before it joins."""
COOPERATIVE: Final = "cooperative"
"""Part of the names of assignors whose members give partitions up when they join again."""

JoinRequests = Mapping[tuple[str, str | None], Sequence[int]]
"""Sequence numbers of requests to join a group, by group and connection."""


def _join_requests(traffic: ClientTraffic) -> JoinRequests:
    found: defaultdict[tuple[str, str | None], list[int]] = defaultdict(list)
    for exchange in traffic.of_api(ApiKey.JOIN_GROUP, *MEMBER_HEARTBEATS):
        if exchange.request is not None and _joins(exchange):
            name = (exchange.request["group_id"], exchange.sent.connection)
            found[name].append(exchange.sent.sequence)
    return found


def _joins(exchange: ObservedExchange) -> bool:
    """Whether a request joins a classic group, or another one with member epoch 0."""
    assert exchange.request is not None
    return exchange.key is ApiKey.JOIN_GROUP or exchange.request.get("member_epoch") == 0


def _is_join_request(event: MembershipEvent) -> bool:
    return event.is_request and event.step is MembershipStep.KEPT_ALIVE and _joins(event.exchange)


class _Ownership:
    """What a member may commit."""

    def __init__(self, joins: JoinRequests, *, knows_start: bool) -> None:
        self.partitions: Partitions | None = None
        """What it owns; None if that is unknown."""
        self.loss: MembershipEvent | None = None
        """The last event that took partitions from the member, or its membership."""
        self._joins = joins
        self._assigned: Partitions | None = None
        self._ever: Partitions | None = frozenset() if knows_start else None
        """All that was ever assigned to it; None if that is unknown."""
        self._last_assignment: MembershipEvent | None = None
        self._generation: MembershipEvent | None = None
        """The first request in the newest generation."""
        self._protocol = ""
        self._is_member = False

    def note(self, event: MembershipEvent) -> MembershipEvent | None:
        """Apply an event; return it if it took something from the member."""
        if event.step is MembershipStep.LOST:
            if not self._is_member:
                return None
            self.loss, self.partitions, self._is_member = event, None, False
            return event
        if event.step is MembershipStep.KEPT_ALIVE:
            return self._note_request(event)
        if event.step is MembershipStep.JOINED:
            self._is_member = True
            self._protocol = event.protocol
            if self.loss is not None and self.loss.step is MembershipStep.LOST:
                self.loss = None
        elif event.step is MembershipStep.ASSIGNED:
            return self._note_assignment(event)
        elif event.step is MembershipStep.REPORTED:
            reported = event.partitions
            if reported is not None and self._assigned is not None:
                return self._replace(event, reported | self._assigned)
            self.partitions = None
        return None

    def _note_request(self, event: MembershipEvent) -> MembershipEvent | None:
        if event.generation > (-1 if self._generation is None else self._generation.generation):
            self._generation = event
        if _is_join_request(event) and COOPERATIVE in self._protocol and self._is_member:
            return self._replace(event, self._assigned)
        return None

    def _note_assignment(self, event: MembershipEvent) -> MembershipEvent | None:
        self._assigned, self._last_assignment = event.partitions, event
        known = self._ever is not None and event.partitions is not None
        self._ever = self._ever | event.partitions if known else None  # type: ignore[operator]
        is_kept = event.exchange.key in MEMBER_HEARTBEATS
        if not is_kept and COOPERATIVE not in self._protocol:
            return self._replace(event, event.partitions)
        if self.partitions is not None and event.partitions is not None:
            self.partitions |= event.partitions  # The others are owned until it gives them up.
        else:
            self.partitions = event.partitions
        return None

    def _replace(
        self, event: MembershipEvent, partitions: Partitions | None
    ) -> MembershipEvent | None:
        previous, self.partitions = self.partitions, partitions
        known = previous is not None and partitions is not None
        self.loss = event if known and not previous <= partitions else None  # type: ignore[operator]
        return self.loss

    def fault_of(self, commit: MembershipEvent) -> tuple[MembershipEvent, str] | None:
        """Return what is wrong with a commit, and the event that shows it."""
        for find in (self._after_loss, self._in_old_generation, self._of_others):
            if (found := find(commit)) is not None:
                return found
        return None

    def _after_loss(self, commit: MembershipEvent) -> tuple[MembershipEvent, str] | None:
        loss = self.loss
        if loss is None or commit.sequence < loss.sequence or self._may_be_in_flight(loss, commit):
            return None
        since = duration(commit.ms - loss.ms)
        if loss.step is MembershipStep.LOST:
            return loss, (
                f"committed offsets as {commit.member} in generation {commit.generation}, {since} "
                f"after {ErrorCode.describe(loss.error)}"
            )
        if commit.partitions is None or self.partitions is None:
            return None
        others = sorted(commit.partitions - self.partitions)
        if not others:
            return None
        return loss, (
            f"committed an offset of {others[0]} as {commit.member}, {since} after an assignment "
            "without it"
        )

    def _may_be_in_flight(self, loss: MembershipEvent, commit: MembershipEvent) -> bool:
        """Whether the member may have sent a commit before it knew of a loss."""
        if commit.ms - loss.ms >= IN_FLIGHT_MS:
            return False
        if loss.is_request:
            return loss.connection != commit.connection
        if loss.step is MembershipStep.LOST:
            joins = self._joins.get((commit.member.group, commit.connection), ())
            return not any(loss.sequence < each < commit.sequence for each in joins)
        # An eager member of this generation has owned nothing else in it.
        is_eager = self._protocol in EAGER_PROTOCOLS
        return not (is_eager and commit.generation == loss.generation)

    def _in_old_generation(self, commit: MembershipEvent) -> tuple[MembershipEvent, str] | None:
        newer = self._generation
        if newer is None or commit.generation >= newer.generation:
            return None
        is_certain = newer.connection == commit.connection
        if not is_certain and commit.ms - newer.ms < IN_FLIGHT_MS:
            return None
        return newer, (
            f"committed offsets as {commit.member} in generation {commit.generation}, "
            f"{duration(commit.ms - newer.ms)} after it sent {newer.exchange.title} in generation "
            f"{newer.generation}"
        )

    def _of_others(self, commit: MembershipEvent) -> tuple[MembershipEvent, str] | None:
        if self._ever is None or self._last_assignment is None or commit.partitions is None:
            return None
        others = sorted(commit.partitions - self._ever)
        if not others:
            return None
        return self._last_assignment, (
            f"committed an offset of {others[0]} as {commit.member}, which was never assigned to it"
        )


def _knows_start(events: Sequence[MembershipEvent]) -> bool:
    """Whether the journal has the requests with which the member joined."""
    exchange = events[0].exchange
    if exchange.key in MEMBER_HEARTBEATS:
        return exchange.request is not None and exchange.request["member_epoch"] == 0
    return exchange.key is ApiKey.JOIN_GROUP


def _observe_ownership(traffic: ClientTraffic) -> Iterator[Situation]:
    joins = _join_requests(traffic)
    for events in events_by_member(traffic):
        ownership = _Ownership(joins, knows_start=_knows_start(events))
        open_losses: list[MembershipEvent] = []
        for event in events:
            if (loss := ownership.note(event)) is not None:
                open_losses.append(loss)
            if event.step is not MembershipStep.COMMITTED:
                continue
            if (found := ownership.fault_of(event)) is not None:
                cause, fault = found
                yield Situation((cause.sequence, event.sequence), fault)
                open_losses = [each for each in open_losses if each is not cause]
        for loss in open_losses:
            yield Situation((loss.sequence,))


def _observe_rejoins(traffic: ClientTraffic) -> Iterator[Situation]:
    for events in events_by_member(traffic):
        joining: MembershipEvent | None = None
        was_assigned = is_broken = False
        for event in events:
            if _is_join_request(event) and was_assigned:
                joining, is_broken = joining or event, False
            elif event.step in _ENDS_OF_JOINING:
                if joining is not None and not is_broken:
                    yield Situation((joining.sequence, event.sequence))
                joining = None
            elif (
                event.step is MembershipStep.COMMITTED
                and joining is not None
                and event.connection == joining.connection
            ):
                is_broken = True
                yield Situation(
                    (joining.sequence, event.sequence),
                    f"committed offsets as {event.member} in generation {event.generation} after "
                    f"{joining.exchange.title} and before its assignment",
                )
            was_assigned = was_assigned or event.step is MembershipStep.ASSIGNED


_ENDS_OF_JOINING: Final = frozenset(
    {MembershipStep.ASSIGNED, MembershipStep.LOST, MembershipStep.LEFT}
)


RULES: Final = (
    BehaviorRule(
        "commit-ownership",
        "A member commits offsets only in its generation, and only of partitions that it has.",
        "KIP-62, KIP-429 and KIP-848",
        Severity.ERROR,
        "a group member that lost partitions or its membership",
        _observe_ownership,
        "Drop pending commits when partitions are revoked or lost, and take the generation and "
        "member id of the commit from the last assignment.",
    ),
    BehaviorRule(
        "commit-while-joining",
        "A member that joins again commits nothing until it has its assignment.",
        "KAFKA-8487; Kafka's ConsumerCoordinator",
        Severity.WARNING,
        "a group member that joins again",
        _observe_rejoins,
        "Stop the timer of automatic commits before JoinGroup, commit in the callback of the "
        "revocation, and start it again after SyncGroup.",
    ),
)
