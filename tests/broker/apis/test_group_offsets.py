"""Offsets are committed, also in transactions, fetched and deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from minibroker.broker.apis import group_offsets
from minibroker.broker.apis.consumer_groups import CONSUMER_GROUP_HEARTBEAT
from minibroker.broker.apis.group_offsets import (
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    TXN_OFFSET_COMMIT,
)
from minibroker.broker.apis.groups import JOIN_GROUP
from minibroker.broker.apis.transaction_verification import (
    ProducerSession,
    TransactionSupport,
    Verified,
)
from minibroker.broker.groups.events import CommitRequested
from minibroker.broker.groups.offsets import CommittedOffset
from minibroker.broker.metadata.image import OFFSETS_TOPIC, group_owner, offsets_partition
from minibroker_protocol.control_records import EndTransactionMarker
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
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
from minibroker_protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

UNKNOWN_ID = bytes(15) + b"\x09"
WALL_MS = 1_700_000_000_000


def position(partition: int, offset: int = 5, **other: Any) -> OffsetCommitRequestPartition:
    values: dict[str, Any] = {"committed_leader_epoch": -1, "committed_metadata": "m"}
    return OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, **(values | other)
    )


def topic(apis: Any, version: int, name: str, *partitions: Any) -> OffsetCommitRequestTopic:
    if version < 10:
        return OffsetCommitRequestTopic(name=name, partitions=list(partitions))
    known = apis.controller.image.topics.get(name)
    topic_id = UNKNOWN_ID if known is None else known.topic_id
    return OffsetCommitRequestTopic(topic_id=topic_id, partitions=list(partitions))


def stored(apis: Any) -> list[tuple[str, int, CommittedOffset]]:
    owner = apis.context(OFFSET_COMMIT.key, 10).group_owner("g")
    return list(apis.workers[owner].groups.committed("g"))


def errors(response: Any) -> list[list[int]]:
    return [[each.error_code for each in topic.partitions] for topic in response.topics]


@pytest.mark.parametrize("version", range(2, 11))
async def test_offsets_of_existing_partitions_are_stored_and_others_rejected(
    group_apis: Any, version: int
) -> None:
    epoch = 7 if version >= 6 else -1
    topics = [
        topic(group_apis, version, "t", position(2, committed_leader_epoch=epoch), position(3)),
        topic(group_apis, version, "nope", position(0)),
        topic(group_apis, version, "u", position(0, 6, committed_metadata=None)),
    ]
    response = await group_apis.ask(
        OFFSET_COMMIT, OffsetCommitRequest(group_id="g", topics=topics), version
    )
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    no_topic = missing if version < 10 else ErrorCode.UNKNOWN_TOPIC_ID
    assert errors(response) == [[0, missing], [no_topic], [0]]
    assert [each.name for each in response.topics] == [each.name for each in topics]
    assert [each.topic_id for each in response.topics] == [each.topic_id for each in topics]
    assert stored(group_apis) == [
        ("t", 2, CommittedOffset(5, epoch, "m", WALL_MS)),
        ("u", 0, CommittedOffset(6, -1, "", WALL_MS)),
    ]


@pytest.mark.parametrize("version", [2, 4])
async def test_retention_time_of_older_versions_sets_offset_expiration(
    group_apis: Any, version: int
) -> None:
    topics = [topic(group_apis, version, "t", position(0))]
    request = OffsetCommitRequest(group_id="g", topics=topics, retention_time_ms=1_000)
    await group_apis.ask(OFFSET_COMMIT, request, version)
    assert stored(group_apis)[0][2].expire_ms == WALL_MS + 1_000


async def test_offset_expiration_is_capped_at_largest_int64(group_apis: Any) -> None:
    topics = [topic(group_apis, 4, "t", position(0))]
    request = OffsetCommitRequest(group_id="g", topics=topics, retention_time_ms=2**63 - 1)
    assert errors(await group_apis.ask(OFFSET_COMMIT, request, 4)) == [[0]]
    assert stored(group_apis)[0][2].expire_ms == 2**63 - 1


@pytest.mark.parametrize("version", [8, 9, 10])
async def test_commit_of_member_in_unknown_group_is_rejected(group_apis: Any, version: int) -> None:
    topics = [topic(group_apis, version, "t", position(0), position(9))]
    request = OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=3, member_id="m", topics=topics
    )
    none = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert errors(await group_apis.ask(OFFSET_COMMIT, request, version)) == [[none, missing]]


async def test_too_long_metadata_is_rejected_for_its_partition(group_apis: Any) -> None:
    long = position(0, committed_metadata="m" * 4097)
    topics = [topic(group_apis, 9, "t", long, position(1))]
    response = await group_apis.ask(
        OFFSET_COMMIT, OffsetCommitRequest(group_id="g", topics=topics), 9
    )
    assert errors(response) == [[ErrorCode.OFFSET_METADATA_TOO_LARGE, 0]]


async def test_commit_without_existing_partitions_is_not_forwarded_to_workers(
    group_apis: Any,
) -> None:
    topics = [topic(group_apis, 9, "nope", position(0))]
    for request in (OffsetCommitRequest(group_id="g", topics=topics), OffsetCommitRequest()):
        await group_apis.ask(OFFSET_COMMIT, request, 9)
        assert group_apis.asked == {}


# Txn offset commit --------------------------------------------------------------------------------


OK = ErrorCode.NONE
GROUP_PARTITION = offsets_partition("g", 50)


class Verification:
    """The coordinator's answers; ``asked`` are the questions."""

    def __init__(self) -> None:
        self.error: ErrorCode | None = None
        self.asked: list[tuple[ProducerSession, TransactionSupport]] = []

    async def __call__(
        self,
        scope: Any,
        session: ProducerSession,
        sequences: Mapping[tuple[str, int], int],
        support: TransactionSupport,
    ) -> Verified:
        assert sequences == {(OFFSETS_TOPIC, GROUP_PARTITION): -1}
        self.asked.append((session, support))
        if self.error is not None:
            return Verified({}, dict.fromkeys(sequences, self.error))
        partition = scope.groups._manager.log_of("g")._partition
        guard = partition.begin_verification(
            session.producer_id, session.producer_epoch, -1, adds=False, now_ms=1
        )
        return Verified(dict.fromkeys(sequences, guard), {})


