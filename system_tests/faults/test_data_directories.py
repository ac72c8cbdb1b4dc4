"""Data directories of other programs, and of brokers that lost some of their files."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from system_tests.clients.adapters.confluent import ConfluentClient
from system_tests.clients.model import Record, drain
from system_tests.faults.conftest import Starter, end_for_good
from system_tests.harness.brokers import RunningBroker, StartFailed, start_kafka
from system_tests.harness.fingerprints import create_foreign_files, fingerprint
from system_tests.harness.processes import tree
from system_tests.harness.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.minibroker

Names = Callable[[str], str]


def produced(broker: RunningBroker, topic: str, count: int = 10) -> None:
    client = ConfluentClient(broker.bootstrap_servers)
    client.create_topic(topic, 2)
    client.produce(topic, [Record(b"%d" % i, b"%d" % i) for i in range(count)])
    client.close()


def consumed(broker: RunningBroker, topic: str, group: str, count: int = 10) -> list[bytes]:
    client = ConfluentClient(broker.bootstrap_servers)
    member = client.join(group, topic)
    values = [record.value or b"" for record in drain(member, count)]
    member.close()
    client.close()
    return values


def ended(broker: RunningBroker) -> str:
    """Stop the broker; return its output."""
    assert broker.stop() == 0
    printed = broker.printed()
    broker.forget()
    return printed


def meta_properties(data: Path) -> dict[str, str]:
    """The ids of a data directory; each new file has a different directory.id."""
    lines = (data / "meta.properties").read_text().splitlines()
    return {
        name: value
        for name, _, value in (line.partition("=") for line in lines)
        if name in ("version", "cluster.id", "node.id")
    }


@pytest.fixture
def written(start: Starter, fresh: Names, tmp_path: Path) -> tuple[str, Path]:
    """A topic with ten records, and the data directory of its broker, which has stopped."""
    topic, data = fresh("kept"), tmp_path / "data"
    broker = start(data_dir=data)
    produced(broker, topic)
    ended(broker)
    return topic, data


def test_foreign_directory_is_rejected_unchanged(start: Starter, tmp_path: Path) -> None:
    create_foreign_files(tmp_path / "data")
    before = fingerprint(tmp_path)
    with pytest.raises(StartFailed, match=r"was not created by a broker.*backup-1, link-0"):
        start(data_dir=tmp_path / "data")
    assert fingerprint(tmp_path) == before


def test_foreign_files_in_a_brokers_directory_are_unchanged(
    start: Starter, fresh: Names, written: tuple[str, Path]
) -> None:
    topic, data = written
    before = fingerprint(data)
    create_foreign_files(data)
    foreign = {name: each for name, each in fingerprint(data).items() if name not in before}
    broker = start(data_dir=data)
    assert len(consumed(broker, topic, fresh("group"))) == 10
    printed = ended(broker)
    after = fingerprint(data)
    assert {name: after.get(name) for name in foreign} == foreign
    assert "not a partition of this broker" in printed


@pytest.mark.parametrize("options", [(), ("--recover-topics-from-logs",)])
def test_kafka_log_directory_is_rejected_unchanged(
    start: Starter, tmp_path: Path, options: tuple[str, ...]
) -> None:
    data = tmp_path / "data"
    for name in ("orders-0", "__cluster_metadata-0"):
        (data / name).mkdir(parents=True)
        (data / name / f"{0:020d}.log").write_bytes(os.urandom(1000))
        (data / name / "partition.metadata").write_text(
            "version: 0\ntopic_id: 0pmlEJFpSqOAUbLdSYKMBw"
        )
    (data / "meta.properties").write_text(
        "#\nnode.id=1\nversion=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\n"
    )
    for name in ("bootstrap.checkpoint", "recovery-point-offset-checkpoint", ".lock"):
        (data / name).touch()
    before = fingerprint(data)
    with pytest.raises(StartFailed, match="is a log directory of Apache Kafka"):
        start(*options, data_dir=data)
    assert fingerprint(data) == before


def test_foreign_database_is_rejected_unchanged(start: Starter, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "config.sqlite") as database:
        database.execute("CREATE TABLE photos (name TEXT)")
    database.close()
    before = fingerprint(tmp_path)
    with pytest.raises(StartFailed, match="was not created by a broker"):
        start(data_dir=tmp_path)
    assert fingerprint(tmp_path) == before


def test_data_directory_of_another_node_is_rejected(start: Starter, tmp_path: Path) -> None:
    ended(start(data_dir=tmp_path / "data"))
    with pytest.raises(StartFailed, match=r"belongs to node 1 .* this broker is node 2"):
        start("--set", "node.id=2", data_dir=tmp_path / "data")


def test_records_of_a_lost_store_are_recovered_on_request(
    start: Starter, fresh: Names, written: tuple[str, Path]
) -> None:
    topic, data = written
    for path in data.glob("config.sqlite*"):
        path.unlink()
    before = fingerprint(data)
    with pytest.raises(StartFailed, match=r"--recover-topics-from-logs"):
        start(data_dir=data)
    assert fingerprint(data) == before
    broker = start("--recover-topics-from-logs", data_dir=data)
    assert "a topic was rebuilt" in broker.printed()
    assert sorted(consumed(broker, topic, fresh("group"))) == [b"%d" % i for i in range(10)]
    ended(broker)
    broker = start(data_dir=data)
    assert len(consumed(broker, topic, fresh("group"))) == 10


def read_up_to(
    client: ConfluentClient, topic: str, last: int, group: str
) -> list[tuple[int, bytes | None]]:
    """Offsets and values of a topic's records up to an offset."""
    found: list[tuple[int, bytes | None]] = []
    member = client.join(group, topic)

    def reached() -> bool:
        found.extend((record.offset, record.value) for record in member.poll())
        return bool(found) and found[-1][0] >= last

    wait_until(reached, f"the record at {last}", pause_s=0)
    member.close()
    return found


