"""Records: produced, fetched and deleted, offsets looked up, and their errors."""

from __future__ import annotations

from typing import Any, Final

from minibroker_protocol.compression import Compression
from minibroker_protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.init_producer_id import InitProducerIdRequest
from minibroker_protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from minibroker_protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import HEADER_BYTES, Record, TimestampType, build_batch
from system_tests.harness.batches import FIRST_MS, with_section
from system_tests.peers.conversation import SendRequest
from system_tests.peers.topics import TIMEOUT_MS, create, topic

CURRENT_EPOCH: Final = -1


def records(*values: bytes | None) -> list[Record]:
    return [
        Record(offset=0, timestamp=FIRST_MS + at, key=None, value=value, headers=())
        for at, value in enumerate(values)
    ]


def produce(
    name: str, batch: bytes | None, partition: int = 0, *, acks: int = -1
) -> ProduceRequest:
    data = [PartitionProduceData(index=partition, records=batch)]
    return ProduceRequest(
        acks=acks,
        timeout_ms=TIMEOUT_MS,
        topic_data=[TopicProduceData(name=name, partition_data=data)],
    )


def produced(ask: SendRequest) -> None:
    ask("made", create(topic("p", 2), topic("small", 1, 1, max_message_bytes="200")), 2)
    good = build_batch(records(b"a", b"b"))
    for version in (3, 5, 7, 8, 9, 11):
        ask(f"version {version}", produce("p", good), version)
    ask("acks 1", produce("p", good, acks=1), 9)
    ask("acks 2", produce("p", good, acks=2), 9)
    ask("acks -2", produce("p", good, acks=-2), 9)
    ask("no such topic", produce("missing", good), 9)
    ask("named nothing", produce("", good), 9)
    for partition in (1, 2, -1):
        ask(f"partition {partition}", produce("p", good, partition), 9)
    broken = bytearray(good)
    broken[-1] ^= 1
    ask("broken checksum", produce("p", bytes(broken)), 9)
    ask("cut", produce("p", good[:-1]), 9)
    ask("head alone", produce("p", good[:61]), 9)
    ask("too short", produce("p", good[:20]), 9)
    ask("empty", produce("p", b""), 9)
    ask("two batches", produce("p", good + good), 9)
    for codec in (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD):
        packed = build_batch(records(b"a" * 50), compression=codec)
        ask(f"{codec.name}", produce("p", packed), 9)
        ask(f"{codec.name} of old", produce("p", packed), 3)
    ask("offsets begin at 7", produce("p", build_batch(records(b"a"), base_offset=7)), 9)
    ask("control", produce("p", build_batch(records(b"a"), control=True)), 9)
    old = bytearray(good)
    old[16] = 1
    ask("magic 1 in a new head", produce("p", bytes(old)), 9)
    old[16] = 3
    ask("magic 3", produce("p", bytes(old)), 9)
    ask("too large", produce("small", build_batch(records(b"x" * 300))), 9)
    ask("transactional id without a transaction", _transactional("p", good), 9)
    transactional = build_batch(
        records(b"a"), transactional=True, producer_id=5, producer_epoch=0, base_sequence=0
    )
    ask("transactional batch", produce("p", transactional), 9)
    append = build_batch(records(b"a"), timestamp_type=TimestampType.LOG_APPEND_TIME)
    ask("times of the log", produce("p", append), 9)


def more_replicas_demanded(ask: SendRequest) -> None:
    """`min.insync.replicas` above the number of replicas, and records with all acks."""
    ask("made", create(topic("two", min_insync_replicas="2")), 7)
    for version in (3, 9, 11):
        for acks in (-1, 1):
            batch = build_batch(records(b"a", b"b"))
            ask(f"version {version}, acks {acks}", produce("two", batch, acks=acks), version)
    ask("read", fetch("two", 0), 11)


def tiny_records(count: int) -> bytes:
    """Records with neither key nor value."""
    return build_batch([Record()] * count)[HEADER_BYTES:]


