from __future__ import annotations

import os
from pathlib import Path

import pytest

from minibroker.broker.log import paths


@pytest.mark.parametrize("topic", ["t", "with-dash", "a.b_c", "x-1"])
def test_partition_directory_name_round_trips(topic: str) -> None:
    directory = Path(paths.partition_directory("/data", topic, 12))
    assert directory == Path("/data") / f"{topic}-12"
    assert paths.parse_directory(directory.name) == (topic, 12)


@pytest.mark.parametrize(
    "name",
    ["t", "-1", "t-", "t-x", "t-1.0123-delete", "t-²", "t-01", "t-2147483648", "t-" + "9" * 200],
)
def test_other_directory_name_is_no_partition(name: str) -> None:
    assert paths.parse_directory(name) is None


def test_read_small_file_stops_at_limit_and_rejects_links(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("abc")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "fifo")
    assert paths.read_small_file(tmp_path / "file", 2) == b"ab"
    for name in ("link", "fifo"):
        with pytest.raises(OSError, match=name):
            paths.read_small_file(tmp_path / name)


@pytest.mark.parametrize("sync", [False, True])
def test_replace_file_does_not_write_through_symlink(tmp_path: Path, sync: bool) -> None:
    (tmp_path / "notes").write_text("mine")
    target = tmp_path / "file"
    target.symlink_to(tmp_path / "notes")
    paths.replace_file(str(target), "new", sync=sync)
    assert not target.is_symlink()
    (tmp_path / "file.tmp").symlink_to(tmp_path / "notes")
    with pytest.raises(OSError, match="symbolic links"):
        paths.replace_file(str(target), "newer", sync=sync)
    assert [(tmp_path / name).read_text() for name in ("notes", "file")] == ["mine", "new"]


def test_file_that_was_written_in_part_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "file")
    paths.write_file(path, b"longer than its successor")
    paths.write_file(path, b"complete")
    assert Path(path).read_bytes() == b"complete"
    whole = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: whole(fd, data[:3]))
    with pytest.raises(OSError, match="No space"):
        paths.write_file(path, b"complete")


def test_segment_files_are_named_by_offset(tmp_path: Path) -> None:
    for offset in (70, 0, 2**40):
        for suffix in paths.SEGMENT_SUFFIXES:
            Path(paths.offset_file(str(tmp_path), offset, suffix)).touch()
    (tmp_path / "0.log").touch()
    (tmp_path / "00000000000000000005.log.swap").touch()
    assert (tmp_path / "00000000000000000070.timeindex").exists()
    assert paths.offsets_of(str(tmp_path), paths.LOG) == [0, 70, 2**40]
    paths.remove_files(str(tmp_path), 70, (*paths.SEGMENT_SUFFIXES, paths.SNAPSHOT))
    assert paths.offsets_of(str(tmp_path), paths.LOG) == [0, 2**40]
    assert paths.offsets_of(str(tmp_path), paths.TIME_INDEX) == [0, 2**40]


def test_directory_marked_for_deletion_frees_its_name(tmp_path: Path) -> None:
    directory = tmp_path / ("x" * 245 + "-0")
    directory.mkdir()
    (directory / "file").touch()
    (directory / paths.PARTITION_METADATA).touch()
    aside = paths.rename_directory(str(directory))
    assert not directory.exists()
    assert paths.list_deleted(tmp_path) == [aside]
    assert paths.parse_directory(Path(aside).name) is None
    paths.remove_renamed(aside)
    paths.remove_renamed(aside)
    assert paths.list_deleted(tmp_path) == []


def test_removal_does_not_follow_links_and_keeps_subdirectories(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    directory = tmp_path / "t-0"
    (directory / "subdirectory").mkdir(parents=True)
    (directory / paths.PARTITION_METADATA).touch()
    (directory / "link").symlink_to(outside)
    aside = Path(paths.rename_directory(str(directory)))
    paths.remove_renamed(str(aside))
    assert (outside / "file").exists()
    assert [path.name for path in aside.iterdir()] == ["subdirectory"]
    assert paths.list_deleted(tmp_path) == []


@pytest.mark.parametrize("name", ["old-delete", "t-0.0123-delete", f"x-0.{'g' * 32}-delete"])
def test_foreign_directory_with_delete_suffix_is_not_listed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / paths.PARTITION_METADATA).touch()
    assert paths.list_deleted(tmp_path) == []


def test_directory_without_topic_id_is_not_listed(tmp_path: Path) -> None:
    (tmp_path / f"x-0.{'a' * 32}-delete").mkdir()
    assert paths.list_deleted(tmp_path) == []
