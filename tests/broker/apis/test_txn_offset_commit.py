"""TxnOffsetCommit: offsets are pending until their transaction ends; each check has its error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from minibroker.broker.apis import txn_offset_commit
from minibroker.broker.apis.offset_fetch import API as OFFSET_FETCH
from minibroker.broker.apis.transaction_verification import (
    ProducerSession,
    TransactionSupport,
    Verified,
)
from minibroker.broker.apis.txn_offset_commit import API
from minibroker.broker.metadata.placement import OFFSETS_TOPIC, group_owner, offsets_partition
from minibroker_protocol.control_records import EndTransactionMarker
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from minibroker_protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

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
        partition = scope.groups._manager.offsets_log("g")._partition
        guard = partition.begin_verification(
            session.producer_id, session.producer_epoch, -1, adds=False, now_ms=1
        )
        return Verified(dict.fromkeys(sequences, guard), {})


@pytest.fixture
def verification(monkeypatch: pytest.MonkeyPatch) -> Verification:
    made = Verification()
    monkeypatch.setattr(txn_offset_commit, "verify_transaction", made)
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


def errors(response: Any) -> list[list[int]]:
    return [[each.error_code for each in topic.partitions] for topic in response.topics]


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
    partition = groups._manager.offsets_log("g")._partition
    marker = EndTransactionMarker(committed, coordinator_epoch=0)

    def append() -> None:
        partition.append_marker(5, 0, marker, transaction_version=0, now_ms=1)

    groups.complete_transaction(GROUP_PARTITION, 5, committed=committed, append=append)


@pytest.mark.parametrize("version", range(7))
async def test_offsets_are_pending_until_commit(
    group_apis: Any, verification: Verification, version: int
) -> None:
    response = await group_apis.ask(API, request(group_apis, version), version)
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
    await group_apis.ask(API, request(group_apis, 3), 3)
    end(group_apis, committed=True)
    await group_apis.ask(API, request(group_apis, 3), 3)
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
    response = await group_apis.ask(API, request(group_apis, version), version)
    assert errors(response)[0][0] == expected
    assert await fetched(group_apis) == (-1, OK)


async def test_member_of_other_generation_is_rejected(
    group_apis: Any, verification: Verification
) -> None:
    member = request(group_apis, 3, generation_id_or_member_epoch=3, member_id="m")
    response = await group_apis.ask(API, member, 3)
    assert errors(response)[0][0] == ErrorCode.ILLEGAL_GENERATION


async def test_empty_group_id_is_rejected(group_apis: Any, verification: Verification) -> None:
    response = await group_apis.ask(API, request(group_apis, 3, group_id=""), 3)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert errors(response) == [[ErrorCode.INVALID_GROUP_ID, unknown], [unknown]]
    assert verification.asked == []