def compacted_by_kafka(data: Path, topic: str) -> list[tuple[int, bytes | None]]:
    """Let Kafka write and compact a log; return the offsets and values that its consumer reads."""
    with start_kafka(data, settings={"log.cleaner.backoff.ms": "100"}) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        configs = {
            "cleanup.policy": "compact",
            "segment.bytes": str(1 << 20),
            "min.cleanable.dirty.ratio": "0.01",
        }
        admin.create_topics([NewTopic(topic, 1, 1, config=configs)])[topic].result(PATIENCE_S)
        client = ConfluentClient(kafka.bootstrap_servers)
        for number in range(400):  # Batches of one record, which compaction removes completely.
            value = b"%d" % number * 3000
            client.produce(topic, [Record(b"%d" % (number % 7), value)], partition=0)
        checkpoint = data / "cleaner-offset-checkpoint"

        def is_cleaned() -> bool:
            last = max(data.glob(f"{topic}-0/*.log")).stem
            return checkpoint.exists() and checkpoint.read_text().split()[-1] == str(int(last))

        wait_until(is_cleaned, "a compacted log")
        found = read_up_to(client, topic, client.bounds(topic, 0)[1] - 1, "before")
        client.close()
    return found


@pytest.mark.slow
def test_compacted_log_of_kafka_is_imported_completely(
    start: Starter, fresh: Names, tmp_path: Path, kafka_libs: Path
) -> None:
    topic, data = fresh("imported"), tmp_path / "data"
    theirs = compacted_by_kafka(tmp_path / "kafka", topic)
    assert [offset for offset, _ in theirs] != list(range(len(theirs)))
    ended(start(data_dir=data))
    for path in data.glob("config.sqlite*"):
        path.unlink()
    shutil.copytree(tmp_path / "kafka" / f"{topic}-0", data / f"{topic}-0")
    segments = {path.name: path.read_bytes() for path in data.glob(f"{topic}-0/*.log")}
    broker = start("--recover-topics-from-logs", data_dir=data)
    client = ConfluentClient(broker.bootstrap_servers)
    assert read_up_to(client, topic, theirs[-1][0], fresh("group")) == theirs
    client.close()
    ended(broker)
    assert {path.name: path.read_bytes() for path in data.glob(f"{topic}-0/*.log")} == segments


