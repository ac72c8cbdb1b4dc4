"""."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minibroker.broker.log import paths
from minibroker.broker.log.paths import commit, complete_swaps, discard, install
from minibroker_protocol.records import Record, build_batch


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


def name(offset: int, suffix: str) -> str:
    return f"{offset:020}{suffix}"


def make(directory: Path, offset: int, suffix: str, content: bytes = b"") -> None:
    (directory / name(offset, suffix)).write_bytes(content)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Three segments at 0, 10 and 20, and a cleaned copy of the first two."""
    for base in (0, 10, 20):
        for suffix in (".log", ".index", ".timeindex", ".txnindex"):
            make(tmp_path, base, suffix, b"old")
    copy = build_batch([Record(key=b"a")] * 11)
    for suffix in (".index.cleaned", ".timeindex.cleaned", ".txnindex.cleaned"):
        make(tmp_path, 0, suffix, b"new")
    make(tmp_path, 0, ".log.cleaned", copy)
    return tmp_path


def test_copy_takes_the_place_of_its_group(directory: Path) -> None:
    commit(str(directory), 0)
    renamed = install(str(directory), 0, [0, 10])
    assert {Path(path).read_bytes() for path in renamed} == {b"old"}
    assert len(renamed) == 2
    kept = names(directory) - {Path(path).name for path in renamed}
    suffixes = (".log", ".index", ".timeindex", ".txnindex")
    assert kept == {name(base, suffix) for base in (0, 20) for suffix in suffixes}
    assert (directory / name(0, ".index")).read_bytes() == b"new"
    complete_swaps(str(directory))
    assert names(directory) == kept


def test_copy_without_commit_is_removed(directory: Path) -> None:
    before = {each for each in names(directory) if "cleaned" not in each}
    (directory / name(0, ".index.cleaned")).rename(directory / name(0, ".index.swap"))
    complete_swaps(str(directory))
    assert names(directory) == before


def test_committed_copy_is_installed_by_recovery(directory: Path) -> None:
    commit(str(directory), 0)
    complete_swaps(str(directory))
    logs = {each for each in names(directory) if each.endswith(".log")}
    assert logs == {name(0, ".log"), name(20, ".log")}
    assert len(names(directory)) == 8


def test_discard_removes_copies_only(directory: Path) -> None:
    commit(str(directory), 0)
    make(directory, 20, ".log.cleaned")
    discard(str(directory))
    assert name(0, ".log.swap") in names(directory)
    assert name(20, ".log.cleaned") not in names(directory)


def test_damaged_copy_is_an_error(directory: Path) -> None:
    make(directory, 0, ".log.swap", bytes(100))
    with pytest.raises(OSError, match="damaged"):
        complete_swaps(str(directory))