@pytest.fixture
def verification(monkeypatch: pytest.MonkeyPatch) -> Verification:
    made = Verification()
    monkeypatch.setattr(group_offsets, "verify_transaction", made)
    return made


def request(apis: Any, version: int, group_id: str = "g", **other: Any) -> TxnOffsetCommitRequest:
    """Commit offsets 10 of t-0 and 11 of t-9, which does not exist, and of an unknown topic."""
    partitions = [
        TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=10),
        TxnOffsetCommitRequestPartition(partition_index=9, committed_offset=11),
    ]
    topic_id = apis.controller.image.topics["t"].topic_id
    return TxnOffsetCommitRequest(
        transactional_id="x",
        group_id=group_id,
        producer_id=5,
        producer_epoch=0,
        topics=[
            TxnOffsetCommitRequestTopic(name="t", topic_id=topic_id, partitions=partitions),
            TxnOffsetCommitRequestTopic(name="no", topic_id=bytes(16), partitions=partitions[:1]),
        ],
        **other,
    )


async def fetched(apis: Any, *, stable: bool = True, all_topics: bool = False) -> tuple[int, int]:
    """Offset of t-0 and its error."""
    topics = None
    if not all_topics:
        topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    asked = OffsetFetchRequestGroup(group_id="g", topics=topics)
    response = await apis.ask(
        OFFSET_FETCH, OffsetFetchRequest(groups=[asked], require_stable=stable), 9
    )
    [topic] = response.groups[0].topics
    return topic.partitions[0].committed_offset, topic.partitions[0].error_code