def bad_records(ask: SendRequest) -> None:
    compacted = topic("compacted", 1, 1, **{"cleanup.policy": "compact"})
    timed = topic(
        "timed",
        1,
        1,
        **{"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "1000"},
    )
    ask("made", create(topic("bad"), compacted, timed), 2)
    for codec in (Compression.NONE, Compression.GZIP, Compression.LZ4, Compression.ZSTD):
        for name, section, count in (
            ("garbage", b"\x55" * 100, 3),
            ("ones", b"\xff" * 100, 3),
            ("too few", tiny_records(10), 11),
            ("too many", tiny_records(10), 9),
            ("cut", tiny_records(10)[:-1], 10),
            ("two billion", tiny_records(10), 2**31 - 1),
        ):
            ask(f"{name}, {codec.name}", produce("bad", with_section(section, count, codec)), 9)
    no_keys = [
        Record(offset=0, timestamp=FIRST_MS, key=None if i in (3, 7) else b"k", value=b"v")
        for i in range(10)
    ]
    for version in (8, 9, 11):
        ask(f"no keys, {version}", produce("compacted", build_batch(no_keys)), version)
    ask("old", produce("timed", build_batch(records(b"a", b"b"))), 9)
    ask("to the offsets", produce("__consumer_offsets", build_batch(no_keys)), 9)
    ask("to the transactions", produce("__transaction_state", build_batch(no_keys)), 9)
    lying = with_section(tiny_records(3), 3, max_timestamp=FIRST_MS + 5_000_000)
    ask("a false largest timestamp", produce("bad", lying), 9)
    for when in (-1, -3, -2):
        part = ListOffsetsPartition(
            partition_index=0, timestamp=when, current_leader_epoch=CURRENT_EPOCH
        )
        topics = [ListOffsetsTopic(name="bad", partitions=[part])]
        request = ListOffsetsRequest(replica_id=-1, topics=topics, timeout_ms=TIMEOUT_MS)
        ask(f"the offset at {when}", request, 7)


def early(ask: SendRequest) -> None:
    """Records from before 1970, of which -1 says that a record has no time."""
    ask("made", create(topic("early")), 2)
    for number, times in enumerate(([-5], [-1], [-7, -5], [-5, 10], [10, -5], [-(2**62)])):
        sent = [Record(offset=0, timestamp=time, key=None, value=b"v") for time in times]
        ask(f"sent {times}", produce("early", build_batch(sent)), 9)
        ask(f"fetched {number}", fetch("early", number), 12)
    for when in (-1, -3, -2, 0):
        part = ListOffsetsPartition(
            partition_index=0, timestamp=when, current_leader_epoch=CURRENT_EPOCH
        )
        topics = [ListOffsetsTopic(name="early", partitions=[part])]
        request = ListOffsetsRequest(replica_id=-1, topics=topics, timeout_ms=TIMEOUT_MS)
        ask(f"the offset at {when}", request, 7)


def _transactional(name: str, batch: bytes) -> ProduceRequest:
    request = produce(name, batch)
    request.transactional_id = "nobody"
    return request


def idempotent(ask: SendRequest) -> None:
    ask("made", create(topic("i")), 2)
    response = ask(
        "first", InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60000), 4
    )
    number = response.producer_id

    def send(name: str, sequence: int, count: int = 1, epoch: int = 0, by: int = number) -> None:
        batch = build_batch(
            records(*[b"a"] * count), producer_id=by, producer_epoch=epoch, base_sequence=sequence
        )
        ask(name, produce("i", batch), 9)

    send("0", 0)
    send("0 again", 0)
    send("1 to 3", 1, 3)
    send("a gap", 9)
    send("an old one", 0)
    send("1 to 3 again", 1, 3)
    send("1 alone", 1)
    send("a new epoch not from 0", 4, epoch=1)
    send("a new epoch", 0, epoch=1)
    send("an old epoch", 4, epoch=0)
    send("new producer, not from 0", 5, by=number + 1000)
    send("negative sequence", -1)
    send("negative epoch", 0, epoch=-1)
    ask(
        "bumped",
        InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout_ms=60000,
            producer_id=number,
            producer_epoch=0,
        ),
        4,
    )
    ask("named nothing", InitProducerIdRequest(transactional_id="", transaction_timeout_ms=6000), 4)


def fetch(name: str, offset: int, partition: int = 0, **options: int) -> FetchRequest:
    part = FetchPartition(
        partition=partition,
        current_leader_epoch=options.pop("epoch", CURRENT_EPOCH),
        fetch_offset=offset,
        partition_max_bytes=options.pop("partition_max_bytes", 1 << 20),
        log_start_offset=-1,
    )
    values: dict[str, Any] = {
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
    }
    return FetchRequest(
        replica_id=-1, topics=[FetchTopic(topic=name, partitions=[part])], **{**values, **options}
    )


