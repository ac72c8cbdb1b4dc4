"""Real clients that work in groups until they are stopped, and count what they do.

Owns their threads and processes: a producer, members of a consumer group (KIP-848) and of a share
group (KIP-932) of librdkafka, a share consumer of Java, Kafka Streams with a streams group
(KIP-1071), and a classic group that reads what it has counted. It must never measure the broker.
Invariants: a failure of a client ends the run with its reason; members of librdkafka leave and join
again all the time, so groups never stop rebalancing.
"""

from __future__ import annotations

import random
import subprocess
import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic

from system_tests.harness.brokers import RunningBroker
from system_tests.harness.jars import java_driver
from system_tests.harness.jvm import short_jvm
from system_tests.harness.line_process import LineProcess
from system_tests.harness.waiting import PATIENCE_S

PARTITIONS: Final = 2
LINES: Final = "lines"
COUNTS: Final = "counts"
JOBS: Final = "jobs"
APPLICATION: Final = "word-count"
WORDS: Final = [f"w{number}" for number in range(10)]
RECORDS_PER_S: Final = 50
MEMBERS: Final = 2
"""Members of librdkafka in each group."""
LIFE_POLLS: Final = (5, 40)
"""How often a member polls before it leaves: a random number in this range."""
POLL_S: Final = 0.1


class Worker:
    """A thread that works until it is stopped."""

    def __init__(self, name: str, broker: RunningBroker) -> None:
        self.name = name
        self.done = 0
        """Records that were produced, committed or acknowledged."""
        self.failure: BaseException | None = None
        self.servers = {"bootstrap.servers": broker.bootstrap_servers}
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @abstractmethod
    def work(self) -> None:
        """Work for a while."""

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.work()
        except BaseException as failure:  # noqa: BLE001 (raised by ``check``)
            self.failure = failure

    def check(self) -> None:
        """Raise what has ended the worker."""
        if self.failure is not None:
            raise AssertionError(f"{self.name} failed") from self.failure

    def stop(self) -> None:
        """Stop the thread, and wait for its end."""
        self.stopping.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.name} did not end"


class RecordProducer(Worker):
    """Produces lines of three words, and as many jobs."""

    def work(self) -> None:
        producer = Producer(self.servers)
        while not self.stopping.wait(1 / RECORDS_PER_S):
            producer.produce(LINES, " ".join(random.sample(WORDS, 3)))
            producer.produce(JOBS, f"job-{self.done}")
            producer.poll(0)
            self.done += 1
        assert producer.flush(PATIENCE_S) == 0


class GroupMember(Worker):
    """A member of the consumer group, which commits after each poll."""

    def work(self) -> None:
        consumer = Consumer({
            **self.servers,
            "group.id": "consumer-group",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        })  # fmt: skip
        consumer.subscribe([LINES])
        for _ in range(random.randint(*LIFE_POLLS)):
            messages = consumer.consume(100, POLL_S)
            if messages and not any(message.error() for message in messages):
                consumer.commit(asynchronous=True)
                self.done += len(messages)
        consumer.close()


class ShareMember(Worker):
    """A member of the share group, which accepts with each poll what it has polled before."""

    def work(self) -> None:
        consumer = ShareConsumer({**self.servers, "group.id": "share-group"})
        consumer.subscribe([JOBS])
        for _ in range(random.randint(*LIFE_POLLS)):
            self.done += len(consumer.poll(POLL_S) or ())
        consumer.close()


class JavaShareMember(Worker):
    """A share consumer of Java, which accepts each record explicitly."""

    def work(self) -> None:
        command = [*short_jvm("-Xmx128m"), "-cp", java_driver(), "ShareClient"]
        process = LineProcess([*command, self.servers["bootstrap.servers"], "share-group", JOBS])
        try:
            while not self.stopping.is_set():
                jobs = [word.split("/")[0] for word in process.ask("poll 200").split()]
                if jobs:
                    process.ask("ack ACCEPT " + " ".join(jobs))
                    process.ask("commit")
                    self.done += len(jobs)
        finally:
            process.close()


class CountReader(Worker):
    """Reads what Kafka Streams has counted, as the only member of a classic group."""

    def work(self) -> None:
        consumer = Consumer({
            **self.servers,
            "group.id": "classic-group",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 200,
        })  # fmt: skip
        consumer.subscribe([COUNTS])
        while not self.stopping.is_set():
            self.done += len(consumer.consume(100, POLL_S))
        consumer.close()


@contextmanager
def word_count(broker: RunningBroker, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Kafka Streams that counts the words of the lines, as the only member of a streams group."""
    command = [
        *short_jvm("-Xmx192m"),
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        *("-cp", java_driver(), "WordCount", broker.bootstrap_servers, APPLICATION),
        *(LINES, COUNTS, str(folder / "state"), "group.protocol=streams"),
        *("consumer.group.instance.id=", "processing.guarantee=at_least_once"),
    ]
    with (folder / "streams.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait(PATIENCE_S)


@contextmanager
def working_members(broker: RunningBroker, folder: Path) -> Iterator[list[Worker]]:
    """All clients at work; they are stopped at the end."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topics = [NewTopic(name, PARTITIONS, 1) for name in (LINES, JOBS, COUNTS)]
    for future in admin.create_topics(topics).values():
        future.result(PATIENCE_S)
    with ExitStack() as stack:
        stack.enter_context(word_count(broker, folder))
        workers: list[Worker] = [
            RecordProducer("the producer", broker),
            CountReader("the reader of counts", broker),
            JavaShareMember("the share consumer of Java", broker),
            *(GroupMember(f"consumer {number}", broker) for number in range(MEMBERS)),
            *(ShareMember(f"share consumer {number}", broker) for number in range(MEMBERS)),
        ]
        for worker in workers:
            stack.callback(worker.stop)
        yield workers
