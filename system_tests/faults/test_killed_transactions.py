"""Processes of the broker die while transactions are written: none is lost, doubled or torn."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from system_tests.faults.conftest import Starter
from system_tests.faults.killing import ROLES, kill, kill_all
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import processes, wait_ready
from system_tests.harness.waiting import wait_until

pytestmark = pytest.mark.minibroker

SEED = 20_261_125
TOPIC = "t"
PARTITIONS = 3
RECORDS = 2 * PARTITIONS
TRANSACTIONS_MIN = 3
"""Transactions that must complete after a kill before the next one."""


class TransactionalWriter:
    """Writes numbered transactions in a thread, and notes how each of them ended."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "linger.ms": 0,
                "retry.backoff.max.ms": 200,
            }
        )
        self._id = transactional_id
        self._dice = random.Random(SEED)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.committed: list[str] = []
        self.aborted: list[str] = []
        self.failure: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._stopping.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "a transaction did not complete"
        if self.failure is not None:
            raise self.failure

    @property
    def completed(self) -> int:
        return len(self.committed) + len(self.aborted)

    def _run(self) -> None:
        try:
            _until_done(self._producer.init_transactions)
            while not self._stopping.is_set():
                self._write(f"{self._id}/{self.completed}")
        except Exception as error:  # noqa: BLE001 - raised again by `finish`
            self.failure = error

    def _write(self, name: str) -> None:
        self._producer.begin_transaction()
        for number in range(RECORDS):
            self._producer.produce(
                TOPIC, value=f"{name}/{number}".encode(), partition=number % PARTITIONS
            )
        wanted = self._dice.random() < 0.7
        self._producer.flush(60)
        if wanted and _until_done(self._producer.commit_transaction):
            self.committed.append(name)
        else:
            _until_done(self._producer.abort_transaction)
            self.aborted.append(name)


def _until_done(step: Callable[[float], None]) -> bool:
    """Repeat a step while it may be; return whether it succeeded, or the transaction must abort."""
    while True:
        try:
            step(60)
        except KafkaException as error:
            reason = error.args[0]
            if reason.retriable():
                continue
            if reason.txn_requires_abort():
                return False
            raise
        return True


def read_committed(bootstrap: str) -> list[str]:
    """Return the values of all committed records."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    values, ended = list[str](), set[int]()
    try:
        while len(ended) < PARTITIONS:
            message = consumer.poll(30)
            assert message is not None, f"no answer; partitions {ended} were read to their ends"
            if message.error() is not None:
                ended.add(message.partition() or 0)
            else:
                values.append((message.value() or b"").decode())
    finally:
        consumer.close()
    return values


def check(broker: RunningBroker, writers: list[TransactionalWriter]) -> None:
    """Every committed transaction is there once and whole, and nothing of any other."""
    counts = Counter(read_committed(broker.bootstrap_servers))
    expected = [
        f"{name}/{number}"
        for writer in writers
        for name in writer.committed
        for number in range(RECORDS)
    ]
    assert sum(len(writer.committed) for writer in writers) > TRANSACTIONS_MIN
    assert counts == Counter(expected)


@pytest.fixture
def begin() -> Callable[[RunningBroker], list[TransactionalWriter]]:
    """Create the topic and start two writers."""

    def start_writers(broker: RunningBroker) -> list[TransactionalWriter]:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(20)
        writers = [TransactionalWriter(broker.bootstrap_servers, name) for name in ("a", "b")]
        for writer in writers:
            writer.start()
        wait_progress(writers)
        return writers

    return start_writers


def wait_progress(writers: list[TransactionalWriter]) -> None:
    before = [writer.completed for writer in writers]

    def is_ahead() -> bool:
        for writer in writers:
            if writer.failure is not None:
                raise writer.failure
        return all(
            writer.completed >= start + TRANSACTIONS_MIN
            for writer, start in zip(writers, before, strict=True)
        )

    wait_until(is_ahead, "transactions to complete")


Begin = Callable[[RunningBroker], list[TransactionalWriter]]


def test_processes_die_in_any_order_and_no_transaction_is_torn(
    start: Starter, begin: Begin
) -> None:
    print(f"seed {SEED}")
    dice = random.Random(SEED)
    broker = start("--set", "num.io.threads=2")
    writers = begin(broker)
    names = sorted(name for name in processes(broker) if name.split("-")[0] in ROLES)
    for _ in range(8):
        kill(broker, dice.choice(names))
        wait_progress(writers)
    wait_ready(broker)
    for writer in writers:
        writer.finish()
    check(broker, writers)


def test_killed_broker_continues_open_transactions(
    start: Starter, begin: Begin, fixed_listener: str, tmp_path: Path
) -> None:
    settings = {"num.io.threads": "2"}
    broker = start(data_dir=tmp_path, listener=fixed_listener, settings=settings)
    writers = begin(broker)
    for _ in range(3):
        kill_all(broker)
        broker = start(data_dir=tmp_path, listener=fixed_listener, settings=settings)
        wait_progress(writers)
    for writer in writers:
        writer.finish()
    check(broker, writers)
