"""Which data directories a broker may use, and what their marks say."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from minibroker.broker.log.checkpoint import Checkpoint, write_checkpoint, write_topic_id
from minibroker.broker.log.data_directory import (
    META_PROPERTIES,
    SECRET_BYTES,
    SESSION_FILE,
    STORE_FILE,
    DataDirectoryError,
    LoggedTopic,
    MetaProperties,
    check_data_directory,
    ignores_case,
    lacks_meta_properties,
    logged_topics,
    read_meta_properties,
    write_meta_properties,
)
from minibroker.broker.log.producers import ProducerTable
from minibroker.broker.metadata.store.sqlite import SqliteStore
from minibroker.broker.metadata.store.zookeeper import save_session

NODE_ID = 1
META = MetaProperties("XyZ-cluster_0123456789", NODE_ID)
TOPIC_ID = b"\x01" * 16


def check(directory: Path, node_id: int = NODE_ID, *, needs_store: bool = True) -> None:
    """Check a directory, which must not change by it."""
    before = content(directory)
    try:
        check_data_directory(directory, node_id, needs_store=needs_store)
    finally:
        assert content(directory) == before


def content(directory: Path) -> list[tuple[str, int, int]]:
    found = [path for path in directory.rglob("*") if not path.is_symlink()]
    return sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in found)


def make_partition(directory: Path, name: str, *, of_kafka: bool = False) -> None:
    path = str(directory / name)
    os.mkdir(path)
    write_topic_id(path, TOPIC_ID)
    if not of_kafka:
        write_checkpoint(path, Checkpoint(0, 0, None, ProducerTable()), sync=False)


def make_store(directory: Path, *, killed: bool = False) -> None:
    store = SqliteStore(directory / STORE_FILE)
    if killed:
        # Closing would move the schema from SQLite's log to the file.
        for name in (STORE_FILE, f"{STORE_FILE}-wal"):
            (directory / f"copy-{name}").write_bytes((directory / name).read_bytes())
    store._db.close()
    if killed:
        for path in directory.glob("copy-*"):
            os.replace(path, directory / path.name.removeprefix("copy-"))


def test_empty_directory_is_accepted(tmp_path: Path) -> None:
    check(tmp_path)
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".lock").write_text("pid 1, minibroker\n")
    check(tmp_path)
    (tmp_path / ".lock").write_text("")
    (tmp_path / ".secret").write_bytes(bytes(SECRET_BYTES))
    (tmp_path / ".secret.tmp").touch()
    check(tmp_path)


def test_directory_with_foreign_secret_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / ".secret").write_text("my password")
    with pytest.raises(DataDirectoryError, match=r"was not created.*\.secret"):
        check(tmp_path)


def test_directory_with_foreign_lock_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("my notes")
    with pytest.raises(DataDirectoryError, match=r"was not created.*\.lock"):
        check(tmp_path)


def test_directory_with_symlinked_lock_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "notes").touch()
    (tmp_path / "data" / ".lock").symlink_to(tmp_path / "notes")
    with pytest.raises(DataDirectoryError, match="was not created"):
        check(tmp_path / "data")


def test_case_of_names_matters_here_and_is_ignored_on_other_file_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Topic-0").mkdir()
    assert not ignores_case(tmp_path)
    (tmp_path / "tOPIC-0").mkdir()
    assert not ignores_case(tmp_path)
    (tmp_path / "tOPIC-0").rmdir()
    (tmp_path / "tOPIC-0").symlink_to("Topic-0")  # One directory with both names, as on macOS.
    listed = [tmp_path / "Topic-0"]
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(listed))
    assert ignores_case(tmp_path)


def test_meta_properties_round_trip_and_directory_is_accepted(tmp_path: Path) -> None:
    make_partition(tmp_path, "orders-0")
    make_store(tmp_path)
    directory_id = write_meta_properties(tmp_path, META)
    check(tmp_path)
    assert read_meta_properties(tmp_path) == META._replace(directory_id=directory_id)
    assert not lacks_meta_properties(tmp_path)


@pytest.mark.parametrize("cluster_id", [" a=b: ", 'a\\b"#', "ключ\n🔑"])
def test_any_zookeeper_cluster_id_is_accepted(tmp_path: Path, cluster_id: str) -> None:
    meta = MetaProperties(cluster_id, 1, bytes(range(16)))
    write_meta_properties(tmp_path, meta)
    assert read_meta_properties(tmp_path) == meta


def test_unreadable_directory_id_is_none(tmp_path: Path) -> None:
    write_meta_properties(tmp_path, META)
    path = tmp_path / META_PROPERTIES
    lines = [line for line in path.read_text().splitlines() if "directory.id" not in line]
    path.write_text("\n".join([*lines, "directory.id=short"]))
    assert read_meta_properties(tmp_path) == META


def test_meta_properties_have_kraft_fields(tmp_path: Path) -> None:
    write_meta_properties(tmp_path, META)
    lines = (tmp_path / META_PROPERTIES).read_text().splitlines()
    fields = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    directory_id = fields.pop("directory.id")
    assert len(directory_id) == 22
    assert fields == {"version": "1", "cluster.id": META.cluster_id, "node.id": "1"}
    assert os.listdir(tmp_path) == [META_PROPERTIES]


@pytest.mark.parametrize(
    "names", [["photos-2024"], ["backup-1", "orders-0", "notes.txt", "more"], [".ssh"]]
)
@pytest.mark.parametrize("needs_store", [False, True])
def test_foreign_directory_is_rejected(tmp_path: Path, names: list[str], needs_store: bool) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    with pytest.raises(DataDirectoryError, match=r"was not created by a broker.*empty directory"):
        check(tmp_path, needs_store=needs_store)


@pytest.mark.parametrize("needs_store", [False, True])
@pytest.mark.parametrize("file", ["bootstrap.checkpoint", "recovery-point-offset-checkpoint"])
def test_log_directory_of_kafka_is_rejected_even_if_its_ids_match(
    tmp_path: Path, file: str, needs_store: bool
) -> None:
    write_meta_properties(tmp_path, META)
    (tmp_path / file).write_text("0\n")
    make_partition(tmp_path, "orders-0", of_kafka=True)
    with pytest.raises(DataDirectoryError, match=f"log directory of Apache Kafka.*{file}"):
        check(tmp_path, needs_store=needs_store)


def test_kafka_partitions_without_meta_properties_are_rejected(tmp_path: Path) -> None:
    make_partition(tmp_path, "orders-0", of_kafka=True)
    with pytest.raises(DataDirectoryError, match="was not created by a broker"):
        check(tmp_path)


def test_directory_of_another_node_is_rejected_with_both_ids(tmp_path: Path) -> None:
    write_meta_properties(tmp_path, META)
    with pytest.raises(DataDirectoryError, match=r"belongs to node 1 of.*this broker is node 2"):
        check(tmp_path, 2)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has version none instead of 1"),
        ("version=0\nbroker.id=7\ncluster.id=abc\n", "has version 0 instead of 1"),
        ("version=1\ncluster.id=x\n", r"names no cluster\.id and node\.id"),
        ("version=1\nnode.id=1\n", r"names no cluster\.id and node\.id"),
        ("version=1\ncluster.id=x\nnode.id=y\n", r"names no cluster\.id and node\.id"),
        ("version=1\n\\uXYZ=1\n", "cannot be read"),
    ],
)
def test_malformed_meta_properties_are_rejected(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / META_PROPERTIES).write_text(text)
    with pytest.raises(DataDirectoryError, match=f"{META_PROPERTIES} {problem}"):
        check(tmp_path)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_meta_properties_that_are_no_regular_file_are_rejected(
    tmp_path: Path, make: object
) -> None:
    assert callable(make)
    make(tmp_path / META_PROPERTIES)
    with pytest.raises(DataDirectoryError, match=f"{META_PROPERTIES} cannot be read"):
        check(tmp_path)


@pytest.mark.parametrize("killed", [False, True])
def test_directory_of_an_earlier_version_is_accepted(tmp_path: Path, killed: bool) -> None:
    make_store(tmp_path, killed=killed)
    make_partition(tmp_path, "orders-0")
    check(tmp_path)
    assert lacks_meta_properties(tmp_path)


def test_directory_of_broker_killed_during_first_start_is_accepted(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("pid 1, minibroker\n")
    (tmp_path / STORE_FILE).touch()
    check(tmp_path)
    database = sqlite3.connect(tmp_path / STORE_FILE)
    database.execute("PRAGMA journal_mode = WAL")
    assert (tmp_path / STORE_FILE).stat().st_size > 0
    check(tmp_path)
    database.close()
    check(tmp_path)


def test_directory_of_an_earlier_version_with_zookeeper_is_accepted(tmp_path: Path) -> None:
    save_session(tmp_path / SESSION_FILE, (1, b"secret"))
    check(tmp_path, needs_store=False)
    (tmp_path / SESSION_FILE).unlink()
    make_partition(tmp_path, "orders-0")
    check(tmp_path, needs_store=False)
    assert lacks_meta_properties(tmp_path)


@pytest.mark.parametrize("in_wal", [False, True])
def test_database_of_other_program_is_rejected(tmp_path: Path, in_wal: bool) -> None:
    database = sqlite3.connect(tmp_path / STORE_FILE)
    if in_wal:
        database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE photos (name TEXT)")
    with pytest.raises(DataDirectoryError, match="was not created by a broker"):
        check(tmp_path)
    database.close()


def test_store_file_without_store_format_is_rejected(tmp_path: Path) -> None:
    (tmp_path / STORE_FILE).write_bytes(b"something else")
    (tmp_path / SESSION_FILE).write_text("{}")
    with pytest.raises(DataDirectoryError, match="was not created by a broker"):
        check(tmp_path)


@pytest.mark.parametrize("damage", [None, b"", b"\x00" * 8192])
def test_lost_store_is_rejected_with_recovery_option(tmp_path: Path, damage: bytes | None) -> None:
    write_meta_properties(tmp_path, META)
    for name in ("orders-0", "orders-1", "users-0"):
        make_partition(tmp_path, name)
    if damage is not None:
        (tmp_path / STORE_FILE).write_bytes(damage)
    text = (
        rf"{STORE_FILE} of cluster {META.cluster_id} is missing or damaged, and the directory has "
        "3 partitions of 2 topics.*--recover-topics-from-logs"
    )
    with pytest.raises(DataDirectoryError, match=text):
        check(tmp_path)
    check(tmp_path, needs_store=False)


def test_lost_store_of_an_earlier_version_is_rejected(tmp_path: Path) -> None:
    make_partition(tmp_path, "orders-0")
    with pytest.raises(DataDirectoryError, match=r"--recover-topics-from-logs"):
        check(tmp_path)
    check(tmp_path, needs_store=False)


def test_meta_properties_without_store_or_partitions_are_rejected(tmp_path: Path) -> None:
    write_meta_properties(tmp_path, META)
    with pytest.raises(DataDirectoryError, match="missing or damaged"):
        check(tmp_path)


def test_logged_topics_are_read_from_directories_with_topic_ids(tmp_path: Path) -> None:
    for name, topic_id in (("a-0", 1), ("a-2", 1), ("a-3", 2), ("b-x-1", 3), ("a-007", 1)):
        (tmp_path / name).mkdir()
        write_topic_id(str(tmp_path / name), bytes([topic_id]) * 16)
    (tmp_path / "photos-2024").mkdir()
    (tmp_path / "notes-1").touch()
    (tmp_path / "link-0").symlink_to(tmp_path / "a-0")
    (tmp_path / "fifo-0").mkdir()
    os.mkfifo(tmp_path / "fifo-0" / "partition.metadata")
    assert logged_topics(tmp_path) == {
        "a": LoggedTopic(b"\x01" * 16, (0, 2)),
        "b-x": LoggedTopic(b"\x03" * 16, (1,)),
    }
