"""Every version of DeleteGroups deletes groups without members."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis import join_group
from minibroker.broker.apis.delete_groups import API
from minibroker.broker.groups.events import CommitRequested
from minibroker.broker.groups.offsets import CommittedOffset
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.delete_groups import DeleteGroupsRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol


@pytest.mark.parametrize("version", range(4))
async def test_only_empty_groups_are_deleted(group_apis: Any, version: int) -> None:
    anybody = CommitRequested(member_id="", generation=-1)
    ids = [f"g{number}" for number in range(4)]
    for group_id in ids:
        owner = group_apis.context(API.key, version).group_owner(group_id)
        offsets = {("t", 0): CommittedOffset(1, -1, "", 1)}
        group_apis.workers[owner].groups.commit(group_id, anybody, offsets)
    join = JoinGroupRequest(
        group_id="busy",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"r")],
    )
    await group_apis.ask(join_group.API, join, 3)
    asked = ["busy", *ids, "none", "g0"]
    response = await group_apis.ask(API, DeleteGroupsRequest(groups_names=asked), version)
    assert len(group_apis.asked) == 2
    errors = [(each.group_id, each.error_code) for each in response.results]
    assert errors == [
        ("busy", ErrorCode.NON_EMPTY_GROUP),
        *((group_id, ErrorCode.NONE) for group_id in ids),
        ("none", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    left = [
        group.group_id
        for worker in group_apis.workers.values()
        for group in worker.groups.list_groups()
    ]
    assert left == ["busy"]
