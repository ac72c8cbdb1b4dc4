"""A disk without space: said once, shown, survived, and over as soon as there is room."""

from __future__ import annotations

import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from system_tests.faults.conftest import Starter
from system_tests.harness.brokers import RunningBroker, StartFailed, start_minibroker
from system_tests.harness.control import ask, processes
from system_tests.harness.waiting import wait_until

pytestmark = pytest.mark.minibroker

Names = Callable[[str], str]
DISK_BYTES = 8 * 1024 * 1024
RECORD = os.urandom(100_000)
REBALANCES_MAX = 30


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory with a few megabytes, as containers have for ``/dev/shm``."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    disk = tmp_path / "disk"
    disk.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)]
    subprocess.run(["mount", *options], check=True)
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Use up the last byte of a disk; returns the file that takes it."""
    filler = disk / "filler"
    with suppress(OSError), open(filler, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filler


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Let no file of a directory be opened for writing; those that are open stay writable."""
    subprocess.run(["mount", "--bind", str(directory), str(directory)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(directory)], check=True)
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def produced(broker: RunningBroker, topic: str, count: int) -> int:
    """Produce records one by one; returns how many were acknowledged before the first error."""
    failed: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "message.timeout.ms": 3000,
            "linger.ms": 0,
        }
    )
    for done in range(count):
        producer.produce(
            topic, RECORD, on_delivery=lambda error, _: failed.append(error) if error else None
        )
        producer.flush(10)
        if failed:
            return done
    return count


def filled(broker: RunningBroker, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    return produced(broker, topic, DISK_BYTES // len(RECORD) + 1)


def kill_workers(broker: RunningBroker) -> None:
    for name, process in processes(broker).items():
        if name.startswith("worker") and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)


def metrics(broker: RunningBroker) -> str:
    assert broker.control_url is not None
    with urllib.request.urlopen(broker.control_url.rstrip("/") + "/metrics") as answer:
        return str(answer.read().decode())


def conditions(broker: RunningBroker) -> list[str]:
    return [each["kind"] for each in ask(broker, "GET", "/v1/health")["conditions"]]


def test_appends_fail_visibly_and_resume_by_themselves(
    start: Starter, fresh: Names, small_disk: Path
) -> None:
    broker, big, small = start(data_dir=small_disk / "data"), fresh("big"), fresh("small")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(small, 1, 1)])[small].result()
    assert 0 < filled(broker, big) < DISK_BYTES // len(RECORD) + 1
    assert produced(broker, small, 3) == 0
    health = ask(broker, "GET", "/v1/health")
    assert (health["ready"], health["status"]) == (True, "degraded")
    assert {each["kind"] for each in health["conditions"]} == {"storage_failed"}
    assert "No space left on device" in health["conditions"][0]["text"]
    workers = len(health["conditions"])
    assert broker.printed().count("storage cannot be written") == workers
    assert 'minibroker_storage_errors_total{error="ENOSPC"}' in metrics(broker)

    with pytest.raises(KafkaException, match=r"bytes, and .* are free"):
        admin.create_topics([NewTopic("refused", 1, 1)])["refused"].result()
    assert "refused" not in admin.list_topics(timeout=10).topics
    admin.delete_topics([big])[big].result()
    wait_until(lambda: not conditions(broker), "the condition to end")
    assert produced(broker, small, 3) == 3
    assert ask(broker, "GET", "/v1/health")["status"] == "ready"


