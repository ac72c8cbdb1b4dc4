"""The steps of a change: when the group epoch rises, and when a target is computed."""

from __future__ import annotations

from dataclasses import replace

from minibroker.broker.groups.consumer_change import (
    ChangeContext,
    MemberChange,
    match_regexes,
    preferred_assignor,
)
from minibroker.broker.groups.consumer_member import ConsumerMember
from minibroker.broker.groups.consumer_records import RecordKind
from minibroker.broker.groups.consumer_state import ConsumerGroupData
from minibroker.broker.groups.group import ConsumerLimits, GroupTimes
from tests.broker.groups.consumer_play import START_MS, ConsumerPlay, topic_id

PLAY = ConsumerPlay(t=2, u=1)


def context(data: ConsumerGroupData, after_ms: int = 0) -> ChangeContext:
    return ChangeContext(data, PLAY.image, ConsumerLimits(), GroupTimes(), START_MS + after_ms)


def planned(data: ConsumerGroupData, after_ms: int, name: str, *topics: str) -> MemberChange:
    change = MemberChange(context(data, after_ms), data.member(name, may_be_new=True), ())
    change.after = replace(change.after, topics=frozenset(topics))
    change.plan_subscription()
    change.plan_group_epoch(bumps=change.names_changed)
    change.plan_reconciliation(*change.plan_target())
    return change


def apply(data: ConsumerGroupData, change: MemberChange) -> None:
    for record in change.records:
        data.apply(record)


def test_first_subscription_raises_the_epoch_and_is_assigned() -> None:
    data = ConsumerGroupData("g")
    change = planned(data, 0, "m", "t")
    kinds = [record.kind for record in change.records]
    assert kinds == [
        RecordKind.MEMBER,
        RecordKind.EPOCH,
        RecordKind.TARGET,
        RecordKind.TARGET_EPOCH,
        RecordKind.CURRENT,
    ]
    assert data.members == {}  # A plan changes nothing.
    apply(data, change)
    assert (data.group_epoch, data.assignment_epoch) == (2, 2)
    assert data.members["m"].assigned == {topic_id("t"): {0: 2, 1: 2}}


def test_second_target_waits_for_the_assignment_interval() -> None:
    data = ConsumerGroupData("g")
    apply(data, planned(data, 0, "m", "t"))
    early = planned(data, 999, "n", "t")
    assert early.group_epoch == 3
    assert RecordKind.TARGET_EPOCH not in [record.kind for record in early.records]
    late = planned(data, 1000, "n", "t")
    assert RecordKind.TARGET_EPOCH in [record.kind for record in late.records]


def test_unchanged_member_leaves_no_records() -> None:
    data = ConsumerGroupData("g")
    apply(data, planned(data, 0, "m", "t"))
    change = MemberChange(context(data, 5000), data.members["m"], None)
    change.plan_subscription()
    change.plan_group_epoch(bumps=False)
    change.plan_reconciliation(*change.plan_target())
    assert (change.records, change.notes) == ([], [])


def test_preferred_assignor_is_the_default_without_votes() -> None:
    limits = ConsumerLimits(assignors=("range", "uniform"))
    assert preferred_assignor(limits, {}) == "range"
    assert preferred_assignor(limits, {"uniform": 1}) == "uniform"
    assert preferred_assignor(limits, {"uniform": 2, "range": 1}) == "uniform"


def test_matched_expressions_raise_the_epoch_only_if_they_match_others() -> None:
    data = ConsumerGroupData("g")
    member = ConsumerMember(member_id="m", regex="t|u")
    data.apply(member.metadata_record("g"))
    matched = match_regexes(context(data), None)
    assert [record.kind for record in matched.records] == [RecordKind.REGEX, RecordKind.EPOCH]
    for record in matched.records:
        data.apply(record)
    assert data.topics == {"t", "u"}
    again = match_regexes(context(data), None)
    assert [record.kind for record in again.records] == [RecordKind.REGEX]
    assert match_regexes(context(data), frozenset({"t"})).records[0].value != (
        again.records[0].value
    )
