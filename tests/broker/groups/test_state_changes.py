"""Every transition of a group and of a transaction is reported once."""

from __future__ import annotations

from dataclasses import dataclass, field

from minibroker.broker.groups.classic_group import ClassicGroup
from minibroker.broker.groups.events import Moment
from minibroker.broker.groups.limits import GroupLimits
from minibroker.broker.groups.state_changes import (
    last_transition,
    report_transaction,
    report_transitions,
)
from minibroker.broker.groups.states import GroupState, StateTransition, TransitionCause
from minibroker.broker.transactions.metadata import new_metadata
from minibroker.broker.transactions.states import TransactionState

EMPTY, PREPARING, STABLE = (
    GroupState.EMPTY,
    GroupState.PREPARING_REBALANCE,
    GroupState.STABLE,
)
METADATA = new_metadata(1, timeout_ms=1000, now_ms=0)


@dataclass
class Reports:
    """What was reported."""

    all: list[tuple[str, str, str | None, str | None]] = field(default_factory=list)

    def __call__(self, what: str, name: str, before: str | None, after: str | None) -> None:
        self.all.append((what, name, before, after))


def move(group: ClassicGroup, before: GroupState, after: GroupState) -> None:
    cause = next(iter(TransitionCause))
    group.past_transitions.append(StateTransition(0.0, before, cause, after))


def group_of_test() -> ClassicGroup:
    return ClassicGroup("g", GroupLimits(), lambda: "id", Moment(0.0, 0))


def test_transitions_since_the_last_one_are_reported_in_order() -> None:
    group, reports = group_of_test(), Reports()
    assert last_transition(group) is None
    move(group, EMPTY, PREPARING)
    move(group, PREPARING, STABLE)
    report_transitions(reports, group, None)
    assert reports.all == [
        ("group", "g", "Empty", "PreparingRebalance"),
        ("group", "g", "PreparingRebalance", "Stable"),
    ]
    since = last_transition(group)
    move(group, STABLE, EMPTY)
    reports.all.clear()
    report_transitions(reports, group, since)
    assert reports.all == [("group", "g", "Stable", "Empty")]


def test_equal_transitions_are_reported_each() -> None:
    group, reports = group_of_test(), Reports()
    move(group, EMPTY, EMPTY)
    since = last_transition(group)
    move(group, EMPTY, EMPTY)
    report_transitions(reports, group, since)
    assert len(reports.all) == 1


def test_nothing_is_reported_without_a_transition_or_without_a_receiver() -> None:
    group, reports = group_of_test(), Reports()
    move(group, EMPTY, STABLE)
    report_transitions(reports, group, last_transition(group))
    report_transitions(None, group, None)
    report_transaction(None, "t", None, METADATA)
    assert reports.all == []


def test_transaction_is_reported_when_its_state_changes() -> None:
    reports = Reports()
    ongoing = METADATA._replace(state=TransactionState.ONGOING)
    report_transaction(reports, "t", None, METADATA)
    report_transaction(reports, "t", METADATA, METADATA)
    report_transaction(reports, "t", METADATA, ongoing)
    report_transaction(reports, "t", ongoing, None)
    assert [(before, after) for _, _, before, after in reports.all] == [
        (None, "Empty"),
        ("Empty", "Ongoing"),
        ("Ongoing", None),
    ]
