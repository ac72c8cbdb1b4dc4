"""Rules: a group member sends heartbeats in time, and leaves its group.

Owns when a membership is in danger. It must never know the coordinator's state: it sees what the
member was sent. Invariant: a member that could not reach the coordinator is not late. KIP-62,
KIP-848 and Kafka's protocol guide.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from minibroker.broker.metrics.definitions import CloseReason
from minibroker.lab.verdicts.membership_events import (
    MEMBER_HEARTBEATS,
    MembershipEvent,
    MembershipStep,
    events_by_member,
)
from minibroker.lab.verdicts.situations import BehaviorRule, Severity, Situation, duration
from minibroker.lab.verdicts.traffic import ClientTraffic
from minibroker_protocol.registry import ApiKey

LATE_FACTOR: Final = 2
"""Heartbeat intervals (KIP-848) after which a heartbeat is late."""
LATE_MS_MIN: Final = 1_000
"""Delay of a heartbeat (KIP-848) that is never late."""


def _observe_heartbeats(traffic: ClientTraffic) -> Iterator[Situation]:
    last = traffic.last
    for events in events_by_member(traffic):
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


_HEARTBEATS: Final = frozenset({ApiKey.HEARTBEAT, *MEMBER_HEARTBEATS})


def _alive_ms(event: MembershipEvent) -> float:
    """Until when the member was certainly alive: while the coordinator had a request of it."""
    return event.exchange.last_ms


def _limit_ms(event: MembershipEvent) -> float:
    """How long a member may be silent after an event; 0 if the event does not change it."""
    if event.step is not MembershipStep.JOINED:
        return 0.0
    if event.exchange.key in MEMBER_HEARTBEATS:
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
    for events in events_by_member(traffic):
        group = events[0].member.group
        last_request[group] = max(last_request.get(group, 0), events[-1].exchange.sent.sequence)
    for events in events_by_member(traffic):
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
        "heartbeats",
        "A member sends heartbeats in time: within its session timeout, or at the interval of the "
        "response (KIP-848).",
        "KIP-62 and KIP-848",
        Severity.ERROR,
        "a group member that sent heartbeats",
        _observe_heartbeats,
        "Send heartbeats from a thread or a timer that no application code blocks, and that "
        "does not wait for a Fetch on the same connection.",
    ),
    BehaviorRule(
        "leaves-group",
        "A dynamic member leaves its group before the client closes.",
        "KIP-62 and KIP-848",
        Severity.ADVICE,
        "a client that closed its connections as a group member",
        _observe_leaving,
        "Send LeaveGroup, or a heartbeat with epoch -1, before the connections are closed.",
    ),
)