def fetched(ask: SendRequest) -> None:
    ask("made", create(topic("f", 2)), 2)
    for _ in range(3):
        ask(f"filled {_}", produce("f", build_batch(records(b"a" * 100, b"b" * 100))), 9)
    for version in (4, 5, 7, 9, 11, 12):
        ask(f"from 0, version {version}", fetch("f", 0), version)
    for offset in (1, 2, 6, 7, -1):
        ask(f"from {offset}", fetch("f", offset), 12)
    for partition in (1, 2, -1):
        ask(f"partition {partition}", fetch("f", 0, partition), 12)
    ask("no such topic", fetch("missing", 0), 12)
    ask("named nothing", fetch("", 0), 12)
    for epoch in (0, 1, 99):
        ask(f"epoch {epoch}", fetch("f", 0, epoch=epoch), 12)
    for limit in (0, 1, 300, -1):
        ask(f"a partition's limit of {limit}", fetch("f", 0, partition_max_bytes=limit), 12)
        ask(f"a limit of {limit}", fetch("f", 0, max_bytes=limit), 12)
    ask("read committed", fetch("f", 0, isolation_level=1), 12)
    ask("isolated somehow", fetch("f", 0, isolation_level=7), 12)
    ask("a session that is none", fetch("f", 0, session_id=77, session_epoch=3), 12)
    ask("no session, an epoch", fetch("f", 0, session_id=0, session_epoch=3), 12)


def looked_up(ask: SendRequest) -> None:
    ask("made", create(topic("l", 2)), 2)
    ask("filled", produce("l", build_batch(records(b"a", b"b", b"c"))), 9)

    def ask_epoch(  # noqa: PLR0917
        label: str, name: str, when: int, version: int, partition: int = 0, epoch: int = -1
    ) -> None:
        part = ListOffsetsPartition(
            partition_index=partition, timestamp=when, current_leader_epoch=epoch
        )
        topics = [ListOffsetsTopic(name=name, partitions=[part])]
        ask(label, ListOffsetsRequest(replica_id=-1, topics=topics, timeout_ms=TIMEOUT_MS), version)

    for version in (1, 2, 4, 6, 7, 8, 9):
        for when in (-1, -2, -3, -4, -5, -6, -7):
            ask_epoch(f"{when}, version {version}", "l", when, version)
    for when in (0, FIRST_MS, FIRST_MS + 1, FIRST_MS + 2, FIRST_MS + 3):
        ask_epoch(f"at {when}", "l", when, 7)
    ask_epoch("empty, latest", "l", -1, 7, 1)
    ask_epoch("empty, greatest time", "l", -3, 7, 1)
    ask_epoch("empty, at 0", "l", 0, 7, 1)
    ask_epoch("no such partition", "l", -1, 7, 5)
    ask_epoch("no such topic", "missing", -1, 7)
    ask_epoch("an epoch to come", "l", -1, 7, epoch=9)


def deleted(ask: SendRequest) -> None:
    ask("made", create(topic("d", 2), topic("compacted", 1, 1, cleanup_policy="compact")), 2)
    for name in ("d", "compacted"):
        batch = build_batch(
            [Record(offset=0, timestamp=FIRST_MS, key=b"k", value=b"v", headers=())] * 4
        )
        ask(f"filled {name}", produce(name, batch), 9)

    def delete(name: str, offset: int, partition: int = 0) -> None:
        part = DeleteRecordsPartition(partition_index=partition, offset=offset)
        topics = [DeleteRecordsTopic(name=name, partitions=[part])]
        request = DeleteRecordsRequest(topics=topics, timeout_ms=TIMEOUT_MS)
        ask(f"{name} {partition} before {offset}", request, 2)

    for offset in (2, 1, 0, 5, -1, -2):
        delete("d", offset)
    delete("d", 0, 1)
    delete("d", 1, 1)
    delete("d", 1, 7)
    delete("missing", 1)
    delete("compacted", 2)
    ask("what is left", fetch("d", 0), 12)
    ask("what is left, from its end", fetch("d", 4), 12)


def epoch_ends(ask: SendRequest) -> None:
    ask("made", create(topic("e", 2)), 2)
    ask("filled", produce("e", build_batch(records(b"a", b"b"))), 9)

    def ask_epoch(label: str, name: str, version: int, **fields: Any) -> None:
        topics = [OffsetForLeaderTopic(topic=name, partitions=[OffsetForLeaderPartition(**fields)])]
        ask(label, OffsetForLeaderEpochRequest(replica_id=-1, topics=topics), version)

    for version in (2, 3, 4):
        for epoch in (-2, -1, 0, 1, 2**31 - 1):
            ask_epoch(f"epoch {epoch}, version {version}", "e", version, leader_epoch=epoch)
    for current in (-2, -1, 0, 1):
        ask_epoch(f"current epoch {current}", "e", 4, current_leader_epoch=current)
    ask_epoch("empty", "e", 4, partition=1)
    ask_epoch("no such partition", "e", 4, partition=7)
    ask_epoch("no such topic", "missing", 4)
    ask_epoch("no such topic, current epoch 5", "missing", 4, current_leader_epoch=5)


CONVERSATIONS: Final = (
    produced,
    more_replicas_demanded,
    bad_records,
    early,
    idempotent,
    fetched,
    looked_up,
    deleted,
    epoch_ends,
)
