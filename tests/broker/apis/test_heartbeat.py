"""Every version of Heartbeat says whether the member is still in the group."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis import join_group
from minibroker.broker.apis.heartbeat import API
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol


@pytest.mark.parametrize("version", range(5))
async def test_heartbeat_is_accepted_from_current_members_only(
    group_apis: Any, version: int
) -> None:
    join = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        group_instance_id="s",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"r")],
    )
    member_id = (await group_apis.ask(join_group.API, join, 5)).member_id

    async def beat(**other: Any) -> int:
        values: dict[str, Any] = {"group_id": "g", "generation_id": 1, "member_id": member_id}
        request = HeartbeatRequest(**(values | other))
        return int((await group_apis.ask(API, request, version)).error_code)

    assert await beat() == ErrorCode.NONE
    assert await beat(group_instance_id="s" if version >= 3 else None) == ErrorCode.NONE
    assert await beat(generation_id=2) == ErrorCode.ILLEGAL_GENERATION
    assert await beat(member_id="x") == ErrorCode.UNKNOWN_MEMBER_ID
    assert await beat(group_id="h") == ErrorCode.UNKNOWN_MEMBER_ID
    assert await beat(group_id="") == ErrorCode.INVALID_GROUP_ID
    if version >= 3:
        fenced = await beat(member_id="x", group_instance_id="s")
        assert fenced == ErrorCode.FENCED_INSTANCE_ID
