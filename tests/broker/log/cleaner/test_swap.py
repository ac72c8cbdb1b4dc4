from __future__ import annotations

from pathlib import Path

import pytest

from minibroker.broker.log.cleaner.swap import commit, complete_swaps, discard, install
from minibroker_protocol.records import Record, build_batch


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
