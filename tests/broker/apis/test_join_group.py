"""Every version of JoinGroup, as far as versions differ; the rules are tested where they are."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from minibroker.broker.apis.join_group import API
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol


def request(member_id: str = "", **other: Any) -> JoinGroupRequest:
    values: dict[str, Any] = {
        "group_id": "g",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol(name="range", metadata=b"r")],
    }
    return JoinGroupRequest(**(values | other))


def worker(apis: Any) -> Any:
    return apis.workers[apis.context(API.key, 0).group_owner("g")]


@pytest.mark.parametrize("version", range(4))
async def test_older_versions_join_without_member_id(group_apis: Any, version: int) -> None:
    joined = await group_apis.ask(API, request(), version)
    assert joined.error_code == ErrorCode.NONE
    assert joined.member_id == joined.leader == joined.members[0].member_id
    assert joined.member_id.startswith("test-")
    assert (joined.generation_id, joined.protocol_name) == (1, "range")
    member = worker(group_apis).groups.describe("g").members[0]
    assert member.rebalance_timeout_ms == (10_000 if version == 0 else 60_000)
    assert (member.client_id, member.client_host) == ("test", "/127.0.0.1")


@pytest.mark.parametrize("version", range(4, 10))
async def test_newer_versions_must_rejoin_with_assigned_member_id(
    group_apis: Any, version: int
) -> None:
    refused = await group_apis.ask(API, request(), version)
    assert refused.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert refused.protocol_name == (None if version >= 7 else "")
    joined = await group_apis.ask(API, request(refused.member_id), version)
    assert joined.error_code == ErrorCode.NONE
    assert joined.member_id == refused.member_id
    assert joined.protocol_type == ("consumer" if version >= 7 else None)
    assert joined.members[0].metadata == b"r"


@pytest.mark.parametrize("version", range(5, 10))
async def test_static_member_is_listed_with_group_instance_id(
    group_apis: Any, version: int
) -> None:
    joined = await group_apis.ask(API, request(group_instance_id="s"), version)
    assert joined.error_code == ErrorCode.NONE
    assert joined.members[0].group_instance_id == "s"


@pytest.mark.parametrize("version", [8, 9])
async def test_static_leader_that_rejoins_skips_assignment_in_version_9(
    group_apis: Any, version: int
) -> None:
    from minibroker.broker.apis import sync_group
    from minibroker_protocol.messages.sync_group import SyncGroupRequest

    joined = await group_apis.ask(API, request(group_instance_id="s"), version)
    sync = SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
    )
    await group_apis.ask(sync_group.API, sync, 5)
    back = await group_apis.ask(API, request(group_instance_id="s"), version)
    assert back.skip_assignment is (version == 9)
    assert (back.leader == back.member_id) is (version == 9)
    assert back.generation_id == 1


async def test_join_response_waits_for_all_members(group_apis: Any) -> None:
    first = await group_apis.ask(API, request(), 3)
    answers = []

    async def join(member_id: str) -> None:
        answers.append(await group_apis.ask(API, request(member_id), 3))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(join, "")
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        nursery.start_soon(join, first.member_id)
    assert {answer.generation_id for answer in answers} == {2}
    assert sorted(len(answer.members) for answer in answers) == [0, 2]


@pytest.mark.parametrize(
    ("other", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
@pytest.mark.parametrize("version", [0, 9])
async def test_invalid_join_group_is_rejected_in_every_version(
    group_apis: Any, version: int, other: dict[str, Any], error: ErrorCode
) -> None:
    refused = await group_apis.ask(API, request(**other), version)
    assert refused.error_code == error
    assert refused.generation_id == -1
    assert refused.member_id == other.get("member_id", "")
