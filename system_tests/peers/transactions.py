"""Transactions: producers and epochs, partitions, offsets, ends of both versions, and errors."""

from __future__ import annotations

from typing import Any, Final

from minibroker_protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from minibroker_protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from minibroker_protocol.messages.describe_transactions import DescribeTransactionsRequest
from minibroker_protocol.messages.end_txn import EndTxnRequest
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.init_producer_id import InitProducerIdRequest
from minibroker_protocol.messages.list_transactions import ListTransactionsRequest
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
from system_tests.peers.conversation import SendRequest
from system_tests.peers.topics import create, topic

TIMEOUT_MS: Final = 60_000
Producer = tuple[int, int]


def find(name: str, version: int) -> FindCoordinatorRequest:
    if version < 4:
        return FindCoordinatorRequest(key=name, key_type=1)
    return FindCoordinatorRequest(coordinator_keys=[name], key_type=1)


def init(
    name: str, producer: Producer = (-1, -1), timeout_ms: int = TIMEOUT_MS
) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=name,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer[0],
        producer_epoch=producer[1],
    )


def add(name: str, producer: Producer, **topics: list[int]) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=_topics(topics),
    )


def _topics(topics: dict[str, list[int]]) -> list[AddPartitionsToTxnTopic]:
    return [AddPartitionsToTxnTopic(name=key, partitions=each) for key, each in topics.items()]


def batched(
    name: str, producer: Producer, *, verify: bool = False, **topics: list[int]
) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        transactional_id=name,
        producer_id=producer[0],
        producer_epoch=producer[1],
        verify_only=verify,
        topics=_topics(topics),
    )


def end(name: str, producer: Producer, *, committed: bool = True) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=name,
        producer_id=producer[0],
        producer_epoch=producer[1],
        committed=committed,
    )


def described(*names: str) -> DescribeTransactionsRequest:
    return DescribeTransactionsRequest(transactional_ids=list(names))


def producers(ask: SendRequest) -> None:
    """InitProducerId with transactional ids."""
    for version in (1, 3, 4, 6):
        ask(f"found, {version}", find("p", version), version)
    for version in range(6):
        ask(f"initialized, {version}", init("p"), version)
    made = ask("again", init("p"), 4)
    number = made.producer_id
    current: Producer = (number, made.producer_epoch)
    ask("continued", init("p", current), 4)
    ask("continued again", init("p", current), 4)
    for version in (3, 4):
        ask(f"an old epoch, {version}", init("p", (number, 1)), version)
        ask(f"another id, {version}", init("p", (number + 9999, 0)), version)
        ask(f"a future epoch, {version}", init("p", (number, 30_000)), version)
        ask(f"half given, {version}", init("p", (number, -1)), version)
        ask(f"other half given, {version}", init("p", (-1, 3)), version)
    for timeout_ms in (0, -1, 900_000, 900_001, 2**31 - 1):
        ask(f"timeout of {timeout_ms}", init("p", timeout_ms=timeout_ms), 4)
    ask("without a name", init(""), 4)
    ask("new with an id", init("q", (number, 5)), 4)
    ask("a long name", init("n" * 20_000), 4)
    ask("described", described("p", "q", "no", "", "p"), 0)


def partitions(ask: SendRequest) -> None:
    """AddPartitionsToTxn of clients and of leaders."""
    ask("made", create(topic("t", 3)), 2)
    ask("found", find("a", 3), 3)
    made = ask("initialized", init("a"), 4)
    me: Producer = (made.producer_id, made.producer_epoch)
    for version in range(4):
        ask(f"one, {version}", add("a", me, t=[0]), version)
        ask(f"missing, {version}", add("a", me, t=[0, 7], no=[0]), version)
        ask(f"internal, {version}", add("a", me, __consumer_offsets=[0], t=[1]), version)
        ask(f"old epoch, {version}", add("a", (me[0], me[1] - 1), t=[0]), version)
        ask(f"new epoch, {version}", add("a", (me[0], me[1] + 1), t=[0]), version)
        ask(f"other id, {version}", add("a", (me[0] + 9999, me[1]), t=[0]), version)
        ask(f"unknown, {version}", add("unknown", me, t=[0]), version)
        ask(f"no name, {version}", add("", me, t=[0]), version)
        ask(f"nothing, {version}", add("a", me), version)
    ask("described", described("a"), 0)
    for version in (4, 5):
        several = [
            batched("a", me, t=[1, 2]),
            batched("unknown", me, t=[0]),
            batched("b", me, t=[0], no=[1]),
        ]
        ask(f"several, {version}", AddPartitionsToTxnRequest(transactions=several), version)
        verified = [
            batched("a", me, verify=True, t=[0, 1]),
            batched("unknown", me, verify=True, t=[0]),
        ]
        ask(f"verified, {version}", AddPartitionsToTxnRequest(transactions=verified), version)
    other = [batched("a", (me[0], 77), verify=True, t=[0])]
    ask("verified by other", AddPartitionsToTxnRequest(transactions=other), 5)
    for version in range(5):
        offsets = AddOffsetsToTxnRequest(
            transactional_id="a", producer_id=me[0], producer_epoch=me[1], group_id="g"
        )
        ask(f"offsets, {version}", offsets, version)
        fenced = AddOffsetsToTxnRequest(
            transactional_id="a", producer_id=me[0], producer_epoch=me[1] + 5, group_id="g"
        )
        ask(f"offsets of old producer, {version}", fenced, version)
        unnamed = AddOffsetsToTxnRequest(transactional_id="", producer_id=1, group_id="g")
        ask(f"offsets without a name, {version}", unnamed, version)
    ask("aborted", end("a", me, committed=False), 4)
    ask("at the end", described("a"), 0)


