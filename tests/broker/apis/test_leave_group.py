"""Every version of LeaveGroup: one member, then several, then by name."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis import join_group
from minibroker.broker.apis.leave_group import API
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity


async def joined(apis: Any, instance: str | None = None) -> str:
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"r")],
    )
    return str((await apis.ask(join_group.API, request, 5 if instance else 3)).member_id)


def members(apis: Any) -> int:
    worker = apis.workers[apis.context(API.key, 0).group_owner("g")]
    return len(worker.groups.describe("g").members)


@pytest.mark.parametrize("version", range(3))
async def test_member_leaves_group(group_apis: Any, version: int) -> None:
    member_id = await joined(group_apis)
    request = LeaveGroupRequest(group_id="g", member_id=member_id)
    assert (await group_apis.ask(API, request, version)).error_code == ErrorCode.NONE
    assert members(group_apis) == 0
    again = await group_apis.ask(API, request, version)
    assert again.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(3, 6))
async def test_each_leaving_member_has_its_own_result(group_apis: Any, version: int) -> None:
    await joined(group_apis, "s")
    leaving = [
        MemberIdentity(
            member_id="", group_instance_id="s", reason="moved" if version > 4 else None
        ),
        MemberIdentity(member_id="x"),
    ]
    request = LeaveGroupRequest(group_id="g", members=leaving)
    response = await group_apis.ask(API, request, version)
    assert response.error_code == ErrorCode.NONE
    assert [(each.group_instance_id, each.error_code) for each in response.members] == [
        ("s", ErrorCode.NONE),
        (None, ErrorCode.UNKNOWN_MEMBER_ID),
    ]
    assert members(group_apis) == 0


@pytest.mark.parametrize("version", [0, 5])
async def test_empty_group_id_is_rejected(group_apis: Any, version: int) -> None:
    request = LeaveGroupRequest(group_id="", members=[MemberIdentity(member_id="x")])
    if version == 0:
        request = LeaveGroupRequest(group_id="", member_id="x")
    response = await group_apis.ask(API, request, version)
    assert response.error_code == ErrorCode.INVALID_GROUP_ID
    assert response.members == []
