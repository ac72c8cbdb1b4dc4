"""Apache Kafka's own programs read the log's files, and a log can move between the two.

Everything here runs Kafka's classes from its published jars; nothing of minibroker but the storage
package is involved, so a failure is one of file formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.log import Log
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.log.validation import prepare_batch
from minibroker_protocol.compression import Compression
from minibroker_protocol.control_records import EndTransactionMarker
from minibroker_protocol.records import Record, build_batch, iter_batches, iter_records
from system_tests.harness.brokers import format_kafka, launch_kafka, start_kafka, wait_for_port
from system_tests.harness.kafka_tools import KafkaTools

pytestmark = [pytest.mark.java, pytest.mark.minibroker]

NOW_MS = 1_700_000_000_000
PRODUCER_ID = 9
CONFIG = LogConfig(segment_bytes=40_000)

Dump = Callable[..., str]


@pytest.fixture
def dump(kafka_tools: KafkaTools) -> Dump:
    """Run Kafka's dump tool on files, with options; return its output."""

    def run(files: list[Path], *options: str) -> str:
        names = ",".join(map(str, files))
        done = kafka_tools.run("org.apache.kafka.tools.DumpLogSegments", *options, "--files", names)
        assert done.code == 0, done.printed
        return done.printed

    return run


def fill(log: Log, batches: int = 300) -> list[Record]:
    """Append idempotent batches of every codec with jumbled timestamps; returns the records."""
    written: list[Record] = []
    for number in range(batches):
        first = len(written)
        records = [
            Record(
                first + i,
                NOW_MS + number * 10 + i * 37 % 11,
                b"key%d" % (first + i),
                b"value%d " % i * 20,
                (("h", b"x"), ("none", None)),
            )
            for i in range(1 + number % 7)
        ]
        batch = build_batch(
            records,
            compression=Compression(number % len(Compression)),
            producer_id=PRODUCER_ID,
            producer_epoch=1,
            base_sequence=first,
        )
        log.append(batch, now_ms=NOW_MS)
        written += records
    return written


@pytest.fixture
def filled(tmp_path: Path) -> tuple[Path, list[Record]]:
    """The directory of a closed log of several segments, and its records."""
    log = Log.open(tmp_path, "t", 0, CONFIG, now_ms=NOW_MS)
    records = fill(log)
    log.close(now_ms=NOW_MS)
    return Path(log.directory), records


def test_kafka_reads_the_records(dump: Dump, filled: tuple[Path, list[Record]]) -> None:
    directory, records = filled
    files = sorted(directory.glob("*.log"))
    assert len(files) > 1
    printed = dump(files, "--print-data-log", "--deep-iteration")
    found = re.findall(
        r"^\| offset: (\d+) CreateTime: (\d+) .* sequence: (\d+) headerKeys: \[h,none\]"
        r" key: (\S+) payload: (.*)$",
        printed,
        re.MULTILINE,
    )
    assert [(int(o), int(t), int(s), k, v) for o, t, s, k, v in found] == [
        (r.offset, r.timestamp, r.offset, str(r.key or b"", "ascii"), str(r.value or b"", "ascii"))
        for r in records
    ]
    assert "isvalid: false" not in printed
    assert printed.count("isvalid: true") == 300
    for codec in Compression:
        assert f"compresscodec: {codec.name.lower()}" in printed
    # For every file that starts after 0, Kafka's own included, this tool reports that -1 came
    # before.
    gaps = re.findall(r"^ *(-?\d+) is followed by (\d+)", printed, re.MULTILINE)
    assert {(int(one), int(two)) for one, two in gaps} <= {(-1, int(f.stem)) for f in files}


@pytest.mark.parametrize("option", ["--index-sanity-check", "--verify-index-only"])
def test_kafka_accepts_the_indexes(
    dump: Dump, filled: tuple[Path, list[Record]], option: str
) -> None:
    directory, _ = filled
    files = sorted([*directory.glob("*.index"), *directory.glob("*.timeindex")])
    assert all(path.stat().st_size for path in files)
    printed = dump(files, option)
    if option == "--index-sanity-check":
        assert printed.count("passed sanity check") == len(files)
    said = [line for line in printed.splitlines() if not line.startswith("Dumping ")]
    assert all(line.endswith("passed sanity check.") for line in said), printed


