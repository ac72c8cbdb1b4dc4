"""Processes of the broker die while share consumers accept records: none is lost or comes again."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Message, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from system_tests.faults.conftest import Starter
from system_tests.faults.killing import ROLES, kill, kill_all
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import ask, processes, wait_ready
from system_tests.harness.waiting import wait_until

pytestmark = pytest.mark.minibroker

SEED = 20_261_128
GROUP, TOPIC = "packers", "jobs"
PARTITIONS = 3
RECORDS = 30
"""Records that are produced at a time."""
PROGRESS_MIN = 60
"""Records that must be accepted after a kill before the next one."""


class Jobs:
    """The records of a run: which were produced, and which the broker has confirmed as accepted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.produced: set[str] = set()
        self.acknowledged: set[str] = set()
        """Whose acceptance was sent. After a kill it is unknown whether it counts."""
        self.accepted: set[str] = set()
        self.failure: BaseException | None = None

    def accept(self, values: list[str]) -> None:
        """The broker has confirmed that these are accepted."""
        with self._lock:
            twice = self.accepted.intersection(values)
            assert not twice, f"accepted twice: {sorted(twice)}"
            self.accepted.update(values)

    def check_new(self, values: list[str]) -> None:
        """These have come; an accepted record must not."""
        with self._lock:
            again = self.accepted.intersection(values)
        assert not again, f"came again after they were accepted: {sorted(again)}"


class Worker:
    """A thread that works until it is stopped; its failure is that of the run."""

    def __init__(self, jobs: Jobs, work: Callable[[Jobs, threading.Event], None]) -> None:
        self._jobs, self._work = jobs, work
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work(self._jobs, self._stopping)
        except BaseException as failure:  # noqa: BLE001 - raised again by `wait_progress`
            self._jobs.failure = failure

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "a client did not end"


def produce(bootstrap: str, jobs: Jobs, stopping: threading.Event) -> None:
    """Produce values of which each is different."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    while not stopping.wait(0.05):
        first = len(jobs.produced)
        values = [f"job-{number}" for number in range(first, first + RECORDS)]
        for value in values:
            producer.produce(TOPIC, value)
        assert producer.flush(60) == 0
        jobs.produced.update(values)


def share(bootstrap: str, jobs: Jobs, stopping: threading.Event) -> None:
    """Accept all records that come, and note those whose acceptance is confirmed."""
    consumer = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "share.acknowledgement.mode": "explicit",
            "retry.backoff.max.ms": 200,
        }
    )
    consumer.subscribe([TOPIC])
    while not stopping.is_set():
        messages = [message for message in consumer.poll(0.2) if message.error() is None]
        jobs.check_new([value_of(message) for message in messages])
        for message in messages:
            consumer.acknowledge(message)
        if messages:
            accept(consumer, jobs, messages)
    consumer.close()


def accept(consumer: ShareConsumer, jobs: Jobs, messages: list[Message]) -> None:
    """Send the acknowledgements, and note those that the broker has confirmed."""
    jobs.acknowledged.update(map(value_of, messages))
    try:
        results = consumer.commit_sync(10)
    except KafkaException:
        return
    confirmed = {at.partition for at, error in results.items() if error is None}
    jobs.accept([value_of(each) for each in messages if each.partition() in confirmed])


def value_of(message: Message) -> str:
    return (message.value() or b"").decode()


def wait_progress(jobs: Jobs, records: int = PROGRESS_MIN) -> None:
    """Wait until so many more records are accepted."""
    before = len(jobs.accepted)

    def has_progressed() -> bool:
        if jobs.failure is not None:
            raise jobs.failure
        return len(jobs.accepted) >= before + records

    wait_until(has_progressed, "records to be accepted")


def prepare(broker: RunningBroker) -> None:
    """Create the topic, and let the group begin with its first record."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(20)
    entry = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(20)


@pytest.mark.parametrize("whole", [False, True], ids=["processes", "broker"])
def test_no_job_is_lost_or_comes_again(
    start: Starter, fixed_listener: str, tmp_path: Path, whole: bool
) -> None:
    print(f"seed {SEED}")
    dice = random.Random(SEED)
    settings = {"num.io.threads": "2", "group.share.record.lock.duration.ms": "15000"}
    broker = start(data_dir=tmp_path, listener=fixed_listener, settings=settings)
    prepare(broker)
    jobs, bootstrap = Jobs(), broker.bootstrap_servers
    producer = Worker(jobs, lambda *run: produce(bootstrap, *run))
    consumers = [Worker(jobs, lambda *run: share(bootstrap, *run)) for _ in range(2)]
    wait_progress(jobs)
    names = sorted(name for name in processes(broker) if name.split("-")[0] in ROLES)
    for _ in range(3 if whole else 6):
        if whole:
            kill_all(broker)
            broker = start(data_dir=tmp_path, listener=fixed_listener, settings=settings)
        else:
            kill(broker, dice.choice(names))
        wait_progress(jobs)
    wait_ready(broker)
    producer.stop()

    def are_all_accepted() -> bool:
        wait_progress(jobs, 0)
        partitions = ask(broker, "GET", f"/v1/groups/{GROUP}")["share_partitions"]
        return jobs.acknowledged >= jobs.produced and not any(
            each["available"] or each["acquired"] for each in partitions
        )

    wait_until(are_all_accepted, "the rest of the records")
    for consumer in consumers:
        consumer.stop()
    wait_progress(jobs, 0)