def test_groups_do_not_rebalance_over_and_over(
    start: Starter, fresh: Names, small_disk: Path
) -> None:
    broker, topic, group = start(data_dir=small_disk / "data"), fresh("t"), fresh("g")
    filled(broker, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    for _ in range(30):
        consumer.poll(0.1)
    joins = sum(
        float(line.rpartition(" ")[2])
        for line in metrics(broker).splitlines()
        if line.startswith('minibroker_requests_total{api="JoinGroup"')
    )
    assert 0 < joins < REBALANCES_MAX
    consumer.close()


def test_full_disk_that_only_the_controller_meets_is_shown_and_ends(
    start: Starter, fresh: Names, small_disk: Path
) -> None:
    broker, topic = start(data_dir=small_disk / "data"), fresh("t")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    filler = fill(small_disk)
    with pytest.raises(KafkaException, match=r"bytes, and .* are free"):
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    health = ask(broker, "GET", "/v1/health")
    assert (health["status"], health["conditions"][0]["process"]) == ("degraded", "controller")
    assert broker.printed().count("controller ERROR storage cannot be written") == 1
    assert 'minibroker_storage_errors_total{error="ENOSPC"}' in metrics(broker)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "enable.idempotence": True,
            "message.timeout.ms": 60_000,
        }
    )
    delivered: list[object] = []
    producer.produce(topic, b"v", on_delivery=lambda error, _: delivered.append(error))
    wait_until(
        lambda: producer.poll(0.1) or 'api="InitProducerId",result="error"' in metrics(broker),
        "the producer to ask for an id in vain",
    )
    assert "a request handler failed" not in broker.printed()
    filler.unlink()
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    wait_until(lambda: producer.poll(0.1) or delivered, "the record to be delivered")
    assert delivered == [None]
    wait_until(lambda: not conditions(broker), "the condition to end")


def test_worker_killed_on_a_full_disk_serves_its_logs_once_there_is_room(
    start: Starter, fresh: Names, small_disk: Path
) -> None:
    data = small_disk / "data"
    broker, kept, deleted = start(data_dir=data), fresh("kept"), fresh("deleted")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for topic in (kept, deleted):
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
        assert produced(broker, topic, 3) == 3
    filler = fill(small_disk)
    kill_workers(broker)
    reader = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": fresh("g")})
    wait_until(lambda: "storage_failed" in conditions(broker), "the full disk to be met")
    with pytest.raises(KafkaException, match=r"KAFKA_STORAGE_ERROR|disk error"):
        reader.get_watermark_offsets(TopicPartition(kept, 0), timeout=10)
    admin.delete_topics([deleted])[deleted].result()
    wait_until(
        lambda: not [name for name in os.listdir(data) if name.startswith(deleted)],
        "the deleted topic's directory to be gone",
    )
    filler.unlink()
    wait_until(lambda: not conditions(broker), "the condition to end")
    assert reader.get_watermark_offsets(TopicPartition(kept, 0), timeout=10) == (0, 3)
    assert produced(broker, kept, 3) == 3
    reader.close()
    assert "Traceback" not in broker.printed()


def test_groups_of_a_worker_killed_on_a_full_disk_are_loaded_once_there_is_room(
    start: Starter, fresh: Names, small_disk: Path
) -> None:
    broker, topic, group = start(data_dir=small_disk / "data"), fresh("t"), fresh("g")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    assert produced(broker, topic, 3) == 3
    committed = TopicPartition(topic, 0, 2)
    reader = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    assert reader.commit(offsets=[committed], asynchronous=False)[0].error is None
    filler = fill(small_disk)
    kill_workers(broker)
    wait_until(lambda: "groups_not_loaded" in conditions(broker), "the groups to be missed")
    with pytest.raises(KafkaException):
        print(reader.committed([committed], timeout=3))
    filler.unlink()
    wait_until(lambda: not conditions(broker), "the conditions to end")
    assert reader.committed([committed], timeout=10)[0].offset == 2
    reader.close()
    printed = broker.printed()
    assert "Traceback" not in printed
    assert printed.count("groups can't be loaded") == printed.count("all groups are loaded") == 1


