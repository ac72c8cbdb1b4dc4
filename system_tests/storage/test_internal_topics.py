"""Kafka's console consumer and kafka-dump-log.sh read what a broker stores, also when compacted.

The broker coordinates a group and transactions, and has a compacted topic that was written with
transactions. All files are those of the running broker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from system_tests.harness.brokers import RunningBroker, start_minibroker
from system_tests.harness.control import ask
from system_tests.harness.kafka_tools import KafkaTools
from system_tests.harness.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.java, pytest.mark.minibroker]

FORMATTERS = "org.apache.kafka.tools.consumer"
SETTINGS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
COMPACTED = NewTopic(
    "kept",
    1,
    1,
    config={
        "cleanup.policy": "compact",
        "segment.bytes": "16384",
        "index.interval.bytes": "256",
        # Until the control API asks for it, nothing is compacted.
        "min.cleanable.dirty.ratio": "1",
    },
)
KEYS = 20
ROUNDS = 30
WITH_RECORDS = ("--print-data-log", "--deep-iteration")
ABORTED_EACH = 3
"""Every third transaction is aborted."""


class Stored:
    """A broker, its directory and Kafka's programs."""

    def __init__(self, broker: RunningBroker, tools: KafkaTools) -> None:
        self.broker = broker
        self.servers = broker.bootstrap_servers
        self._tools = tools

    def files(self, topic: str, kind: str) -> list[Path]:
        assert self.broker.data_dir is not None
        return sorted((self.broker.data_dir / f"{topic}-0").glob(kind))

    def run(self, program: str, *words: str) -> list[str]:
        done = self._tools.run(program, *words)
        assert done.code == 0, done.lines
        return done.lines

    def dump(self, topic: str, kind: str, *options: str) -> list[str]:
        """What kafka-dump-log.sh prints about files of a topic."""
        files = self.files(topic, kind)
        assert files
        names = ",".join(map(str, files))
        return self.run("org.apache.kafka.tools.DumpLogSegments", *options, "--files", names)

    def decoded(self, topic: str, option: str) -> list[tuple[dict[str, Any], Any]]:
        """Keys and values of an internal topic's records in its files, in order."""
        lines = self.dump(topic, "*.log", option)
        assert not [line for line in lines if "isvalid: false" in line]
        found = [re.search(r"key: (\{.*\}) payload: (.*)$", line) for line in lines]
        return [(json.loads(each[1])["data"], _data(each[2])) for each in found if each]

    def formatted(self, topic: str, formatter: str) -> list[tuple[dict[str, Any], Any]]:
        """Keys and values of an internal topic, printed by kafka-console-consumer.sh."""
        printed = self.run(
            f"{FORMATTERS}.ConsoleConsumer",
            *("--bootstrap-server", self.servers, "--topic", topic, "--partition", "0"),
            *("--offset", "earliest", "--formatter", f"{FORMATTERS}.{formatter}"),
            *("--timeout-ms", "2000"),
        )
        text = "".join(line for line in printed if line.startswith("{"))
        decoder = json.JSONDecoder()
        found = []
        while text.startswith("{"):
            record, end = decoder.raw_decode(text)
            found.append((record["key"]["data"], (record["value"] or {}).get("data")))
            text = text[end:]
        return found


def _data(payload: str) -> Any:
    return json.loads(payload)["data"] if payload.startswith("{") else None


