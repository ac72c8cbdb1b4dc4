from __future__ import annotations

from typing import Any

import pytest
import trio

from minibroker.cli.client import Client
from minibroker.cli.committed import committed_offsets
from minibroker.cli.errors import Refused
from protocol.errors import ErrorCode
from protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from protocol.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from protocol.registry import ApiKey


@pytest.fixture
def coordinator(fake_broker: Any) -> Any:
    """Keeps offset 42 for cats-0 and none for cats-1, in both forms of the answer."""
    found = Coordinator(key="g", node_id=1, host="127.0.0.1", port=fake_broker.port)
    old = [
        OffsetFetchResponsePartition(partition_index=index, committed_offset=offset)
        for index, offset in enumerate((42, -1))
    ]
    new = [
        OffsetFetchResponsePartitions(partition_index=index, committed_offset=offset)
        for index, offset in enumerate((42, -1))
    ]
    group = OffsetFetchResponseGroup(
        group_id="g", topics=[OffsetFetchResponseTopics(name="cats", partitions=new)]
    )
    answer = OffsetFetchResponse(
        topics=[OffsetFetchResponseTopic(name="cats", partitions=old)], groups=[group]
    )
    fake_broker.answers |= {
        ApiKey.FIND_COORDINATOR: lambda _: FindCoordinatorResponse(coordinators=[found]),
        ApiKey.OFFSET_FETCH: lambda _: answer,
    }
    return fake_broker


async def ask(broker: Any, *arguments: Any) -> dict[tuple[str, int], int]:
    def run() -> dict[tuple[str, int], int]:
        with Client(broker.address) as client:
            return committed_offsets(client, "g", *arguments)

    with trio.fail_after(10):
        return await trio.to_thread.run_sync(run)


@pytest.mark.parametrize("newest", [5, 8, 9])
@pytest.mark.parametrize("wanted", [(), ("cats", [0, 1])])
async def test_only_partitions_with_an_offset_are_told(
    coordinator: Any, newest: int, wanted: tuple[Any, ...]
) -> None:
    coordinator.versions[ApiKey.OFFSET_FETCH] = (1, newest)
    assert await ask(coordinator, *wanted) == {("cats", 0): 42}


async def test_topics_are_asked_for_by_name(coordinator: Any) -> None:
    await ask(coordinator)
    version, _ = coordinator.asked[-1]
    assert version == 9


async def test_a_refusal_is_told(coordinator: Any) -> None:
    group = OffsetFetchResponseGroup(group_id="g", error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    coordinator.answers[ApiKey.OFFSET_FETCH] = lambda _: OffsetFetchResponse(groups=[group])
    with pytest.raises(Refused, match="offsets of group g: GROUP_ID_NOT_FOUND"):
        await ask(coordinator)
