"""Requests for groups whose partition of ``__consumer_offsets`` could not be loaded."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.group_offsets import OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH
from minibroker.broker.apis.groups import DELETE_GROUPS, DESCRIBE_GROUPS, LIST_GROUPS
from minibroker.broker.groups.events import CommitRequested
from minibroker.broker.groups.offsets import CommittedOffset
from minibroker.broker.log.errors import LogError
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.delete_groups import DeleteGroupsRequest
from minibroker_protocol.messages.describe_groups import DescribeGroupsRequest
from minibroker_protocol.messages.list_groups import ListGroupsRequest
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker_protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from minibroker_protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.fixture
async def unloaded(group_apis: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """APIs where the groups of ``g``'s owner are not loaded, and group ``other`` is."""
    owner = group_apis.context(OFFSET_FETCH.key, 8).group_owner("g")
    other = next(
        name
        for name in "hijklmn"
        if group_apis.context(OFFSET_FETCH.key, 8).group_owner(name) != owner
    )
    simple = CommitRequested(member_id="", generation=-1)
    offsets = {("t", 0): CommittedOffset(1, -1, "", 1)}
    group_apis.workers[1 - owner].groups.commit(other, simple, offsets)
    worker = group_apis.workers[owner]

    def fail(partition: int) -> Any:
        raise LogError(ErrorCode.KAFKA_STORAGE_ERROR, f"partition {partition} cannot be opened")

    monkeypatch.setattr(worker.groups._manager, "_open_log", fail)
    worker.groups.load(range(50))
    group_apis.other = other
    return group_apis


@pytest.mark.parametrize("version", range(1, 8))
async def test_offset_fetch_of_loading_group_is_coordinator_load_in_progress(
    unloaded: Any, version: int
) -> None:
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    response = await unloaded.ask(
        OFFSET_FETCH, OffsetFetchRequest(group_id="g", topics=topics), version
    )
    if version == 1:
        (found,) = response.topics[0].partitions
        assert (found.error_code, found.committed_offset) == (LOADING, -1)
    else:
        assert (response.error_code, response.topics) == (LOADING, [])


@pytest.mark.parametrize("version", [8, 9, 10])
async def test_offset_fetch_of_several_groups_has_error_for_loading_group(
    unloaded: Any, version: int
) -> None:
    topic_id = bytes(unloaded.controller.image.topics["t"].topic_id)
    topics = [OffsetFetchRequestTopics(name="t", topic_id=topic_id, partition_indexes=[0])]
    groups = [
        OffsetFetchRequestGroup(group_id=name, topics=topics) for name in ("g", unloaded.other)
    ]
    response = await unloaded.ask(OFFSET_FETCH, OffsetFetchRequest(groups=groups), version)
    loading, loaded = response.groups
    assert (loading.error_code, loading.topics) == (LOADING, [])
    assert loaded.error_code == ErrorCode.NONE
    assert loaded.topics[0].partitions[0].committed_offset == 1


async def test_offset_commit_of_loading_group_has_error_for_each_partition(unloaded: Any) -> None:
    partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=9)]
    topics = [OffsetCommitRequestTopic(name="t", partitions=partitions)]
    request = OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=topics
    )
    response = await unloaded.ask(OFFSET_COMMIT, request, 8)
    assert [each.error_code for each in response.topics[0].partitions] == [LOADING]


@pytest.mark.parametrize("version", range(7))
async def test_loading_group_is_not_described_as_dead(unloaded: Any, version: int) -> None:
    request = DescribeGroupsRequest(groups=["g", unloaded.other])
    loading, loaded = (await unloaded.ask(DESCRIBE_GROUPS, request, version)).groups
    assert (loading.error_code, loading.group_state) == (LOADING, "")
    assert (loaded.error_code, loaded.group_state) == (ErrorCode.NONE, "Empty")


async def test_list_groups_returns_loaded_groups_and_loading_error(unloaded: Any) -> None:
    response = await unloaded.ask(LIST_GROUPS, ListGroupsRequest(), 5)
    assert response.error_code == LOADING
    assert [group.group_id for group in response.groups] == [unloaded.other]


async def test_deleting_loading_group_or_its_offsets_is_rejected(unloaded: Any) -> None:
    response = await unloaded.ask(DELETE_GROUPS, DeleteGroupsRequest(groups_names=["g"]), 2)
    assert [result.error_code for result in response.results] == [LOADING]
    partitions = [OffsetDeleteRequestPartition(partition_index=0)]
    topics = [OffsetDeleteRequestTopic(name="t", partitions=partitions)]
    request = OffsetDeleteRequest(group_id="g", topics=topics)
    assert (await unloaded.ask(OFFSET_DELETE, request, 0)).error_code == LOADING