def end(apis: Any, *, committed: bool) -> None:
    groups = apis.workers[group_owner("g", 50, 2)].groups
    partition = groups._manager.log_of("g")._partition
    marker = EndTransactionMarker(committed, coordinator_epoch=0)

    def append() -> None:
        partition.append_marker(5, 0, marker, transaction_version=0, now_ms=1)

    groups.complete_transaction(GROUP_PARTITION, 5, committed=committed, append=append)


@pytest.mark.parametrize("version", range(7))
async def test_offsets_are_pending_until_commit(
    group_apis: Any, verification: Verification, version: int
) -> None:
    response = await group_apis.ask(TXN_OFFSET_COMMIT, request(group_apis, version), version)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    missing = ErrorCode.UNKNOWN_TOPIC_ID if version >= 6 else unknown
    assert errors(response) == [[OK, unknown], [missing]]
    session, support = verification.asked[0]
    assert session == ("x", 5, 0)
    assert support is (
        TransactionSupport.DEFAULT_ERROR
        if version < 4
        else TransactionSupport.GENERIC_ERROR
        if version == 4
        else TransactionSupport.ADD_PARTITION
    )
    assert await fetched(group_apis) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert await fetched(group_apis, stable=False) == (-1, OK)
    end(group_apis, committed=True)
    assert await fetched(group_apis) == (10, OK)