def test_kafka_reads_the_index_entries(dump: Dump, filled: tuple[Path, list[Record]]) -> None:
    directory, records = filled
    index, *_ = sorted(directory.glob("*.index"))
    printed = dump([index, index.with_suffix(".timeindex")])
    offsets = re.findall(r"^offset: (\d+) position: (\d+)$", printed, re.MULTILINE)
    times = re.findall(r"^timestamp: (\d+) offset: (\d+)$", printed, re.MULTILINE)
    assert len(offsets) == index.stat().st_size // 8
    assert len(times) == index.with_suffix(".timeindex").stat().st_size // 12
    by_offset = {record.offset: record.timestamp for record in records}
    assert all(int(offset) in by_offset for offset, _ in offsets)
    assert all(int(time) >= by_offset[int(offset)] for time, offset in times)
    assert "mismatch" not in printed.lower()


def test_kafka_reads_the_producers(dump: Dump, filled: tuple[Path, list[Record]]) -> None:
    directory, records = filled
    *_, newest = sorted(directory.glob("*.snapshot"))
    assert int(newest.stem) == len(records)
    printed = dump([newest])
    state = dict(re.findall(r"(\w+): (-?\d+)", printed[printed.index("producerId") :]))
    assert state["producerId"] == str(PRODUCER_ID)
    assert state["producerEpoch"] == "1"
    assert state["lastOffset"] == state["lastSequence"] == str(len(records) - 1)
    assert int(state["lastSequence"]) - int(state["firstSequence"]) == int(state["offsetDelta"])


def contents(log: Log) -> list[Record]:
    found: list[Record] = []
    while (piece := log.read(len(found), 1 << 20)) is not None:
        data = piece.load()
        for position, header in iter_batches(data):
            found += iter_records(data[position : position + header.size])
    return found


def consume(bootstrap: str, topic: str, count: int) -> list[Record]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Record] = []
    try:
        while len(found) < count:
            message = consumer.poll(20)
            assert message is not None, f"only {len(found)} of {count} records came"
            assert message.error() is None, message.error()
            found.append(
                Record(
                    message.offset() or 0,
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    tuple(message.headers() or ()),
                )
            )
    finally:
        consumer.close()
    return found


