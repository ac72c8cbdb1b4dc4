"""Authorization for groups and offsets: one response with allowed and denied ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trio.testing import MockClock

from minibroker.broker.security.acl import CLUSTER_NAME, Operation, Resource
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_acls import CreateAclsRequest
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.delete_groups import DeleteGroupsRequest
from minibroker_protocol.messages.describe_groups import DescribeGroupsRequest
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest
from minibroker_protocol.messages.list_groups import ListGroupsRequest
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker_protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tests.broker.apis.authorization.test_table import ADMIN, NOBODY, SETTINGS, caller, rule
from tests.broker.network.secured import secured

REFUSED = ErrorCode.GROUP_AUTHORIZATION_FAILED
TOPICS = ("seen", "hidden")
GROUPS = ("mine", "theirs")


def commit(group: str) -> OffsetCommitRequest:
    each = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topics = [OffsetCommitRequestTopic(name=name, partitions=[each]) for name in TOPICS]
    return OffsetCommitRequest(group_id=group, topics=topics)


async def test_authorized_groups_are_returned_and_others_rejected(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with secured(tmp_path, autojump_clock, *SETTINGS) as at:
        admin, alice = await caller(at, ADMIN), await caller(at, NOBODY)
        made = [
            CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in TOPICS
        ]
        await admin.ask(CreateTopicsRequest(topics=made), 7)
        for group in GROUPS:
            await admin.ask(commit(group), 9)
        rules = [
            rule(Operation.DESCRIBE, Resource.GROUP, "mine"),
            rule(Operation.DESCRIBE, Resource.TOPIC, "seen"),
        ]
        await admin.ask(CreateAclsRequest(creations=rules), 3)

        async def listed() -> set[str]:
            found = await alice.ask(ListGroupsRequest(), 4)
            return {group.group_id for group in found.groups}

        assert await listed() == {"mine"}
        described = await alice.ask(
            DescribeGroupsRequest(groups=[*GROUPS], include_authorized_operations=True), 5
        )
        found = {
            one.group_id: (one.error_code, one.authorized_operations) for one in described.groups
        }
        assert found == {"mine": (0, 1 << Operation.DESCRIBE), "theirs": (REFUSED, -0x80000000)}

        asked: list[Any] = [
            OffsetFetchRequestGroup(group_id=group, topics=None) for group in GROUPS
        ]
        fetched = await alice.ask(OffsetFetchRequest(groups=asked), 9)
        assert [(one.group_id, one.error_code) for one in fetched.groups] == [
            ("mine", 0),
            ("theirs", REFUSED),
        ]
        assert [topic.name for topic in fetched.groups[0].topics] == ["seen"]
        older = await alice.ask(OffsetFetchRequest(group_id="mine", topics=None), 7)
        assert [topic.name for topic in older.topics] == ["seen"]

        coordinators = await alice.ask(FindCoordinatorRequest(coordinator_keys=[*GROUPS]), 4)
        errors = {one.key: one.error_code for one in coordinators.coordinators}
        assert errors == {"mine": 0, "theirs": REFUSED}
        transactions = FindCoordinatorRequest(key="tx", key_type=1)
        answer = await alice.ask(transactions, 3)
        assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

        deleted = await alice.ask(DeleteGroupsRequest(groups_names=[*GROUPS]), 2)
        assert {one.error_code for one in deleted.results} == {REFUSED}
        whole = [rule(Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)]
        await admin.ask(CreateAclsRequest(creations=whole), 3)
        assert await listed() == set(GROUPS)


async def test_authorization_error_response_depends_on_version_and_key_type(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with secured(tmp_path, autojump_clock, *SETTINGS) as at:
        alice = await caller(at, NOBODY)
        shared = await alice.ask(FindCoordinatorRequest(key="s", key_type=2), 3)
        assert shared.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        strange = await alice.ask(FindCoordinatorRequest(key="s", key_type=9), 3)
        assert strange.error_code == ErrorCode.INVALID_REQUEST
        for version, name in ((6, ""), (7, None)):
            joined = await alice.ask(JoinGroupRequest(group_id="theirs"), version)
            assert (joined.error_code, joined.protocol_name) == (REFUSED, name)