def test_logs_of_a_topic_that_the_store_lost_are_kept_as_strays(
    start: Starter, written: tuple[str, Path]
) -> None:
    topic, data = written
    logs = {name: each for name, each in fingerprint(data).items() if name.startswith(topic)}
    with sqlite3.connect(data / "config.sqlite") as store:
        store.execute("DELETE FROM node WHERE path = ?", (f"/brokers/topics/{topic}",))
    store.close()
    printed = ended(start(data_dir=data))
    strays = [path for path in data.iterdir() if path.name.endswith("-stray")]
    assert sorted(path.name.rpartition(".")[0] for path in strays) == sorted(
        name for name in logs if "/" not in name
    )
    kept = sorted(each for path in strays for each in fingerprint(path).values())
    assert kept == sorted(each for name, each in logs.items() if "/" in name)
    assert printed.count("a partition belongs to no topic") == len(strays) > 0


def test_broker_directory_without_meta_properties_is_adopted(
    start: Starter, fresh: Names, written: tuple[str, Path]
) -> None:
    topic, data = written
    properties = meta_properties(data)
    (data / "meta.properties").unlink()
    broker = start(data_dir=data)
    assert len(consumed(broker, topic, fresh("group"))) == 10
    assert "without meta.properties was adopted" in ended(broker)
    assert meta_properties(data) == properties


def test_directory_of_killed_broker_without_meta_properties_is_adopted(
    start: Starter, fresh: Names, tmp_path: Path
) -> None:
    topic, data = fresh("kept"), tmp_path / "data"
    broker = start(data_dir=data)
    produced(broker, topic)
    family = tree(broker.pid)
    for pid in family:
        os.kill(pid, signal.SIGKILL)
    end_for_good(broker, family)
    assert (data / "config.sqlite-wal").stat().st_size > 0
    (data / "meta.properties").unlink()
    assert len(consumed(start(data_dir=data), topic, fresh("group"))) == 10


def test_partition_lost_with_the_store_is_rebuilt_empty_and_logged(
    start: Starter, fresh: Names, tmp_path: Path
) -> None:
    topic, data = fresh("kept"), tmp_path / "data"
    broker = start(data_dir=data)
    client = ConfluentClient(broker.bootstrap_servers)
    client.create_topic(topic, 3)
    for partition in range(3):
        client.produce(topic, [Record(b"k", b"%d" % partition)], partition=partition)
    client.close()
    ended(broker)
    for path in data.glob("config.sqlite*"):
        path.unlink()
    shutil.rmtree(data / f"{topic}-1")
    broker = start("--recover-topics-from-logs", data_dir=data)
    assert f"a topic was rebuilt topic={topic} partitions=3 empty=1" in broker.printed()
    assert sorted(consumed(broker, topic, fresh("group"), 2)) == [b"0", b"2"]


def test_partition_behind_a_link_is_not_written(
    start: Starter, fresh: Names, tmp_path: Path
) -> None:
    topic, data = fresh("linked"), tmp_path / "data"
    broker = start(data_dir=data)
    (tmp_path / "elsewhere").mkdir()
    for number in range(2):
        (data / f"{topic}-{number}").symlink_to(tmp_path / "elsewhere")
    client = ConfluentClient(broker.bootstrap_servers)
    client.create_topic(topic, 2)
    client.close()
    ended(broker)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert sorted(path.name for path in data.iterdir() if path.is_symlink()) == [
        f"{topic}-0",
        f"{topic}-1",
    ]


def test_segment_that_is_a_link_is_not_truncated(
    start: Starter, tmp_path: Path, written: tuple[str, Path]
) -> None:
    topic, data = written
    (tmp_path / "notes").write_bytes(b"mine" * 1000)
    for segment in data.glob(f"{topic}-*/*.log"):
        segment.unlink()
        segment.symlink_to(tmp_path / "notes")
    broker = start(data_dir=data)
    assert "is a symbolic link, which is not followed" in broker.printed()
    ended(broker)
    assert (tmp_path / "notes").read_bytes() == b"mine" * 1000


def test_secret_files_are_readable_by_owner_only(start: Starter, tmp_path: Path) -> None:
    data = tmp_path / "data"
    broker = start(data_dir=data)
    assert data.stat().st_mode & 0o777 == 0o700
    names = [path for path in data.iterdir() if path.name.startswith("config.sqlite")]
    assert {path.stat().st_mode & 0o777 for path in names} == {0o600}
    ended(broker)
    shutil.rmtree(data)
