from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from minibroker.client.consumer_coordinator import ConsumerCoordinator, assign_range
from minibroker.client.errors import BrokerError
from minibroker.client.kafka_client import KafkaClient
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from minibroker_protocol.messages.heartbeat import HeartbeatResponse
from minibroker_protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from minibroker_protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from minibroker_protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from minibroker_protocol.registry import ApiKey

Work = Callable[[ConsumerCoordinator], Any]


@given(st.lists(st.text(min_size=1), unique=True, min_size=1), st.integers(0, 100))
def test_assign_range_covers_partitions_evenly(members: list[str], partitions: int) -> None:
    shares = assign_range(members, partitions)
    assert sorted(index for share in shares.values() for index in share) == list(range(partitions))
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1


def test_assign_range_gives_the_remainder_to_first_members() -> None:
    assert assign_range(["b", "a"], 3) == {"a": [0, 1], "b": [2]}


@pytest.fixture
def coordinator(fake_broker: Any) -> Any:
    """A coordinator of a group with one member, on a topic with 2 partitions."""
    here = {"host": "127.0.0.1", "port": fake_broker.port}

    def join(request: JoinGroupRequest) -> JoinGroupResponse:
        if not request.member_id:
            return JoinGroupResponse(
                error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m-1", protocol_name=""
            )
        member = JoinGroupResponseMember(
            member_id=request.member_id, metadata=request.protocols[0].metadata
        )
        return JoinGroupResponse(
            generation_id=5,
            protocol_name="range",
            leader=request.member_id,
            member_id=request.member_id,
            members=[member],
        )

    def sync(request: SyncGroupRequest) -> SyncGroupResponse:
        return SyncGroupResponse(assignment=request.assignments[0].assignment)

    def commit(request: OffsetCommitRequest) -> OffsetCommitResponse:
        partitions = [
            OffsetCommitResponsePartition(partition_index=item.partition_index)
            for item in request.topics[0].partitions
        ]
        topic = OffsetCommitResponseTopic(name="cats", partitions=partitions)
        return OffsetCommitResponse(topics=[topic])

    topic = MetadataResponseTopic(
        name="cats",
        partitions=[
            MetadataResponsePartition(partition_index=index, leader_id=1) for index in range(2)
        ],
    )
    fake_broker.answers |= {
        ApiKey.FIND_COORDINATOR: lambda _: FindCoordinatorResponse(
            coordinators=[Coordinator(key="g", node_id=1, **here)]
        ),
        ApiKey.METADATA: lambda _: MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, **here)], topics=[topic]
        ),
        ApiKey.JOIN_GROUP: join,
        ApiKey.SYNC_GROUP: sync,
        ApiKey.OFFSET_COMMIT: commit,
        ApiKey.HEARTBEAT: lambda _: HeartbeatResponse(),
    }
    return fake_broker


async def as_member(broker: Any, work: Work) -> Any:
    def run() -> Any:
        with KafkaClient(broker.address) as client:
            return work(ConsumerCoordinator(client, "g", "cats"))

    with trio.fail_after(10):
        return await trio.to_thread.run_sync(run)


def requests(broker: Any, kind: type) -> list[Any]:
    return [request for _, request in broker.requests if isinstance(request, kind)]


async def test_join_uses_the_member_id_and_assigns_as_leader(
    coordinator: Any,
) -> None:
    assert await as_member(coordinator, lambda member: member.join()) == [0, 1]
    assert [item.member_id for item in requests(coordinator, JoinGroupRequest)] == ["", "m-1"]


async def test_join_retries_when_sync_reports_a_rebalance(
    coordinator: Any,
) -> None:
    sync = coordinator.answers[ApiKey.SYNC_GROUP]
    codes = [ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NONE]

    def interrupted(request: SyncGroupRequest) -> SyncGroupResponse:
        code = codes.pop(0)
        return SyncGroupResponse(error_code=code, assignment=b"") if code else sync(request)

    coordinator.answers[ApiKey.SYNC_GROUP] = interrupted
    assert await as_member(coordinator, lambda member: member.join()) == [0, 1]


async def test_unknown_member_joins_with_a_new_id(coordinator: Any) -> None:
    codes = [ErrorCode.UNKNOWN_MEMBER_ID]
    coordinator.answers[ApiKey.HEARTBEAT] = lambda _: HeartbeatResponse(error_code=codes.pop(0))

    def work(member: ConsumerCoordinator) -> None:
        member.join()
        assert member.must_rejoin()
        member.join()

    await as_member(coordinator, work)
    assert [item.member_id for item in requests(coordinator, JoinGroupRequest)] == [
        "",
        "m-1",
        "",
        "m-1",
    ]


async def test_heartbeat_without_rebalance_needs_no_rejoin(coordinator: Any) -> None:
    def work(member: ConsumerCoordinator) -> bool:
        member.join()
        return member.must_rejoin()

    assert await as_member(coordinator, work) is False


async def test_commit_uses_the_generation_of_the_assignment(
    coordinator: Any,
) -> None:
    def work(member: ConsumerCoordinator) -> None:
        member.join()
        member.commit({})
        member.commit({0: 42})

    await as_member(coordinator, work)
    (commit,) = requests(coordinator, OffsetCommitRequest)
    assert commit.generation_id_or_member_epoch == 5
    assert commit.topics[0].partitions[0].committed_offset == 42


async def test_join_error_is_raised(coordinator: Any) -> None:
    coordinator.answers[ApiKey.JOIN_GROUP] = lambda _: JoinGroupResponse(
        error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, protocol_name=""
    )
    with pytest.raises(BrokerError, match="group g: INCONSISTENT_GROUP_PROTOCOL"):
        await as_member(coordinator, lambda member: member.join())
