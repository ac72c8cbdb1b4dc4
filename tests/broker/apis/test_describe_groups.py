"""Every version of DescribeGroups returns state and members, and missing groups as dead."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis import join_group, sync_group
from minibroker.broker.apis.describe_groups import API
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.describe_groups import DescribeGroupsRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

NOT_ASKED = -0x80000000
READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS = 3, 6, 8, 10, 11


async def stable_group(apis: Any, group_id: str) -> str:
    join = JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        group_instance_id="s",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"r")],
    )
    member_id = str((await apis.ask(join_group.API, join, 5)).member_id)
    assigned = SyncGroupRequestAssignment(member_id=member_id, assignment=b"A")
    sync = SyncGroupRequest(
        group_id=group_id, generation_id=1, member_id=member_id, assignments=[assigned]
    )
    await apis.ask(sync_group.API, sync, 4)
    return member_id


@pytest.mark.parametrize("version", range(7))
async def test_stable_group_is_described_with_members(group_apis: Any, version: int) -> None:
    member_id = await stable_group(group_apis, "g")
    response = await group_apis.ask(API, DescribeGroupsRequest(groups=["g"]), version)
    (group,) = response.groups
    assert (group.error_code, group.error_message) == (ErrorCode.NONE, None)
    assert (group.group_state, group.protocol_type, group.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    (member,) = group.members
    assert (member.member_id, member.client_id, member.client_host) == (
        member_id,
        "test",
        "/127.0.0.1",
    )
    assert (member.member_metadata, member.member_assignment) == (b"r", b"A")
    assert member.group_instance_id == ("s" if version >= 4 else None)
    assert group.authorized_operations == NOT_ASKED


@pytest.mark.parametrize("version", range(7))
async def test_unknown_group_is_described_as_dead(group_apis: Any, version: int) -> None:
    request = DescribeGroupsRequest(groups=["g"], include_authorized_operations=version >= 3)
    (group,) = (await group_apis.ask(API, request, version)).groups
    assert (group.group_id, group.group_state, group.members) == ("g", "Dead", [])
    if version >= 6:
        assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert group.error_message == "Group g not found."
    else:
        assert group.error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", [3, 6])
async def test_authorized_operations_are_included_if_requested(
    group_apis: Any, version: int
) -> None:
    await stable_group(group_apis, "g")
    request = DescribeGroupsRequest(groups=["g"], include_authorized_operations=True)
    (group,) = (await group_apis.ask(API, request, version)).groups
    allowed = {bit for bit in range(32) if group.authorized_operations & (1 << bit)}
    assert allowed == {READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS}


async def test_groups_of_several_workers_are_answered_in_request_order(group_apis: Any) -> None:
    ids = [f"g{number}" for number in range(6)]
    for group_id in ids:
        await stable_group(group_apis, group_id)
    asked = ["none", *reversed(ids), "g0"]
    response = await group_apis.ask(API, DescribeGroupsRequest(groups=asked), 5)
    assert [group.group_id for group in response.groups] == asked
    assert len(group_apis.asked) == 2
    assert [group.group_state for group in response.groups] == ["Dead", *["Stable"] * 7]
