"""Descriptions of groups, and their transfer between processes."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

from minibroker.broker.groups.description import describe, overview
from minibroker.broker.groups.offsets import CommittedOffset
from minibroker_protocol.compiler import encode
from minibroker_protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    TopicPartition,
)

if TYPE_CHECKING:
    from tests.broker.groups.conftest import Playbook, Words


def test_describe_stable_group_contains_members_and_offsets(play: Playbook) -> None:
    play.stable("a", client_host="/1.2.3.4")
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[TopicPartition(topic="t", partitions=[0, 2])]
    )
    member = play.group.membership["a-id1"]
    member.assignment = b"\0\3" + encode(assignment, 3)
    play.group.offsets.put("t", 0, CommittedOffset(5, 6, "m", 7))
    shown = describe(play.group, full=True)
    assert pickle.loads(pickle.dumps(shown)) == shown
    assert (shown.state, shown.protocol, shown.leader) == ("Stable", "range", "a-id1")
    assert shown.members[0].client_host == "/1.2.3.4"
    assert shown.members[0].metadata == b"r"
    assert shown.members[0].partitions == (("t", (0, 2)),)
    assert shown.offsets == (("t", 0, CommittedOffset(5, 6, "m", 7)),)
    member.assignment = b"\0\1\xff\xff"  # The group's leader sent no assignment.
    assert describe(play.group, full=True).members[0].partitions == ()
    member.assignment = b"\0\x09" + encode(assignment, 3)  # Later versions only append fields.
    assert describe(play.group, full=True).members[0].partitions == (("t", (0, 2)),)
    play.group.protocol_type = "connect"
    assert describe(play.group, full=True).members[0].partitions == ()
    short = describe(play.group, full=False)
    assert short.offsets == ()
    assert short.members[0].partitions == ()
    assert short.members[0].assignment == member.assignment


def test_describe_unstable_group_omits_protocol_and_assignments(
    play: Playbook, say: type[Words]
) -> None:
    play.stable("a", "b")
    play >> say.join(1, "a-id1")
    shown = describe(play.group, full=True)
    assert (shown.state, shown.protocol, shown.generation) == ("PreparingRebalance", "", 1)
    assert {(member.metadata, member.assignment) for member in shown.members} == {(b"", b"")}


def test_overview_of_group_contains_state_and_counts(play: Playbook) -> None:
    play.stable("a", "b")
    play.group.offsets.put("t", 0, CommittedOffset(5, 6, "m", 7))
    assert overview(play.group) == ("g", "consumer", "Stable", 1, 2, 1, "classic")
