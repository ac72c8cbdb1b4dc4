"""Kafka Streams counts words with `exactly_once_v2` and is killed while it works.

`--broker kafka` runs the same test against Apache Kafka.
"""

from __future__ import annotations

import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import IO

import pytest
from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from system_tests.conftest import without_toolchain
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.jars import ToolchainMissing, java_driver
from system_tests.harness.jvm import short_jvm
from system_tests.harness.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.java

Names = Callable[[str], str]
PARTITIONS = 2
WORDS = 17
WORDS_PER_LINE = 4
LINES_AT_ONCE = 20
END = "end"
COUNTS_PER_KILL = 800
"""Counts that are committed after a start before the application is killed."""


class WordCount:
    """The application: one process at a time, which can be killed and started again."""

    def __init__(self, class_path: str, bootstrap_servers: str, name: str, log: IO[bytes]) -> None:
        self._class_path = class_path
        self._arguments = (bootstrap_servers, name, f"{name}-lines", f"{name}-counts")
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, folder: Path) -> None:
        """Start it with a folder of its state, which a predecessor may have used."""
        command = [
            *short_jvm("-Xmx256m"),
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            *("-cp", self._class_path, "WordCount", *self._arguments, str(folder)),
        ]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def has_failed(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None


class Lines:
    """Produces lines of words, a few at a time, and knows how often each word was in them."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap_servers})
        self._topic = topic
        self._numbers = count()
        self.counts: Counter[str] = Counter()

    def produce_some(self) -> None:
        for number in range(LINES_AT_ONCE):
            words = [f"w{next(self._numbers) % WORDS}" for _ in range(WORDS_PER_LINE)]
            self._producer.produce(self._topic, " ".join(words), partition=number % PARTITIONS)
            self.counts.update(words)
        assert self._producer.flush(PATIENCE_S) == 0


class Counts:
    """Reads the topic of counts from its start, with one isolation level."""

    def __init__(self, bootstrap_servers: str, topic: str, isolation_level: str) -> None:
        self._consumer = Consumer({
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"{topic}-reader",
            "enable.auto.commit": False,
            "isolation.level": isolation_level,
        })  # fmt: skip
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
        self.read: list[tuple[str, int]] = []

    def read_more(self) -> int:
        """Read what is there, for a moment; return how many counts were read in all."""
        for message in self._consumer.consume(1000, 0.1):
            assert message.error() is None, message.error()
            self.read.append(((message.key() or b"").decode(), int(message.value() or b"")))
        return len(self.read)

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def name(broker: RunningBroker, fresh: Names) -> str:
    """The name of an application whose topics exist."""
    name = fresh("word-count")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topics = [NewTopic(f"{name}-{which}", PARTITIONS, 1) for which in ("lines", "counts")]
    for future in admin.create_topics(topics).values():
        future.result(PATIENCE_S)
    return name


@pytest.fixture
def application(broker: RunningBroker, name: str, tmp_path: Path) -> Iterator[WordCount]:
    try:
        class_path = java_driver()
    except ToolchainMissing as missing:
        without_toolchain(missing)
        raise
    with (tmp_path / "log").open("wb") as log:
        made = WordCount(class_path, broker.bootstrap_servers, name, log)
        yield made
        made.kill()


def has_open_transaction(bootstrap_servers: str, topic: str) -> bool:
    """Whether the end of a partition for `read_committed` is before its end."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    asked = {TopicPartition(topic, index): OffsetSpec.latest() for index in range(PARTITIONS)}
    ends = [
        {partition: future.result(PATIENCE_S).offset for partition, future in found.items()}
        for found in (
            admin.list_offsets(asked, isolation_level=level)
            for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
        )
    ]
    return ends[0] != ends[1]


def mark_ends(bootstrap_servers: str, topic: str) -> None:
    """Append a record to each partition, after all that the application wrote."""
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for index in range(PARTITIONS):
        producer.produce(topic, "0", END, partition=index)
    assert producer.flush(PATIENCE_S) == 0


def test_words_are_counted_exactly_once_while_application_is_killed(
    broker: RunningBroker, application: WordCount, name: str, tmp_path: Path
) -> None:
    servers, topic = broker.bootstrap_servers, f"{name}-counts"
    lines = Lines(servers, f"{name}-lines")
    committed = Counts(servers, topic, "read_committed")
    uncommitted = Counts(servers, topic, "read_uncommitted")

    def is_in_the_middle(wanted: int) -> bool:
        assert not application.has_failed(), (tmp_path / "log").read_text()
        lines.produce_some()
        return committed.read_more() >= wanted and has_open_transaction(servers, topic)

    # The third one starts on another machine, so to say: without the state, and without the id in
    # it that lets it end the transaction of its predecessor.
    folders = [tmp_path / "first", tmp_path / "first", tmp_path / "second"]
    try:
        for folder in folders:
            application.start(folder)
            wanted = len(committed.read) + COUNTS_PER_KILL
            wait_until(partial(is_in_the_middle, wanted), f"{wanted} counts and more to come")
            application.kill()
        application.start(folders[-1])
        total = lines.counts.total()
        wait_until(lambda: committed.read_more() >= total, f"{total} counts")
        mark_ends(servers, topic)
        wait_until(lambda: committed.read_more() >= total + PARTITIONS, "what follows them")
        wait_until(lambda: uncommitted.read_more() > total + PARTITIONS, "aborted counts")
    finally:
        committed.close()
        uncommitted.close()
    by_word: dict[str, list[int]] = defaultdict(list)
    for word, number in committed.read:
        by_word[word].append(number)
    assert len(by_word.pop(END)) == PARTITIONS
    expected = {word: [*range(1, times + 1)] for word, times in lines.counts.items()}
    assert by_word == expected
