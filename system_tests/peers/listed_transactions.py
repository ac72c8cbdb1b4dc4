"""Open transactions: producers of partitions, ids by pattern, markers, verification, and waits."""

from __future__ import annotations

from time import monotonic
from typing import Any, Final

from minibroker_protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from minibroker_protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from minibroker_protocol.messages.list_transactions import ListTransactionsRequest
from minibroker_protocol.messages.produce import ProduceRequest
from minibroker_protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from minibroker_protocol.records import build_batch
from minibroker_protocol.schema import Message
from system_tests.peers.configs import BROKER, SET, THIS, alter
from system_tests.peers.conversation import SendRequest
from system_tests.peers.records import fetch, produce, records
from system_tests.peers.topics import create, topic
from system_tests.peers.transactions import Producer, add, end, find, init

VERIFICATION: Final = "transaction.partition.verification.enable"
WAIT_MS: Final = 200
WAITED_S: Final = 0.15
"""From here on, a response has waited. Kafka's timer counts whole milliseconds from when one
begins, so its wait may end before ``WAIT_MS``.
"""

ATTEMPTS: Final = 3


def transactional(name: str, producer: Producer, partition: int, sequence: int) -> ProduceRequest:
    batch = build_batch(
        records(b"v"),
        transactional=True,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
    )
    request = produce(name, batch, partition)
    request.transactional_id = name
    return request


def described(name: str, *partitions: int) -> DescribeProducersRequest:
    topics = [TopicRequest(name=name, partition_indexes=list(partitions))]
    return DescribeProducersRequest(topics=topics)


def producers_of_partitions(ask: SendRequest) -> None:
    """Only versions before 12 of Produce, which do not name the topic by id."""
    ask("made", create(topic("dp", 2)), 7)
    ask("found", find("dp", 3), 3)
    ask("none", described("dp", 0, 1), 0)
    ask("nothing", DescribeProducersRequest(topics=[]), 0)
    for partition in (2, -1, 2**31 - 1):
        ask(f"partition {partition}", described("dp", partition), 0)
    for name in ("no-such", "", "a/b", "x" * 250):
        ask(f"topic {name[:10]!r}", described(name, 0), 0)
    ask("the same twice", described("dp", 0, 0), 0)
    for version in (3, 7, 9, 11):
        made = ask(f"initialized, {version}", init("dp"), 4)
        me: Producer = (made.producer_id, made.producer_epoch)
        ask(f"not added, {version}", transactional("dp", me, 0, 0), version)
        ask(f"added, {version}", add("dp", me, dp=[0]), 3)
        ask(f"written, {version}", transactional("dp", me, 0, 0), version)
        ask(f"written to another, {version}", transactional("dp", me, 1, 0), version)
        ask(f"written again, {version}", transactional("dp", me, 0, 0), version)
        ask(f"a gap, {version}", transactional("dp", me, 0, 5), version)
        ask(f"old epoch, {version}", transactional("dp", (me[0], me[1] - 1), 0, 1), version)
        ask(f"new epoch, {version}", transactional("dp", (me[0], me[1] + 1), 0, 0), version)
        ask(f"open, {version}", described("dp", 0, 1), 0)
        for isolation in (0, 1):
            ask(f"fetched {isolation}, {version}", fetch("dp", 0, isolation_level=isolation), 12)
        ask(f"ended, {version}", end("dp", me, committed=version > 7), 4)
        ask(f"closed, {version}", described("dp", 0, 1), 0)
        ask(f"fetched after, {version}", fetch("dp", 0, isolation_level=1), 12)
        ask(f"written after, {version}", transactional("dp", me, 0, 1), version)


