"""A member revokes in its old epoch, and is given only what no other member has."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.groups.consumer_member import (
    ConsumerMember,
    MemberState,
    Reconciliation,
    Rejoin,
)

T, U = b"t" * 16, b"u" * 16


def reconcile(member: ConsumerMember, **fields: Any) -> ConsumerMember:
    stated = {
        "target_epoch": 5,
        "target": {T: (0, 1)},
        "topics": {T, U},
        "has_new_subscription": False,
        "is_free": lambda _topic, _partition: True,
        "owned": None,
        **fields,
    }
    return Reconciliation(**stated).apply(member)


def member(**fields: Any) -> ConsumerMember:
    return ConsumerMember(member_id="m", **{"member_epoch": 4, **fields})


def test_member_of_the_target_epoch_is_unchanged() -> None:
    same = member(member_epoch=5, assigned={T: {0: 5, 1: 5}})
    assert reconcile(same) is same


def test_member_revokes_first_and_keeps_its_epoch() -> None:
    found = reconcile(member(assigned={T: {0: 3}, U: {7: 2}}))
    assert found.state is MemberState.UNREVOKED_PARTITIONS
    assert (found.member_epoch, found.previous_member_epoch) == (4, 4)
    assert (found.assigned, found.pending_revocation) == ({T: {0: 3}}, {U: {7: 2}})
    assert reconcile(found) is found  # The member does not say what it has.
    assert reconcile(found, owned=((U, (7,)),)) is found
    done = reconcile(found, owned=((T, (0,)),))
    assert (done.state, done.member_epoch) == (MemberState.STABLE, 5)
    assert (done.assigned, done.pending_revocation) == ({T: {0: 3, 1: 5}}, {})


def test_member_that_has_revoked_already_enters_the_epoch_at_once() -> None:
    found = reconcile(member(assigned={U: {7: 2}}), owned=())
    assert (found.state, found.assigned) == (MemberState.STABLE, {T: {0: 5, 1: 5}})


def test_member_waits_for_partitions_of_others() -> None:
    found = reconcile(member(), is_free=lambda _topic, partition: partition == 0)
    assert found.state is MemberState.UNRELEASED_PARTITIONS
    assert (found.member_epoch, found.assigned) == (5, {T: {0: 5}})
    given = reconcile(found)
    assert (given.state, given.assigned) == (MemberState.STABLE, {T: {0: 5, 1: 5}})


def test_topics_that_were_unsubscribed_are_revoked_in_the_same_epoch() -> None:
    stable = member(member_epoch=5, assigned={T: {0: 5}, U: {1: 5}})
    found = reconcile(stable, has_new_subscription=True, topics={T})
    assert found.state is MemberState.UNREVOKED_PARTITIONS
    assert (found.assigned, found.pending_revocation) == ({T: {0: 5}}, {U: {1: 5}})


def test_member_of_an_unknown_state_must_own_nothing() -> None:
    strange = member(state=MemberState.UNKNOWN)
    with pytest.raises(Rejoin):
        reconcile(strange)
    assert reconcile(strange, owned=()).member_epoch == 5