def transact(servers: str) -> dict[str, str]:
    """Write the compacted topic in transactions; return the last committed value of each key."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "writer"})
    producer.init_transactions(PATIENCE_S)
    kept: dict[str, str] = {}
    for number in range(ROUNDS):
        producer.begin_transaction()
        values = {f"k{key}": f"{number} " + "x" * 100 for key in range(number % 2, KEYS)}
        for key, value in values.items():
            producer.produce(COMPACTED.topic, value, key, partition=0)
        assert producer.flush(PATIENCE_S) == 0
        if number % ABORTED_EACH == 0:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
            kept |= values
    return kept


def commit_offsets(servers: str) -> None:
    """Commit offsets of a group, first by its member and then in a transaction."""
    consumer = Consumer({
        "bootstrap.servers": servers,
        "group.id": "readers",
        "enable.auto.commit": False,
    })  # fmt: skip
    consumer.subscribe([COMPACTED.topic])
    wait_until(lambda: consumer.poll(0.1) is None and consumer.assignment(), "an assignment")
    for offset in (3, 5):
        consumer.commit(offsets=[TopicPartition(COMPACTED.topic, 0, offset)], asynchronous=False)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "copier"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        [TopicPartition(COMPACTED.topic, 0, 7)], consumer.consumer_group_metadata(), PATIENCE_S
    )
    producer.commit_transaction(PATIENCE_S)
    consumer.close()


@pytest.fixture(scope="module")
def stored(kafka_tools: KafkaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    directory = tmp_path_factory.mktemp("stored")
    with start_minibroker(data_dir=directory, settings=SETTINGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([COMPACTED])[COMPACTED.topic].result(PATIENCE_S)
        yield Stored(broker, kafka_tools)


@pytest.fixture(scope="module")
def kept(stored: Stored) -> dict[str, str]:
    """The values that compaction has to keep."""
    return transact(stored.servers)


@pytest.fixture(scope="module")
def committed(stored: Stored) -> None:
    commit_offsets(stored.servers)


def statuses(records: list[tuple[dict[str, Any], Any]]) -> dict[str, list[str]]:
    """The statuses of each transactional id, in order."""
    found: dict[str, list[str]] = {}
    for key, value in records:
        found.setdefault(key["transactionalId"], []).append(value["transactionStatus"])
    return found


@pytest.mark.usefixtures("kept", "committed")
def test_transaction_state_is_decoded_also_when_compacted(stored: Stored) -> None:
    topic = "__transaction_state"
    printed = statuses(stored.formatted(topic, "TransactionLogMessageFormatter"))
    assert printed["copier"] == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]
    assert printed["writer"].count("CompleteAbort") == ROUNDS // ABORTED_EACH
    assert statuses(stored.decoded(topic, "--transaction-log-decoder")) == printed
    ask(stored.broker, "POST", f"/v1/compact/{topic}")
    last = {name: [found[-1]] for name, found in printed.items()}
    assert statuses(stored.decoded(topic, "--transaction-log-decoder")) == last
    assert statuses(stored.formatted(topic, "TransactionLogMessageFormatter")) == last


@pytest.mark.usefixtures("committed")
def test_offsets_of_groups_are_decoded_also_when_compacted(stored: Stored) -> None:
    topic = "__consumer_offsets"
    key = {"group": "readers", "topic": COMPACTED.topic, "partition": 0}

    def offsets(records: list[tuple[dict[str, Any], Any]]) -> list[int]:
        return [value["offset"] for each, value in records if each == key]

    assert offsets(stored.formatted(topic, "OffsetsMessageFormatter")) == [3, 5, 7]
    assert offsets(stored.decoded(topic, "--offsets-decoder")) == [3, 5, 7]
    groups = stored.formatted(topic, "GroupMetadataMessageFormatter")
    generations = [value["generation"] for each, value in groups if each == {"group": "readers"}]
    assert generations == [1, 2]
    [member] = groups[0][1]["members"]
    assert member["clientId"] == "rdkafka"
    assert groups[1][1]["members"] == []
    ask(stored.broker, "POST", f"/v1/compact/{topic}")
    records = stored.decoded(topic, "--offsets-decoder")
    assert offsets(records) == [7]
    left = [value["generation"] for each, value in records if each == {"group": "readers"}]
    assert left == [2]
    assert offsets(stored.formatted(topic, "OffsetsMessageFormatter")) == [7]


def test_files_of_log_are_read_also_when_compacted(stored: Stored, kept: dict[str, str]) -> None:
    topic = COMPACTED.topic
    aborted = ROUNDS // ABORTED_EACH
    before = stored.dump(topic, "*.log", *WITH_RECORDS)
    assert count("endTxnMarker: ABORT", before) == aborted
    assert count("isvalid: true", before) == 2 * ROUNDS
    # Those of the newest segment may not be written yet.
    assert 0 < count("firstOffset: ", stored.dump(topic, "*.txnindex")) <= aborted
    check_files_beside_log(stored)
    ask(stored.broker, "POST", f"/v1/compact/{topic}")
    after = stored.dump(topic, "*.log", *WITH_RECORDS)
    found = [re.search(r"offset: \d+ .* key: (\w+) payload: (.*)$", line) for line in after]
    values = [(each[1], each[2]) for each in found if each is not None]
    assert dict(values) == kept
    assert len(values) == len(kept)
    assert count("isvalid: true", after) < count("isvalid: true", before)
    assert count("isvalid: false", [*before, *after]) == 0
    # An entry is removed when the batches of its transaction are gone.
    assert count("firstOffset: ", stored.dump(topic, "*.txnindex")) == aborted
    check_files_beside_log(stored)
    ask(stored.broker, "POST", f"/v1/compact/{topic}")
    assert count("firstOffset: ", stored.dump(topic, "*.txnindex")) == 0


def check_files_beside_log(stored: Stored) -> None:
    """Kafka accepts the indexes, and reads the producers and the leader epochs."""
    topic = COMPACTED.topic
    for kind in ("*.index", "*.timeindex"):
        filled = [file for file in stored.files(topic, kind) if file.stat().st_size]
        checked = stored.dump(topic, kind, "--index-sanity-check")
        assert count("passed sanity check", checked) >= len(filled) > 1
        said = stored.dump(topic, kind, "--verify-index-only")
        assert all(line.startswith("Dumping ") or line.endswith("is empty.") for line in said)
    producers = stored.dump(topic, "*.snapshot")
    assert "currentTxnFirstOffset: OptionalLong.empty" in producers[-1]
    epochs = stored.run("LeaderEpochs", *map(str, stored.files(topic, "leader-epoch-checkpoint")))
    assert epochs == ["0 0"]


def count(text: str, lines: list[str]) -> int:
    return sum(text in line for line in lines)
