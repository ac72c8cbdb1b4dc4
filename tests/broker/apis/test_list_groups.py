"""Every version of ListGroups returns the groups of all owners, filtered as requested."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis import join_group
from minibroker.broker.apis.list_groups import API
from minibroker.broker.groups.events import CommitRequested
from minibroker.broker.groups.offsets import CommittedOffset
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.messages.list_groups import ListGroupsRequest

SIMPLE = [f"simple-{number}" for number in range(6)]


@pytest.fixture
async def with_groups(group_apis: Any) -> Any:
    """Groups without members at both owners, and one whose member waits for its assignment."""
    anybody = CommitRequested(member_id="", generation=-1)
    for group_id in SIMPLE:
        owner = group_apis.context(API.key, 5).group_owner(group_id)
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
    return group_apis


async def listed(apis: Any, version: int, **filters: list[str]) -> list[str]:
    response = await apis.ask(API, ListGroupsRequest(**filters), version)  # type: ignore[arg-type]
    return [group.group_id for group in response.groups]


@pytest.mark.parametrize("version", range(6))
async def test_list_groups_returns_all_groups_sorted_by_id(with_groups: Any, version: int) -> None:
    response = await with_groups.ask(API, ListGroupsRequest(), version)
    assert [group.group_id for group in response.groups] == ["busy", *SIMPLE]
    assert len(with_groups.asked) == 2
    busy, simple = response.groups[:2]
    assert (busy.protocol_type, simple.protocol_type) == ("consumer", "")
    states = ("CompletingRebalance", "Empty") if version >= 4 else ("", "")
    assert (busy.group_state, simple.group_state) == states
    assert busy.group_type == ("classic" if version >= 5 else "")


async def test_states_filter_ignores_case_and_whitespace(with_groups: Any) -> None:
    assert await listed(with_groups, 4, states_filter=["emPTY "]) == SIMPLE
    assert await listed(with_groups, 4, states_filter=["Stable", "CompletingRebalance"]) == ["busy"]
    assert await listed(with_groups, 4, states_filter=["nonsense"]) == []


async def test_types_filter_without_classic_matches_no_group(with_groups: Any) -> None:
    assert len(await listed(with_groups, 5, types_filter=["Classic", "share"])) == 7
    assert await listed(with_groups, 5, types_filter=["consumer"]) == []
    assert await listed(with_groups, 5, types_filter=["nonsense"]) == []
