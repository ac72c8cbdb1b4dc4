"""Brokers create, read, write, summarize and delete states of share partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages import delete_share_group_state as delete
from minibroker_protocol.messages import initialize_share_group_state as initialize
from minibroker_protocol.messages import read_share_group_state as read
from minibroker_protocol.messages import read_share_group_state_summary as summary
from minibroker_protocol.messages import write_share_group_state as write
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.types import uuid_text
from tests.broker.apis.share_client import ShareWorld, share_world

MODES = [(), ("process.mode=separate", "num.io.threads=2")]


async def result(world: ShareWorld, request: Any, version: int = 0) -> Any:
    response = await world.client.ask(request, version)
    ((partition,),) = [each.partitions for each in response.results]
    return partition


@pytest.mark.parametrize("mode", MODES)
async def test_state_has_a_life(
    tmp_path: Path, autojump_clock: MockClock, mode: tuple[str, ...]
) -> None:
    async with share_world(tmp_path, autojump_clock, *mode) as world:
        topic = world.topic_id
        key = f"h:{uuid_text(topic)}:1"
        await world.client.ask(FindCoordinatorRequest(key_type=2, coordinator_keys=[key]), 6)

        def asked(data: Any, partition: Any) -> dict[str, Any]:
            return {"group_id": "h", "topics": [data(topic_id=topic, partitions=[partition])]}

        begin = initialize.PartitionData(partition=1, state_epoch=2, start_offset=4)
        fields = asked(initialize.InitializeStateData, begin)
        began = await result(world, initialize.InitializeShareGroupStateRequest(**fields))
        assert began.error_code == ErrorCode.NONE
        batch = write.StateBatch(first_offset=5, last_offset=6, delivery_state=2, delivery_count=1)
        changed = write.PartitionData(
            partition=1,
            state_epoch=2,
            leader_epoch=3,
            start_offset=5,
            delivery_complete_count=2,
            state_batches=[batch],
        )
        fields = asked(write.WriteStateData, changed)
        written = await result(world, write.WriteShareGroupStateRequest(**fields), 1)
        assert written.error_code == ErrorCode.NONE
        fields = asked(read.ReadStateData, read.PartitionData(partition=1, leader_epoch=3))
        found = await result(world, read.ReadShareGroupStateRequest(**fields))
        assert (found.state_epoch, found.start_offset) == (2, 5)
        assert [(each.first_offset, each.last_offset) for each in found.state_batches] == [(5, 6)]
        fields = asked(summary.ReadStateSummaryData, summary.PartitionData(partition=1))
        short = await result(world, summary.ReadShareGroupStateSummaryRequest(**fields), 1)
        assert (short.start_offset, short.delivery_complete_count) == (5, 2)
        fields = asked(delete.DeleteStateData, delete.PartitionData(partition=1))
        deleted = await result(world, delete.DeleteShareGroupStateRequest(**fields))
        assert deleted.error_code == ErrorCode.NONE
        fields = asked(read.ReadStateData, read.PartitionData(partition=1, leader_epoch=3))
        missing = await result(world, read.ReadShareGroupStateRequest(**fields))
        assert missing.error_code == ErrorCode.INVALID_REQUEST
        assert "uninitialized share partition" in missing.error_message


async def test_request_without_a_group_has_an_empty_response(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with share_world(tmp_path, autojump_clock) as world:
        data = read.ReadStateData(topic_id=world.topic_id, partitions=[read.PartitionData()])
        for fields in (
            {"group_id": "", "topics": [data]},
            {"group_id": "g", "topics": []},
            {"group_id": "g", "topics": [read.ReadStateData(topic_id=world.topic_id)]},
        ):
            request = read.ReadShareGroupStateRequest(**fields)
            assert (await world.client.ask(request, 0)).results == []