async def test_committed_offset_is_unstable_during_transaction(
    group_apis: Any, verification: Verification
) -> None:
    await group_apis.ask(TXN_OFFSET_COMMIT, request(group_apis, 3), 3)
    end(group_apis, committed=True)
    await group_apis.ask(TXN_OFFSET_COMMIT, request(group_apis, 3), 3)
    assert await fetched(group_apis, all_topics=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert await fetched(group_apis, stable=False, all_topics=True) == (10, OK)
    end(group_apis, committed=False)
    assert await fetched(group_apis) == (10, OK)


@pytest.mark.parametrize(
    ("version", "error", "expected"),
    [
        (3, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (4, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (3, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (5, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (3, ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (1, ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (3, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
    ],
)
async def test_rejected_verification_commits_nothing(
    group_apis: Any,
    verification: Verification,
    version: int,
    error: ErrorCode,
    expected: ErrorCode,
) -> None:
    verification.error = error
    response = await group_apis.ask(TXN_OFFSET_COMMIT, request(group_apis, version), version)
    assert errors(response)[0][0] == expected
    assert await fetched(group_apis) == (-1, OK)


async def test_member_of_other_generation_is_rejected(
    group_apis: Any, verification: Verification
) -> None:
    member = request(group_apis, 3, generation_id_or_member_epoch=3, member_id="m")
    response = await group_apis.ask(TXN_OFFSET_COMMIT, member, 3)
    assert errors(response)[0][0] == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.usefixtures("verification")
@pytest.mark.parametrize("version", [3, 5, 6])
@pytest.mark.parametrize(
    ("member", "epoch", "error"),
    [
        ("m", 2, OK),
        ("m", 1, ErrorCode.STALE_MEMBER_EPOCH),
        ("m", 3, ErrorCode.STALE_MEMBER_EPOCH),
        ("x", 2, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, OK),
    ],
)
async def test_epoch_of_a_consumer_group_is_checked_in_a_transaction(
    group_apis: Any, version: int, member: str, epoch: int, error: ErrorCode
) -> None:
    """Clients of older versions do not know STALE_MEMBER_EPOCH."""
    joining = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    joined = await group_apis.ask(CONSUMER_GROUP_HEARTBEAT, joining, 1)
    assert joined.member_epoch == 2
    fields: Any = {"generation_id_or_member_epoch": epoch, "member_id": member}
    commit = request(group_apis, version, **fields)
    response = await group_apis.ask(TXN_OFFSET_COMMIT, commit, version)
    is_unknown = version < 6 and error is ErrorCode.STALE_MEMBER_EPOCH
    assert errors(response)[0][0] == (ErrorCode.ILLEGAL_GENERATION if is_unknown else error)


@pytest.mark.parametrize("version", [3, 5, 6])
async def test_member_of_a_group_that_does_not_exist_commits_nothing_in_a_transaction(
    group_apis: Any, verification: Verification, version: int
) -> None:
    member = request(group_apis, version, generation_id_or_member_epoch=3, member_id="m")
    response = await group_apis.ask(TXN_OFFSET_COMMIT, member, version)
    expected = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.ILLEGAL_GENERATION
    assert errors(response)[0][0] == expected


async def test_empty_group_id_is_rejected(group_apis: Any, verification: Verification) -> None:
    response = await group_apis.ask(TXN_OFFSET_COMMIT, request(group_apis, 3, group_id=""), 3)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert errors(response) == [[ErrorCode.INVALID_GROUP_ID, unknown], [unknown]]
    assert verification.asked == []


# Offset fetch -------------------------------------------------------------------------------------


SIMPLE_CONSUMER = CommitRequested(member_id="", generation=-1)


def commit(apis: Any, group_id: str, **offsets: int) -> None:
    worker = apis.workers[apis.context(OFFSET_FETCH.key, 10).group_owner(group_id)]
    values = {(topic, 0): CommittedOffset(offset, 7, "m", 1) for topic, offset in offsets.items()}
    worker.groups.commit(group_id, SIMPLE_CONSUMER, values)


def fetch_request(apis: Any, version: int, group_id: str, topics: Any) -> OffsetFetchRequest:
    """``topics`` maps names to partitions, or is None for all."""
    if version < 8:
        older = None
        if topics is not None:
            older = [
                OffsetFetchRequestTopic(name=name, partition_indexes=partitions)
                for name, partitions in topics.items()
            ]
        return OffsetFetchRequest(group_id=group_id, topics=older)
    return OffsetFetchRequest(groups=[group(apis, version, group_id, topics)])


def group(apis: Any, version: int, group_id: str, topics: Any) -> OffsetFetchRequestGroup:
    asked = None
    if topics is not None:
        asked = [
            OffsetFetchRequestTopics(
                name=name if version < 10 else "",
                topic_id=topic_id(apis, name) if version >= 10 else bytes(16),
                partition_indexes=partitions,
            )
            for name, partitions in topics.items()
        ]
    return OffsetFetchRequestGroup(group_id=group_id, topics=asked)


def topic_id(apis: Any, name: str) -> bytes:
    known = apis.controller.image.topics.get(name)
    return UNKNOWN_ID if known is None else bytes(known.topic_id)


def found(apis: Any, version: int, response: Any) -> list[Any]:
    """(topic, partition, offset, metadata, error) of the first group."""
    topics = response.topics if version < 8 else response.groups[0].topics
    names = {topic_id(apis, name): name for name in ("t", "u", "gone")}
    return [
        (
            topic.name if version < 10 else names[topic.topic_id],
            each.partition_index,
            each.committed_offset,
            each.metadata,
            each.error_code,
        )
        for topic in topics
        for each in topic.partitions
    ]


@pytest.mark.parametrize("version", range(1, 11))
async def test_partitions_are_answered_in_request_order(group_apis: Any, version: int) -> None:
    commit(group_apis, "g", t=5, u=6)
    asked = {"u": [0], "gone": [1], "t": [2, 0]}
    response = await group_apis.ask(
        OFFSET_FETCH, fetch_request(group_apis, version, "g", asked), version
    )
    gone = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.NONE
    assert found(group_apis, version, response) == [
        ("u", 0, 6, "m", 0),
        ("gone", 1, -1, "", gone),
        ("t", 2, -1, "", 0),
        ("t", 0, 5, "m", 0),
    ]


@pytest.mark.parametrize("version", range(2, 11))
async def test_null_topics_return_all_offsets_of_group(group_apis: Any, version: int) -> None:
    commit(group_apis, "g", t=5, gone=6)
    response = await group_apis.ask(
        OFFSET_FETCH, fetch_request(group_apis, version, "g", None), version
    )
    # Without a topic there is no id to name it by.
    expected = [("t", 0, 5, "m", 0)] + [("gone", 0, 6, "m", 0)] * (version < 10)
    assert found(group_apis, version, response) == expected


@pytest.mark.parametrize("version", [5, 7, 8])
async def test_committed_leader_epoch_is_returned(group_apis: Any, version: int) -> None:
    commit(group_apis, "g", t=5)
    response = await group_apis.ask(
        OFFSET_FETCH, fetch_request(group_apis, version, "g", {"t": [0]}), version
    )
    topics = response.topics if version < 8 else response.groups[0].topics
    assert topics[0].partitions[0].committed_leader_epoch == 7


@pytest.mark.parametrize("version", [1, 7, 10])
async def test_unknown_group_has_no_offsets(group_apis: Any, version: int) -> None:
    response = await group_apis.ask(
        OFFSET_FETCH, fetch_request(group_apis, version, "h", {"t": [0]}), version
    )
    assert found(group_apis, version, response) == [("t", 0, -1, "", 0)]


@pytest.mark.parametrize("version", [8, 9, 10])
async def test_groups_of_several_workers_are_answered_in_request_order(
    group_apis: Any, version: int
) -> None:
    ids = [f"g{number}" for number in range(8)]
    for number, group_id in enumerate(ids):
        commit(group_apis, group_id, t=number)
    groups = [group(group_apis, version, group_id, {"t": [0]}) for group_id in ids]
    groups.append(group(group_apis, version, "g3", None))
    response = await group_apis.ask(OFFSET_FETCH, OffsetFetchRequest(groups=groups), version)
    assert len(group_apis.asked) == 2
    assert [each.group_id for each in response.groups] == [*ids, "g3"]
    offsets = [each.topics[0].partitions[0].committed_offset for each in response.groups]
    assert offsets == [*range(8), 3]
    assert {each.error_code for each in response.groups} == {ErrorCode.NONE}


# Offset delete ------------------------------------------------------------------------------------


SUBSCRIBED_TO_T = b"\0\0" + b"\0\0\0\1\0\1t" + b"\xff\xff\xff\xff"


def deletion_request(**topics: list[int]) -> OffsetDeleteRequest:
    return OffsetDeleteRequest(
        group_id="g",
        topics=[
            OffsetDeleteRequestTopic(
                name=name,
                partitions=[OffsetDeleteRequestPartition(partition_index=p) for p in partitions],
            )
            for name, partitions in topics.items()
        ],
    )


def groups(apis: Any) -> Any:
    return apis.workers[apis.context(OFFSET_DELETE.key, 0).group_owner("g")].groups


def commit_to_groups(apis: Any) -> None:
    offsets = {(name, 0): CommittedOffset(1, -1, "", 1) for name in "tu"}
    groups(apis).commit("g", CommitRequested(member_id="", generation=-1), offsets)


async def join(apis: Any, protocol_type: str) -> None:
    protocol = JoinGroupRequestProtocol(name="range", metadata=SUBSCRIBED_TO_T)
    joining = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type=protocol_type,
        protocols=[protocol],
    )
    await apis.ask(JOIN_GROUP, joining, 3)


async def test_offsets_of_subscribed_topics_are_not_deleted(group_apis: Any) -> None:
    commit_to_groups(group_apis)
    await join(group_apis, "consumer")
    response = await group_apis.ask(OFFSET_DELETE, deletion_request(u=[0, 9], t=[0], gone=[0]), 0)
    assert response.error_code == ErrorCode.NONE
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    errors = [[each.error_code for each in topic.partitions] for topic in response.topics]
    assert errors == [[0, missing], [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC], [missing]]
    assert [topic.name for topic in response.topics] == ["u", "t", "gone"]
    assert groups(group_apis).committed("g").topics() == ["t"]


async def test_group_error_is_returned_without_topics(group_apis: Any) -> None:
    response = await group_apis.ask(OFFSET_DELETE, deletion_request(t=[0]), 0)
    assert (response.error_code, response.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    commit_to_groups(group_apis)
    await join(group_apis, "connect")
    response = await group_apis.ask(OFFSET_DELETE, deletion_request(t=[0]), 0)
    assert (response.error_code, response.topics) == (ErrorCode.NON_EMPTY_GROUP, [])
