from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from minibroker.client.consumer import (
    EARLIEST,
    LATEST,
    ConsumerCoordinator,
    ConsumerRecord,
    Fetcher,
    assign_range,
    committed_offsets,
    list_offsets,
)
from minibroker.client.errors import BrokerError
from minibroker.client.kafka_client import KafkaClient
from minibroker.client.producer import RecordProducer
from minibroker.testing import MiniBroker
from minibroker_protocol.compression import Compression
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from minibroker_protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from minibroker_protocol.messages.heartbeat import HeartbeatResponse
from minibroker_protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from minibroker_protocol.messages.metadata import (
    MetadataRequest,
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
from minibroker_protocol.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from minibroker_protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.registry import ApiKey
from tests.client.fake_broker import in_thread


def test_list_offsets_returns_every_partition(
    minibroker: MiniBroker, minibroker_group: str
) -> None:
    topic = minibroker.create_topic(minibroker_group, 3)
    with KafkaClient(minibroker.bootstrap_servers) as client:
        producer = RecordProducer(client, topic, acks=-1, compression=Compression.NONE, partition=1)
        for value in (b"a", b"b"):
            producer.send(Record(timestamp=1, value=value))
        producer.flush()
        found = client.topic(topic)
        assert list_offsets(client, found, EARLIEST) == {0: 0, 1: 0, 2: 0}
        assert list_offsets(client, found, LATEST) == {0: 0, 1: 2, 2: 0}
        assert list_offsets(client, found, 0) == {0: -1, 1: 0, 2: -1}


def test_list_offsets_of_missing_partition_raises(
    minibroker: MiniBroker, minibroker_topic: str
) -> None:
    with KafkaClient(minibroker.bootstrap_servers) as client:
        found = client.topic(minibroker_topic)
        found.partitions = [MetadataResponsePartition(partition_index=9, leader_id=1)]
        with pytest.raises(BrokerError, match=f"offsets of {minibroker_topic}-9"):
            list_offsets(client, found, LATEST)


@pytest.fixture
def offsets_coordinator(fake_broker: Any) -> Any:
    """A coordinator with offset 42 for cats-0 only, which answers in both forms of the response."""
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


async def fetch_committed(broker: Any, *arguments: Any) -> dict[tuple[str, int], int]:
    def run() -> dict[tuple[str, int], int]:
        with KafkaClient(broker.address) as client:
            return committed_offsets(client, "g", *arguments)

    return await in_thread(run)


@pytest.mark.parametrize("newest", [5, 8, 9])
@pytest.mark.parametrize("wanted", [(), ("cats", [0, 1])])
async def test_committed_offsets_omit_partitions_without_commit(
    offsets_coordinator: Any, newest: int, wanted: tuple[Any, ...]
) -> None:
    offsets_coordinator.versions[ApiKey.OFFSET_FETCH] = (1, newest)
    assert await fetch_committed(offsets_coordinator, *wanted) == {("cats", 0): 42}


async def test_committed_offsets_request_uses_topic_names(offsets_coordinator: Any) -> None:
    await fetch_committed(offsets_coordinator)
    version, _ = offsets_coordinator.requests[-1]
    assert version == 9


async def test_committed_offsets_of_unknown_group_raise(offsets_coordinator: Any) -> None:
    group = OffsetFetchResponseGroup(group_id="g", error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    offsets_coordinator.answers[ApiKey.OFFSET_FETCH] = lambda _: OffsetFetchResponse(groups=[group])
    with pytest.raises(BrokerError, match="offsets of group g: GROUP_ID_NOT_FOUND"):
        await fetch_committed(offsets_coordinator)


RECORDS = [Record(offset, 0, None, b"%d" % offset) for offset in range(10, 14)]


def answer(records: bytes | None = None, code: int = 0) -> FetchResponse:
    data = PartitionData(partition_index=0, error_code=code, records=records)
    return FetchResponse(responses=[FetchableTopicResponse(topic="cats", partitions=[data])])


@pytest.fixture
def leader(fake_broker: Any) -> Any:
    topic = MetadataResponseTopic(
        name="cats", partitions=[MetadataResponsePartition(partition_index=0, leader_id=1)]
    )
    fake_broker.answers |= {
        ApiKey.METADATA: lambda _: MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="127.0.0.1", port=fake_broker.port)],
            topics=[topic],
        ),
        ApiKey.FETCH: lambda _: answer(build_batch(RECORDS, base_offset=10)),
    }
    return fake_broker


async def poll(broker: Any, position: int, times: int = 1) -> tuple[list[ConsumerRecord], int]:
    """Fetch from ``position``; return the records and the new position."""

    def run() -> tuple[list[ConsumerRecord], int]:
        with KafkaClient(broker.address) as client:
            reader = Fetcher(client, "cats", {0: position})
            found = [message for _ in range(times) for message in reader.poll(1)]
            return found, reader.positions[0]

    with trio.fail_after(10):
        return await trio.to_thread.run_sync(run)


async def test_fetcher_returns_records_in_order_and_advances(leader: Any) -> None:
    found, position = await poll(leader, 10)
    assert found == [ConsumerRecord("cats", 0, record) for record in RECORDS]
    assert position == 14


async def test_fetcher_omits_records_before_the_position(leader: Any) -> None:
    found, _ = await poll(leader, 12)
    assert [message.record.offset for message in found] == [12, 13]


async def test_fetcher_skips_control_batches(leader: Any) -> None:
    control = build_batch(RECORDS, base_offset=10, control=True)
    more = build_batch(RECORDS[:1], base_offset=14)
    leader.answers[ApiKey.FETCH] = lambda _: answer(control + more)
    found, position = await poll(leader, 10)
    assert [message.record.offset for message in found] == [14]
    assert position == 15


async def test_fetcher_ignores_a_truncated_batch(leader: Any) -> None:
    first, second = build_batch(RECORDS, base_offset=10), build_batch(RECORDS, base_offset=14)
    leader.answers[ApiKey.FETCH] = lambda _: answer(first + second[:-1])
    _, position = await poll(leader, 10)
    assert position == 14


async def test_fetcher_without_new_records_returns_none(leader: Any) -> None:
    leader.answers[ApiKey.FETCH] = lambda _: answer()
    assert await poll(leader, 10) == ([], 10)


async def test_fetcher_refreshes_a_changed_leader(leader: Any) -> None:
    replies = [
        answer(code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        answer(build_batch(RECORDS, base_offset=10)),
    ]
    leader.answers[ApiKey.FETCH] = lambda _: replies.pop(0)
    found, _ = await poll(leader, 10, times=2)
    assert len(found) == 4
    assert len([item for _, item in leader.requests if isinstance(item, MetadataRequest)]) == 2


async def test_fetcher_raises_for_offset_out_of_range(leader: Any) -> None:
    leader.answers[ApiKey.FETCH] = lambda _: answer(code=ErrorCode.OFFSET_OUT_OF_RANGE)
    with pytest.raises(BrokerError, match="cats-0: OFFSET_OUT_OF_RANGE"):
        await poll(leader, 99)
    (request,) = [item for _, item in leader.requests if isinstance(item, FetchRequest)]
    assert request.topics[0].partitions[0].fetch_offset == 99


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
