"""Groups are listed, and shown with readable assignments and their lag."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.groups.description import (
    AwaitedPartition,
    ConsumerGroupDescription,
    ConsumerMemberDescription,
    GroupDescription,
    GroupOverview,
    MemberDescription,
    TopicPartitions,
)
from minibroker.broker.groups.offsets import CommittedOffset
from minibroker.broker.process.messages import (
    GroupsRequest,
    LogsRequest,
    LogView,
)
from minibroker.lab.control.cluster import reset
from minibroker.lab.control.groups import (
    AssignedTopic,
    ConsumerMemberView,
    GroupView,
    Member,
    get_group,
    list_groups,
)
from minibroker.lab.control.topics import TopicCreation, create_topic
from minibroker.lab.errors import NotFound, Unavailable
from tests.lab.control.running_broker import At


def group(group_id: str = "g", **changes: Any) -> GroupDescription:
    base = GroupDescription(group_id, "Stable", 0, "consumer", "range", 4, "m", (), ())
    return base._replace(**changes)


async def ask_for_group(at: At, described: GroupDescription | None) -> GroupView:
    for worker in ("worker-0", "worker-1"):
        at.roles.answers[worker, GroupsRequest] = described
    return await get_group(at.broker, "g")


@pytest.mark.parametrize(
    ("partitions", "expected"), [((("t", (0, 2)),), (AssignedTopic("t", (0, 2)),)), ((), ())]
)
async def test_member_assignment_is_shown_only_if_readable(
    at: At,
    partitions: tuple[tuple[str, tuple[int, ...]], ...],
    expected: tuple[AssignedTopic, ...],
) -> None:
    member = MemberDescription("m", None, "c", "/h", 1, 2, b"", b"", partitions)
    found = await ask_for_group(at, group(members=(member,)))
    assert (found.state, found.generation, found.leader) == ("Stable", 4, "m")
    assert found.members[0].assignment == expected


async def test_groups_lag_is_counted_to_the_end_of_the_log(at: At) -> None:
    await create_topic(at.broker, TopicCreation("t", 1, {}))
    for worker in ("worker-0", "worker-1"):
        at.roles.answers[worker, LogsRequest] = {0: LogView(0, 10, 10, 100)}
    offsets = tuple(
        (topic, partition, CommittedOffset(offset, -1, "", 0))
        for topic, partition, offset in (("t", 0, 7), ("t", 0, 12), ("gone", 0, 1))
    )
    found = await ask_for_group(at, group(offsets=offsets))
    assert [(each.log_end_offset, each.lag) for each in found.offsets] == [
        (10, 3),
        (10, 0),
        (None, None),
    ]


async def test_groups_that_are_not_there(at: At) -> None:
    with pytest.raises(NotFound, match="no group 'g'"):
        await ask_for_group(at, None)
    for worker in ("worker-0", "worker-1"):
        at.roles.conversations[worker].close()
    await wait_all_tasks_blocked()
    with pytest.raises(Unavailable) as unavailable:
        await get_group(at.broker, "g")
    assert unavailable.value.code == "COORDINATOR_NOT_AVAILABLE"


async def test_groups_of_all_workers_are_listed_by_name(at: At) -> None:
    for worker, names in (("worker-0", ["z", "b"]), ("worker-1", ["a"])):
        at.roles.answers[worker, GroupsRequest] = [
            GroupOverview(name, "consumer", "Empty", 1, 0, 2, "classic") for name in names
        ]
    groups = (await list_groups(at.broker)).groups
    assert [each.group_id for each in groups] == ["a", "b", "z"]
    assert (await reset(at.broker)).groups == 3


async def test_consumer_group_shows_epochs_targets_and_why_it_is_not_stable(at: At) -> None:
    topic = bytes(16)
    has, target = TopicPartitions(topic, "t", (0,)), TopicPartitions(topic, "t", (1,))
    base = ConsumerMemberDescription(
        member_id="a",
        instance_id=None,
        rack_id=None,
        member_epoch=2,
        previous_member_epoch=2,
        state="UNREVOKED_PARTITIONS",
        is_classic=False,
        client_id="c",
        client_host="/h",
        topics=("t",),
        regex="",
        assigned=(has,),
        pending_revocation=(target,),
        target=(has,),
        awaited=(),
    )
    waiting = base._replace(
        member_id="b",
        member_epoch=3,
        state="UNRELEASED_PARTITIONS",
        is_classic=True,
        assigned=(),
        pending_revocation=(),
        target=(target,),
        awaited=(AwaitedPartition("t", 1, "a"),),
    )
    silent = waiting._replace(member_id="c", member_epoch=2, state="STABLE", awaited=())
    late = waiting._replace(member_id="d", awaited=())
    described = ConsumerGroupDescription(
        "g", "Reconciling", 4, 3, "uniform", (base, waiting, silent, late), ()
    )
    for worker in ("worker-0", "worker-1"):
        at.roles.answers[worker, GroupsRequest] = described
    found = await get_group(at.broker, "g")
    assert (found.type, found.generation, found.assignment_epoch) == ("consumer", 4, 3)
    assert (found.protocol, found.leader) == ("uniform", None)
    assert found.members[0] == Member(
        "a",
        None,
        "c",
        "/h",
        (AssignedTopic("t", (0,)),),
        ConsumerMemberView(
            2, "UNREVOKED_PARTITIONS", False, *((AssignedTopic("t", (at,)),) for at in (0, 1))
        ),
    )
    assert found.waits_for == (
        "the target of epoch 4 is computed with the first heartbeat after the assignment interval",
        "a has yet to revoke t-1",
        "b waits for t-1, which a has",
        "c has sent no heartbeat in epoch 3 yet",
        "d gets the rest of its target with its next heartbeat",
    )
