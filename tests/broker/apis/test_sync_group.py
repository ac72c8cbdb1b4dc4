"""Every version of SyncGroup returns the assignments of the leader."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from minibroker.broker.apis import join_group
from minibroker.broker.apis.sync_group import API
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment


async def join(apis: Any, member_id: str = "") -> Any:
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"r")],
    )
    return await apis.ask(join_group.API, request, 3)


def sync(joined: Any, **other: Any) -> SyncGroupRequest:
    values: dict[str, Any] = {
        "group_id": "g",
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "protocol_type": "consumer",
        "protocol_name": "range",
    }
    return SyncGroupRequest(**(values | other))


@pytest.mark.parametrize("version", range(6))
async def test_leader_receives_its_own_assignment(group_apis: Any, version: int) -> None:
    joined = await join(group_apis)
    brought = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")]
    synced = await group_apis.ask(API, sync(joined, assignments=brought), version)
    assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"mine")
    named = ("consumer", "range") if version >= 5 else (None, None)
    assert (synced.protocol_type, synced.protocol_name) == named


async def test_follower_waits_for_assignment_from_leader(group_apis: Any) -> None:
    first = await join(group_apis)
    joined: list[Any] = []

    async def collect(member_id: str) -> None:
        joined.append(await join(group_apis, member_id))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect, "")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(collect, first.member_id)
    leader, follower = sorted(joined, key=lambda each: not each.members)
    answers = []

    async def ask(who: Any, brought: list[SyncGroupRequestAssignment]) -> None:
        answers.append((await group_apis.ask(API, sync(who, assignments=brought), 5)).assignment)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, follower, [])
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        theirs = SyncGroupRequestAssignment(member_id=follower.member_id, assignment=b"theirs")
        nursery.start_soon(ask, leader, [theirs])
    assert sorted(answers) == [b"", b"theirs"]


@pytest.mark.parametrize("missing", ["protocol_type", "protocol_name"])
async def test_missing_protocol_type_or_name_is_rejected_since_version_5(
    group_apis: Any, missing: str
) -> None:
    joined = await join(group_apis)
    refused = await group_apis.ask(API, sync(joined, **{missing: None}), 5)
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert group_apis.asked == {}


@pytest.mark.parametrize(
    ("other", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "h"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 9}, ErrorCode.ILLEGAL_GENERATION),
        ({"group_instance_id": "s"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
async def test_invalid_sync_group_is_rejected_with_error_code(
    group_apis: Any, other: dict[str, Any], error: ErrorCode
) -> None:
    refused = await group_apis.ask(API, sync(await join(group_apis), **other), 5)
    assert (refused.error_code, refused.assignment) == (error, b"")