def unverified(ask: SendRequest) -> None:
    ask("made", create(topic("uv", 2)), 7)
    ask("found", find("uv", 3), 3)
    for value in ("false", "true"):
        for name in (THIS, ""):
            ask(f"{value} at {name!r}", alter(BROKER, name, (VERIFICATION, SET, value)), 1)
        for version in (9, 11):
            about = f"{value}, {version}"
            made = ask(f"initialized, {about}", init("uv"), 4)
            me: Producer = (made.producer_id, made.producer_epoch)
            ask(f"not added, {about}", transactional("uv", me, 0, 0), version)
            ask(f"not added again, {about}", transactional("uv", me, 0, 1), version)
            ask(f"described, {about}", described("uv", 0), 0)
            marker = WritableTxnMarker(
                producer_id=me[0],
                producer_epoch=me[1],
                topics=[WritableTxnMarkerTopic(name="uv", partition_indexes=[0])],
            )
            ask(f"aborted, {about}", WriteTxnMarkersRequest(markers=[marker]), 1)
            ask(f"fetched, {about}", fetch("uv", 0, isolation_level=1), 12)
    ask("not a value", alter(BROKER, THIS, (VERIFICATION, SET, "perhaps")), 1)


def markers(ask: SendRequest) -> None:
    ask("made", create(topic("mk", 2)), 7)

    def marker(name: str, *indexes: int, **fields: Any) -> WritableTxnMarker:
        topics = [WritableTxnMarkerTopic(name=name, partition_indexes=list(indexes))]
        values = {"producer_id": 2**40, "producer_epoch": 0, "topics": topics, **fields}
        return WritableTxnMarker(**values)

    requests = {
        "nothing": [],
        "without topics": [marker("mk", topics=[])],
        "without partitions": [marker("mk")],
        "for a producer without records": [marker("mk", 0)],
        "the same again": [marker("mk", 0)],
        "the other outcome": [marker("mk", 0, transaction_result=True)],
        "unknown partition": [marker("mk", 9)],
        "negative partition": [marker("mk", -1)],
        "unknown topic": [marker("no-such", 0)],
        "known and unknown": [marker("mk", 0, 9)],
        "two of one producer": [marker("mk", 0), marker("mk", 1)],
        "of a newer epoch": [marker("mk", 0, producer_epoch=3)],
        "of an older epoch": [marker("mk", 0, producer_epoch=2)],
        "of no epoch": [marker("mk", 0, producer_epoch=-1, producer_id=2**40 + 1)],
        "of no producer": [marker("mk", 0, producer_id=-1)],
        "of a newer coordinator": [marker("mk", 0, producer_epoch=3, coordinator_epoch=5)],
        "of an older coordinator": [marker("mk", 0, producer_epoch=3, coordinator_epoch=4)],
        "of a negative coordinator": [marker("mk", 1, producer_epoch=3, coordinator_epoch=-2)],
    }
    for version in (1, 2):
        for name, written in requests.items():
            ask(f"{name}, {version}", WriteTxnMarkersRequest(markers=written), version)
        ask(f"described, {version}", described("mk", 0, 1), 0)
        ask(f"fetched, {version}", fetch("mk", 0), 12)
    for level in (0, 1, 2, 3, -1):
        written = [marker("mk", 1, producer_epoch=9 + level, transaction_version=level)]
        ask(f"transaction version {level}", WriteTxnMarkersRequest(markers=written), 2)


PATTERNS: Final = r"""
    lt-1 lt-. LT-1 lt .*lt.* lt-1|lt-2 (?i)LT-[12] lt-\d ^lt-1$ \Qlt-1\E lt-[[:digit:]] \x6ct-1
    (?P<n>lt)-1 (?<n>lt)-1 l\pL-\p{Nd} lt-1+? (lt-){1}1 (?:lt|xx)-1 \Alt-1\z \blt\b-1 [^a]t-1
    lt-{1,2}1 (lt-1|){20} (((((((lt-1))))))) lt{ lt-1{,2} [l]t-[]1] (?s)lt.1 (?U)lt-1* (?-s:lt).1
    [ ( ) * a** a++ a{2,1} a{1001} (?=a) (?<=a)b (?>a) \1 \q \p{Nope} [[:nope:]] [z-a] (?z)a
    \x{110000} (?P<n>a)(?P<n>b) \Z a{9}{9} [a-\d] (?P<a-b>a) \x{} \x6 \pZz lt-\p{Greek}
"""
LONG_PATTERN: Final = "lt-1|" * 2000