def produce_with_kafka(bootstrap: str, topic: str) -> int:
    """Create the topic and fill it with an idempotent producer per codec; returns the count."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    for codec in Compression:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec.name.lower(),
                "enable.idempotence": True,
            }
        )
        for number in range(500):
            producer.produce(topic, key=b"%d" % number, value=b"v" * number, partition=0)
        assert producer.flush(20) == 0
    return 500 * len(Compression)


TRANSACTIONS = ["w1", "w2", "commit1", "w1", "abort2", "abort1"]
ROUNDS = 10


def transact(log: Log) -> None:
    """Append transactions of two producers that overlap; the last one stays open."""
    epochs = {1: 0, 2: 0}
    for step in [*TRANSACTIONS * ROUNDS, "w1"]:
        producer_id = int(step[-1])
        if step.startswith("w"):
            epoch = epochs[producer_id]
            guard = log.producers.begin_verification(
                producer_id, epoch, 0, adds=True, now_ms=NOW_MS
            )
            batch = build_batch(
                [Record(timestamp=NOW_MS, value=b"v" * 500)],
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=0,
                transactional=True,
            )
            prepared = prepare_batch(batch, log.config, now_ms=NOW_MS)
            log.append_prepared(prepared, now_ms=NOW_MS, guard=guard)
        else:
            epochs[producer_id] += 1
            marker = EndTransactionMarker(step.startswith("commit"), coordinator_epoch=3)
            log.append_marker(
                *(producer_id, epochs[producer_id], marker), transaction_version=2, now_ms=NOW_MS
            )


def test_kafka_reads_markers_and_aborted_transactions(dump: Dump, tmp_path: Path) -> None:
    log = Log.open(tmp_path, "t", 0, LogConfig(segment_bytes=4000), now_ms=NOW_MS)
    transact(log)
    aborted = [
        each
        for segment in log.segments
        for each in segment.aborted_transactions(0, log.log_end_offset)[0]
    ]
    log.close(now_ms=NOW_MS)
    directory = Path(log.directory)
    printed = dump(sorted(directory.glob("*.log")), "--deep-iteration", "--print-data-log")
    assert printed.count("isTransactional: true") == ROUNDS * len(TRANSACTIONS) + 1
    assert printed.count("endTxnMarker: COMMIT coordinatorEpoch: 3") == ROUNDS
    assert printed.count("endTxnMarker: ABORT coordinatorEpoch: 3") == 2 * ROUNDS
    indexes = sorted(directory.glob("*.txnindex"))
    assert len(indexes) > 1
    found = re.findall(
        r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)",
        dump(indexes),
    )
    assert [tuple(map(int, entry)) for entry in found] == aborted
    *_, newest = sorted(directory.glob("*.snapshot"))
    states = re.findall(
        r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+)"
        r" currentTxnFirstOffset: (\S+)",
        dump([newest]),
    )
    assert {(state[0], state[2]) for state in states} == {("1", "3"), ("2", "3")}
    last_offset = str(len(TRANSACTIONS) * ROUNDS)
    assert {re.sub(r"\D", "", state[3]) for state in states} == {last_offset, ""}


@pytest.mark.slow
def test_transactions_written_by_kafka_are_recovered_as_kafka_has_them(
    kafka_libs: Path, tmp_path: Path
) -> None:
    with start_kafka(tmp_path / "kafka") as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(20)
        for producer in ("a", "b"):
            transact_with_kafka(kafka.bootstrap_servers, producer)
        theirs = consume(kafka.bootstrap_servers, "t", 60)
    directory = tmp_path / "kafka" / "t-0"
    written = [path.read_bytes() for path in sorted(directory.glob("*.txnindex"))]
    assert any(written)
    log = Log.open(tmp_path / "kafka", "t", 0, LogConfig(), now_ms=theirs[-1].timestamp)
    partition = Partition(log, bytes(16), broker_id=1, leader_id=1, leader_epoch=0)
    assert partition.last_stable_offset == log.log_end_offset
    _, aborted = partition.read_committed(0, 1 << 20)
    assert len(aborted) == 6
    log.close(now_ms=NOW_MS)
    assert [path.read_bytes() for path in sorted(directory.glob("*.txnindex"))] == written


def transact_with_kafka(bootstrap: str, transactional_id: str) -> None:
    """Write six transactions of ten records; every second one is aborted."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0}
    )
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        for record in range(10):
            producer.produce("t", value=f"{transactional_id}-{number}-{record}".encode())
        assert producer.flush(20) == 0
        if number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


@pytest.mark.slow
def test_log_written_by_kafka_is_read_appended_and_read_back(
    kafka_libs: Path, tmp_path: Path
) -> None:
    properties, port = format_kafka(tmp_path / "kafka")
    with launch_kafka(properties, port) as first:
        wait_for_port(first)
        count = produce_with_kafka(first.bootstrap_servers, "t")
        theirs = consume(first.bootstrap_servers, "t", count)
    log = Log.open(tmp_path / "kafka", "t", 0, CONFIG, now_ms=theirs[-1].timestamp)
    assert contents(log) == theirs
    assert (log.truncation, len(log.producers.producers)) == (None, len(Compression))
    ours = [record._replace(offset=record.offset + count) for record in fill(log)]
    assert len(log.segments) > 1
    log.close(now_ms=NOW_MS)
    with launch_kafka(properties, port) as second:
        wait_for_port(second)
        assert consume(second.bootstrap_servers, "t", count + len(ours)) == theirs + ours