def test_read_only_file_system_is_shown_until_it_can_be_written(
    start: Starter, fresh: Names, small_disk: Path
) -> None:
    data = small_disk / "data"
    broker, topic = start(data_dir=data), fresh("t")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    with read_only(data):
        assert produced(broker, topic, 1) == 0
        health = ask(broker, "GET", "/v1/health")
        assert health["status"] == "degraded"
        assert "Read-only file system" in health["conditions"][0]["text"]
        assert 'minibroker_storage_errors_total{error="EROFS"' in metrics(broker)
    wait_until(lambda: not conditions(broker), "the condition to end")
    assert produced(broker, topic, 3) == 3
    assert broker.printed().count("storage cannot be written") == 1


@pytest.mark.parametrize("problem", ["full", "read-only"])
def test_start_on_unwritable_disk_reports_reason(
    start: Starter, small_disk: Path, problem: str
) -> None:
    if problem == "full":
        fill(small_disk)
    with ExitStack() as undone:
        if problem == "read-only":
            undone.enter_context(read_only(small_disk))
        with pytest.raises(StartFailed) as failed:
            start(data_dir=small_disk / "data")
    text = str(failed.value)
    assert "Traceback" not in text
    assert "No space left" in text or "Read-only file system" in text or "is full" in text
    assert str(small_disk / "data") in text


def small_memory_directory(temporary: str) -> list[str]:
    """A command that runs another one as in a container, with this default directory."""
    mounted = f'mount -t tmpfs -o size={DISK_BYTES} tmpfs /dev/shm && exec env "$@"'
    command = [mounted, "sh", f"TMPDIR={temporary}"]
    namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c", *command]
    if subprocess.run([*namespace, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system, not even in a namespace")
    return namespace


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory in which names of sockets are short enough."""
    with TemporaryDirectory(prefix="mb-", dir="/tmp") as path:
        yield Path(path)


def test_temporary_directory_with_a_long_path_is_an_error_with_advice(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    with pytest.raises(StartFailed) as failed:
        start_minibroker(wrapper=small_memory_directory(str(folder)))
    assert "AF_UNIX path too long; set TMPDIR to a short path" in str(failed.value)
    assert "Traceback" not in str(failed.value)


def test_small_memory_directory_of_a_container_does_not_limit_data(
    fresh: Names, short_path: Path
) -> None:
    with start_minibroker(wrapper=small_memory_directory(str(short_path))) as broker:
        count = 2 * DISK_BYTES // len(RECORD)
        assert produced(broker, fresh("big"), count) == count
        assert not conditions(broker)
        assert list(short_path.glob("minibroker-*/data"))
        assert broker.stop() == 0
        assert f"so the data is kept in {short_path}" in broker.printed()


def test_small_memory_directory_of_a_container_fills_visibly(fresh: Names) -> None:
    with start_minibroker(wrapper=small_memory_directory("/dev/shm")) as broker:
        topic, again = fresh("big"), fresh("again")
        assert 0 < filled(broker, topic) < DISK_BYTES // len(RECORD) + 1
        health = ask(broker, "GET", "/v1/health")
        assert "/dev/shm/minibroker-" in health["conditions"][0]["text"]
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.delete_topics([topic])[topic].result()
        wait_until(lambda: not conditions(broker), "the condition to end")
        admin.create_topics([NewTopic(again, 1, 1)])[again].result()
        assert produced(broker, again, 3) == 3
        assert broker.stop() == 0


def test_stop_and_start_on_a_full_disk_are_clean(
    start: Starter, fresh: Names, small_disk: Path
) -> None:
    topic, data = fresh("t"), small_disk / "data"
    broker = start(data_dir=data)
    acknowledged = filled(broker, topic)
    filler = fill(small_disk)
    assert broker.stop() == 0
    printed = broker.printed()
    assert "Traceback" not in printed
    broker.forget()
    broker = start(data_dir=data)
    assert "Traceback" not in broker.printed()
    reader = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": fresh("g")})
    low, high = reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    assert (low, high) == (0, acknowledged)
    reader.close()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics([topic])[topic].result()
    filler.unlink()
    again = fresh("again")
    admin.create_topics([NewTopic(again, 1, 1)])[again].result()
    assert produced(broker, again, 3) == 3