def patterns(ask: SendRequest) -> None:
    for name in ("lt-1", "lt-2"):
        ask(f"found {name}", find(name, 3), 3)
        ask(f"initialized {name}", init(name), 4)
    states = ["Empty", "CompleteAbort", "CompleteCommit"]
    for pattern in PATTERNS.split():
        ask(pattern, ListTransactionsRequest(transactional_id_pattern=pattern), 2)
    ask("a long pattern", ListTransactionsRequest(transactional_id_pattern=LONG_PATTERN), 2)
    for pattern in ("lt-1", "["):
        both = ListTransactionsRequest(
            transactional_id_pattern=pattern, state_filters=[*states, "Asleep"]
        )
        ask(f"{pattern} and states", both, 2)
        by = ListTransactionsRequest(
            transactional_id_pattern=pattern, producer_id_filters=[2**40], duration_filter=0
        )
        ask(f"{pattern} and a producer", by, 2)


def quorum(ask: SendRequest) -> None:
    def about(*wanted: tuple[str, int]) -> DescribeQuorumRequest:
        return DescribeQuorumRequest(
            topics=[
                DescribeQuorumRequestTopicData(
                    topic_name=name,
                    partitions=[DescribeQuorumRequestPartitionData(partition_index=index)],
                )
                for name, index in wanted
            ]
        )

    for version in range(3):
        for wanted in (
            [("__cluster_metadata", 1)],
            [("__cluster_metadata", -1)],
            [("no-such", 0)],
            [("", 0)],
            [("__cluster_metadata", 0), ("no-such", 0)],
            [("__cluster_metadata", 0)] * 2,
            [],
        ):
            ask(f"{wanted}, {version}", about(*wanted), version)
        response = ask(f"the log, {version}", about(("__cluster_metadata", 0)), version)
        (part,) = response.topics[0].partitions
        (voter,) = part.current_voters
        ask.answers[f"the log, {version}"] = {
            "errors": (response.error_code, part.error_code, len(part.observers)),
            "is at the end": voter.log_end_offset == part.high_watermark,
            "has a directory": any(voter.replica_directory_id),
            "has times": (voter.last_fetch_timestamp > 0, voter.last_caught_up_timestamp > 0),
            "nodes": [(node.node_id, len(node.listeners)) for node in response.nodes],
        }


def waiting(ask: SendRequest) -> None:
    """Which fetches wait; the times are compared, not the responses alone."""
    ask("made", create(topic("wt", 3)), 7)
    for name, partition in (("wt", 1), ("wt", 9), ("no-such", 0), ("wt", -1)):
        for version in (4, 7, 11, 12):
            wanted = fetch("wt", 0, 0, max_wait_ms=WAIT_MS, min_bytes=1)
            (also,) = fetch(name, 0, partition).topics
            if name == "wt":
                wanted.topics[0].partitions += also.partitions
            else:
                wanted.topics.append(also)
            _ask_in_time(ask, f"{name} {partition}, {version}", wanted, version)
    for offset in (0, 5):
        wanted = fetch("wt", offset, 0, max_wait_ms=WAIT_MS, min_bytes=1)
        _ask_in_time(ask, f"from {offset}", wanted, 12)


def _ask_in_time(ask: SendRequest, name: str, request: Message, version: int) -> None:
    """Store the response, and whether it waits each time: a busy machine delays some."""
    start = monotonic()
    ask(name, request, version)
    has_waited = monotonic() - start >= WAITED_S
    for _ in range(ATTEMPTS - 1):
        if has_waited:
            start = monotonic()
            ask.until(lambda _: True, f"{name}, waited", request, version)
            has_waited = monotonic() - start >= WAITED_S
    ask.answers[f"{name}, waited"] = has_waited


CONVERSATIONS: Final = (
    producers_of_partitions,
    unverified,
    markers,
    patterns,
    quorum,
    waiting,
)
