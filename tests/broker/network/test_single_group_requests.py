"""A group's requests that are executed in a single step get the bytes of the general way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from minibroker.broker.settings.definitions import OFFSET_METADATA_MAX_BYTES
from minibroker_protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.init_producer_id import InitProducerIdRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker_protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from minibroker_protocol.messages.sync_group import SyncGroupRequest
from minibroker_protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from minibroker_protocol.schema import Message
from tests.broker.network.one_broker import assert_single_step_changes_nothing, running
from tests.simulation.client import SimulatedClient

NO_ID = bytes(16)
GROUP = "group"
UNKNOWN = "unknown group"


class Member:
    """The only member of a stable group, and the topic's id."""

    def __init__(self, member_id: str, generation: int, topic_id: bytes) -> None:
        self.member_id = member_id
        self.generation = generation
        self.topic_id = topic_id


async def joined(client: SimulatedClient) -> Member:
    found = await client.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12)
    await client.ask(FindCoordinatorRequest(key=GROUP), 1)
    join = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        group_instance_id="static",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    response = await client.ask(join, 5)
    member = response.member_id, response.generation_id
    sync = SyncGroupRequest(group_id=GROUP, member_id=member[0], generation_id=member[1])
    assert (await client.ask(sync, 3)).error_code == 0
    return Member(*member, bytes(found.topics[0].topic_id))


async def compare(
    folder: Path, clock: MockClock, version: int, requests: Callable[[Member], list[Message]]
) -> None:
    """Send a member's requests to a broker of each layout."""

    async def play(client: SimulatedClient) -> list[bytes]:
        member, answers = await joined(client), []
        for request in requests(member):
            await client.ask(request, version)
            answers.append(client.received.replace(member.topic_id, b"topic id"))
        return answers

    await assert_single_step_changes_nothing(folder, clock, play)


def heartbeats(member: Member) -> list[Message]:
    def heartbeat(**named: Any) -> HeartbeatRequest:
        known = {"group_id": GROUP, "generation_id": member.generation}
        return HeartbeatRequest(**{**known, "member_id": member.member_id, **named})

    tagged = heartbeat()
    tagged.unknown_tagged_fields = {7: b"x"}
    return [
        heartbeat(),
        heartbeat(group_instance_id="static"),
        heartbeat(generation_id=9),
        heartbeat(member_id="other"),
        heartbeat(group_instance_id="other"),
        heartbeat(group_id=UNKNOWN),
        heartbeat(group_id=""),
        tagged,
        heartbeat(),
    ]


@pytest.mark.parametrize("version", range(5))
async def test_single_heartbeat_gets_the_bytes_of_the_general_way(
    version: int, tmp_path: Path, autojump_clock: MockClock, direct: list[int]
) -> None:
    await compare(tmp_path, autojump_clock, version, heartbeats)
    assert len(direct) >= 3


def commit(
    member: Member, *partitions: tuple[int, int, str | None], topic: str = "t", **named: Any
) -> OffsetCommitRequest:
    found = [
        OffsetCommitRequestPartition(
            partition_index=index,
            committed_offset=offset,
            committed_leader_epoch=offset - 1,
            committed_metadata=metadata,
        )
        for index, offset, metadata in partitions
    ]
    topic_id = member.topic_id if topic == "t" else NO_ID
    topics = [OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=found)]
    known = {"group_id": GROUP, "member_id": member.member_id, "topics": topics}
    return OffsetCommitRequest(
        **{**known, "generation_id_or_member_epoch": member.generation, **named}
    )


def commits(member: Member) -> list[Message]:
    large = "m" * (OFFSET_METADATA_MAX_BYTES.default + 1)
    two = commit(member, (0, 5, ""))
    two.topics = two.topics * 2
    return [
        commit(member, (0, 1, "")),
        commit(member, (0, 2, None)),
        commit(member, (0, 3, "metadata"), (1, 7, "")),
        commit(member, (1, 3, ""), (1, 4, "")),
        commit(member, (0, 3, ""), (9, 7, "")),
        commit(member, (-1, 3, "")),
        commit(member, (0, 3, ""), (1, 4, large)),
        commit(member),
        commit(member, (0, 1, ""), topic="missing"),
        commit(member, (0, 1, ""), generation_id_or_member_epoch=9),
        commit(member, (0, 1, ""), member_id="other"),
        commit(member, (0, 1, ""), group_instance_id="other"),
        commit(member, (0, 1, ""), group_instance_id="static"),
        commit(member, (0, 1, ""), group_id=UNKNOWN),
        commit(member, (0, 1, ""), group_id="simple", generation_id_or_member_epoch=-1),
        commit(member, (0, 4, ""), group_id="simple", generation_id_or_member_epoch=-1),
        commit(member, (0, 8, ""), retention_time_ms=1000),
        two,
    ]