def ends(ask: SendRequest) -> None:
    """EndTxn of transaction versions 1 and 2, with repetitions."""
    ask("made", create(topic("e", 1)), 2)
    ask("found", find("e", 3), 3)
    for version in range(6):
        for committed in (True, False):
            _end(ask, f"{version} {'commit' if committed else 'abort'}", version, committed)
    ask("unknown", end("never-used", (1, 0)), 5)
    ask("no name", end("", (1, 0)), 5)


def _end(ask: SendRequest, about: str, version: int, committed: bool) -> None:
    made = ask(f"{about}: initialized", init("e"), 4)
    me: Producer = (made.producer_id, made.producer_epoch)
    ask(f"{about}: empty, commit", end("e", me), version)
    empty = ask(f"{about}: empty, abort", end("e", me, committed=False), version)
    if version >= 5 and empty.producer_epoch >= 0:
        me = (empty.producer_id, empty.producer_epoch)
    ask(f"{about}: added", add("e", me, e=[0]), 3)
    ask(f"{about}: old epoch", end("e", (me[0], me[1] - 1)), version)
    ask(f"{about}: new epoch", end("e", (me[0], me[1] + 1)), version)
    ask(f"{about}: other id", end("e", (me[0] + 9999, me[1])), version)
    ask(f"{about}: ended", end("e", me, committed=committed), version)
    ask(f"{about}: repeated", end("e", me, committed=committed), version)
    ask(f"{about}: contradicted", end("e", me, committed=not committed), version)
    ask(f"{about}: described", described("e"), 0)


def fenced(ask: SendRequest) -> None:
    """An ongoing transaction is aborted by the next producer."""
    ask("made", create(topic("fenced", 1)), 2)
    ask("found", find("f", 3), 3)
    made = ask("first", init("f"), 4)
    me: Producer = (made.producer_id, made.producer_epoch)
    ask("added", add("f", me, fenced=[0]), 3)
    ask("second", init("f"), 4)
    ask("second again", init("f"), 4)
    ask("first adds", add("f", me, fenced=[0]), 3)
    ask("first ends", end("f", me), 4)
    ask("first ends, 5", end("f", me), 5)
    ask("first continues", init("f", me), 4)
    for version in (0, 1):
        ask(f"listed, {version}", ListTransactionsRequest(state_filters=["CompleteAbort"]), version)
    ask("strange states", ListTransactionsRequest(state_filters=["no", "Dead", "empty"]), 1)
    ask("no such producer", ListTransactionsRequest(producer_id_filters=[2**40]), 1)
    ask("long ones", ListTransactionsRequest(duration_filter=2**60), 1)


def commit(
    producer: Producer, group: str = "g", name: str = "o", **others: Any
) -> TxnOffsetCommitRequest:
    parts = [
        TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5),
        TxnOffsetCommitRequestPartition(
            partition_index=8, committed_offset=5, committed_metadata="no"
        ),
    ]
    return TxnOffsetCommitRequest(
        transactional_id=name,
        group_id=group,
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=[
            TxnOffsetCommitRequestTopic(name="o", partitions=parts),
            TxnOffsetCommitRequestTopic(name="missing", partitions=parts[:1]),
        ],
        **others,
    )


def fetched(*, stable: bool) -> OffsetFetchRequest:
    topics = [OffsetFetchRequestTopics(name="o", partition_indexes=[0, 1])]
    group = OffsetFetchRequestGroup(group_id="g", topics=topics)
    return OffsetFetchRequest(groups=[group], require_stable=stable)


def offsets(ask: SendRequest) -> None:
    """TxnOffsetCommit, with offsets that are pending, committed and aborted."""
    ask("made", create(topic("o", 2)), 2)
    ask("found", find("o", 3), 3)
    ask("group found", FindCoordinatorRequest(key="g"), 2)
    made = ask("initialized", init("o"), 4)
    me: Producer = (made.producer_id, made.producer_epoch)
    for version in range(5):
        ask(f"not added, {version}", commit(me), version)
    for version in range(6):
        last = version % 2 == 0
        if version < 5:
            added = AddOffsetsToTxnRequest(
                transactional_id="o", producer_id=me[0], producer_epoch=me[1], group_id="g"
            )
            ask(f"added, {version}", added, 4)
        ask(f"committed, {version}", commit(me), version)
        ask(f"unstable, {version}", fetched(stable=True), 9)
        ask(f"not required, {version}", fetched(stable=False), 9)
        ask(f"other epoch, {version}", commit((me[0], me[1] + 3)), version)
        ask(f"no group, {version}", commit(me, ""), version)
        if version >= 3:
            member = commit(me, generation_id_or_member_epoch=4, member_id="m")
            ask(f"generation, {version}", member, version)
            alone = commit(me, member_id="m")
            ask(f"member, {version}", alone, version)
        ended = ask(f"ended, {version}", end("o", me, committed=last), 5)
        me = (ended.producer_id, ended.producer_epoch)
        ask(f"stable, {version}", fetched(stable=True), 9)


CONVERSATIONS: Final = [producers, partitions, ends, fenced, offsets]
