"""Which data directories a broker may use, and what their marks say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minibroker.storage.checkpoint import write_topic_id
from minibroker.storage.data_directory import (
    META_PROPERTIES,
    DataDirectoryError,
    LoggedTopic,
    MetaProperties,
    check_data_directory,
    logged_topics,
    read_meta_properties,
    write_meta_properties,
)

NODE_ID = 1
META = MetaProperties("XyZ-cluster_0123456789", NODE_ID)


@pytest.mark.parametrize("names", [[], [".lock"], ["lost+found"], [".lock", "lost+found"]])
def test_empty_directory_is_accepted(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    check_data_directory(tmp_path, NODE_ID)


def test_marked_directory_is_accepted_and_its_mark_is_read_back(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    write_meta_properties(tmp_path, META)
    check_data_directory(tmp_path, NODE_ID)
    assert read_meta_properties(tmp_path) == META
    assert sorted(os.listdir(tmp_path)) == [META_PROPERTIES, "orders-0"]


def test_mark_has_the_fields_of_kraft(tmp_path: Path) -> None:
    write_meta_properties(tmp_path, META)
    lines = (tmp_path / META_PROPERTIES).read_text().splitlines()
    fields = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    directory_id = fields.pop("directory.id")
    assert len(directory_id) == 22
    assert fields == {"version": "1", "cluster.id": META.cluster_id, "node.id": "1"}


def test_mark_written_by_kafka_in_zookeeper_mode_is_read(tmp_path: Path) -> None:
    text = "#\n#Mon Nov 23 08:00:00 UTC 2026\nversion=0\nbroker.id=7\ncluster.id=abc\n"
    (tmp_path / META_PROPERTIES).write_text(text)
    assert read_meta_properties(tmp_path) == MetaProperties("abc", 7)


@pytest.mark.parametrize(
    "names", [["photos-2024"], ["backup-1", "orders-0", "notes.txt", "more"], [".ssh"]]
)
def test_foreign_directory_is_rejected_and_not_changed(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    before = sorted(os.walk(tmp_path))
    with pytest.raises(DataDirectoryError, match=r"was not created by a broker.*empty directory"):
        check_data_directory(tmp_path, NODE_ID)
    assert sorted(os.walk(tmp_path)) == before


def test_directory_of_another_node_is_rejected_with_both_ids(tmp_path: Path) -> None:
    write_meta_properties(tmp_path, META)
    with pytest.raises(DataDirectoryError, match=r"belongs to node 1 of.*this broker is node 2"):
        check_data_directory(tmp_path, 2)


@pytest.mark.parametrize("text", ["", "cluster.id=x\n", "node.id=1\n", "cluster.id=x\nnode.id=y\n"])
def test_malformed_mark_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / META_PROPERTIES).write_text(text)
    with pytest.raises(DataDirectoryError, match=r"names no cluster\.id and node\.id"):
        check_data_directory(tmp_path, NODE_ID)


@pytest.mark.parametrize(
    ("name", "content"),
    [("config.sqlite", b"SQLite format 3\x00..."), ("zookeeper.session", b"{}")],
)
def test_directory_of_a_broker_that_wrote_no_mark_is_accepted(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / "orders-0").mkdir()
    check_data_directory(tmp_path, NODE_ID)


def test_store_file_of_another_program_is_no_mark(tmp_path: Path) -> None:
    (tmp_path / "config.sqlite").write_bytes(b"something else")
    with pytest.raises(DataDirectoryError, match="was not created by a broker"):
        check_data_directory(tmp_path, NODE_ID)


def test_logged_topics_are_those_of_marked_directories(tmp_path: Path) -> None:
    for name, topic_id in (("a-0", 1), ("a-2", 1), ("a-3", 2), ("b-x-1", 3)):
        (tmp_path / name).mkdir()
        write_topic_id(str(tmp_path / name), bytes([topic_id]) * 16)
    (tmp_path / "photos-2024").mkdir()
    (tmp_path / "notes-1").touch()
    (tmp_path / "link-0").symlink_to(tmp_path / "a-0")
    assert logged_topics(tmp_path) == {
        "a": LoggedTopic(b"\x01" * 16, (0, 2)),
        "b-x": LoggedTopic(b"\x03" * 16, (1,)),
    }