def lookup(
    member: Member, *indexes: int, topic: str = "t", group: str = GROUP, **named: Any
) -> OffsetFetchRequest:
    topic_id = member.topic_id if topic == "t" else NO_ID
    newer = [OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=[*indexes])]
    return OffsetFetchRequest(
        **{
            "group_id": group,
            "topics": [OffsetFetchRequestTopic(name=topic, partition_indexes=[*indexes])],
            "groups": [OffsetFetchRequestGroup(group_id=group, topics=newer)],
            **named,
        }
    )


def everything(group: str = GROUP) -> OffsetFetchRequest:
    return OffsetFetchRequest(
        group_id=group,
        topics=None,
        groups=[OffsetFetchRequestGroup(group_id=group, topics=None)],
    )


@pytest.mark.parametrize("version", range(2, 11))
async def test_single_commit_gets_the_bytes_and_the_effect_of_the_general_way(
    version: int, tmp_path: Path, autojump_clock: MockClock, direct: list[int]
) -> None:
    async def play(client: SimulatedClient) -> list[bytes]:
        member, answers = await joined(client), []
        for request in commits(member):
            await client.ask(request, version)
            answers.append(client.received.replace(member.topic_id, b"topic id"))
            for group in (GROUP, "simple"):
                await client.ask(everything(group), 5)
                answers.append(client.received)
        return answers

    await assert_single_step_changes_nothing(tmp_path, autojump_clock, play)
    assert len(direct) >= 6


def lookups(member: Member) -> list[Message]:
    two = lookup(member, 0)
    two.topics, two.groups = two.topics and two.topics * 2, two.groups * 2
    return [
        lookup(member, 0),
        lookup(member, 1),
        lookup(member, 1, 0, 7),
        lookup(member, 0, 0),
        lookup(member),
        lookup(member, 0, topic="missing"),
        lookup(member, 0, group=UNKNOWN),
        lookup(member, 0, group=""),
        lookup(member, 0, require_stable=True),
        lookup(member, *range(200)),
        two,
    ]


@pytest.mark.parametrize("version", range(1, 11))
async def test_single_offset_fetch_gets_the_bytes_of_the_general_way(
    version: int, tmp_path: Path, autojump_clock: MockClock, direct: list[int]
) -> None:
    async def play(client: SimulatedClient) -> list[bytes]:
        member, answers = await joined(client), []
        await client.ask(commit(member, (0, 5, "metadata")), 8)
        requests = lookups(member)
        if version >= 2:
            requests.append(everything())
        for request in requests:
            await client.ask(request, version)
            answers.append(client.received.replace(member.topic_id, b"topic id"))
        return answers

    await assert_single_step_changes_nothing(tmp_path, autojump_clock, play)
    assert len(direct) >= 5


def searches(_member: Member) -> list[Message]:
    def search(*keys: str, key_type: int = 0) -> FindCoordinatorRequest:
        return FindCoordinatorRequest(
            key=keys[0] if keys else "", key_type=key_type, coordinator_keys=[*keys]
        )

    return [
        search(GROUP),
        search("another"),
        search("x" * 300),
        search("gr\u00fcp\U0001f600"),
        search(""),
        search("a", "b"),
        search(),
        search("share", key_type=2),
        search("nothing", key_type=9),
        search("tx", key_type=1),
        search("tx", key_type=1),
    ]


@pytest.mark.parametrize("version", range(7))
async def test_single_find_coordinator_gets_the_bytes_of_the_general_way(
    version: int, tmp_path: Path, autojump_clock: MockClock, direct: list[int]
) -> None:
    await compare(tmp_path, autojump_clock, version, searches)
    assert len(direct) >= 5


async def test_offset_that_a_transaction_commits_is_fetched_the_general_way(
    tmp_path: Path, autojump_clock: MockClock, direct: list[int]
) -> None:
    async with running(tmp_path, autojump_clock, "combined") as client:
        member = await joined(client)
        await client.ask(FindCoordinatorRequest(key="tx", key_type=1), 1)
        init = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
        producer = await client.ask(init, 4)
        known = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
        add = AddOffsetsToTxnRequest(transactional_id="tx", group_id=GROUP, **known)
        assert (await client.ask(add, 3)).error_code == 0
        partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=4)
        topics = [TxnOffsetCommitRequestTopic(name="t", partitions=[partition])]
        request = TxnOffsetCommitRequest(
            transactional_id="tx", group_id=GROUP, topics=topics, **known
        )
        done = await client.ask(request, 2)
        assert done.topics[0].partitions[0].error_code == 0
        direct.clear()
        stable = await client.ask(lookup(member, 0, require_stable=True), 7)
        assert stable.topics[0].partitions[0].error_code == 88
        assert direct == []
        present = await client.ask(lookup(member, 0), 7)
        assert present.topics[0].partitions[0].committed_offset == -1
        assert len(direct) == 1
