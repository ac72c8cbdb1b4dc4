"""A processor keeps few segment files open, and never more than its share of descriptors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minibroker.broker.network.open_files import CACHED_MAX, OpenFiles
from tests.descriptors import open_below
from tests.runtime.test_system import no_descriptor_left

MANY = 100_000


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"some")
    return path


def test_cache_closes_the_least_recently_used_file(tmp_path: Path) -> None:
    files = OpenFiles(MANY)
    before = open_below(tmp_path)
    paths = [tmp_path / f"{number}.log" for number in range(CACHED_MAX + 1)]
    for path in paths:
        path.write_bytes(b"x")
    first = files.get(str(paths[0]))
    for path in paths[1:-1]:
        files.get(str(path))
    assert files.get(str(paths[0])) is first
    files.get(str(paths[-1]))
    assert len(files) == CACHED_MAX
    assert files.get(str(paths[0])) is first
    paths[1].unlink()
    with pytest.raises(FileNotFoundError):
        files.get(str(paths[1]))
    del first
    files.forget()
    assert open_below(tmp_path) == before


def test_open_file_stays_open_after_cache_eviction(segment: Path) -> None:
    files = OpenFiles(MANY)
    opened = files.get(str(segment))
    files.forget()
    assert os.pread(opened.descriptor, 2, 0) == b"so"
    segment.unlink()
    segment.write_bytes(b"another")
    again = files.get(str(segment))
    assert os.pread(again.descriptor, 7, 0) == b"another"
    assert files.generation == 1


def test_open_files_are_a_share_of_the_descriptors(tmp_path: Path) -> None:
    files = OpenFiles(32)
    paths = [tmp_path / f"{number}.log" for number in range(20)]
    for path in paths:
        path.touch()
    in_use = [files.get(str(path)) for path in paths[:5]]
    assert (files.limit, len(files), files.opened) == (8, 2, 5)
    mays = [files.may_stay_open]
    in_use.append(files.get(str(paths[5])))
    assert [*mays, files.may_stay_open] == [True, False]
    del in_use
    assert files.opened == 2
    assert files.may_stay_open


def test_open_files_without_a_descriptor_close_those_that_are_not_in_use(
    segment: Path, tmp_path: Path
) -> None:
    files = OpenFiles(MANY)
    other = tmp_path / "other.log"
    other.touch()
    in_use = files.get(str(other))
    files.get(str(segment))
    third = tmp_path / "third.log"
    third.touch()
    with no_descriptor_left():
        assert files.get(str(third)).descriptor >= 0
        assert (len(files), files.opened) == (1, 2)
        files.forget()
        with pytest.raises(FileNotFoundError):
            files.get(str(tmp_path / "none"))
    del in_use


def test_open_files_without_a_descriptor_use_the_reserve(segment: Path, tmp_path: Path) -> None:
    files = OpenFiles(MANY)
    other = tmp_path / "other.log"
    other.touch()
    with no_descriptor_left():
        in_use = files.get(str(segment))
        with pytest.raises(OSError, match="Too many open files"):
            files.get(str(other))
    del in_use


def test_reserve_is_taken_back_when_a_topic_is_deleted(segment: Path) -> None:
    files = OpenFiles(MANY)
    with no_descriptor_left():
        for _ in range(3):
            assert files.get(str(segment)).descriptor >= 0
            files.forget()
            with pytest.raises(OSError, match="Too many open files"):
                os.dup(0)


def test_open_files_that_were_removed_are_closed(segment: Path, tmp_path: Path) -> None:
    files = OpenFiles(MANY)
    before = open_below(tmp_path)
    kept = tmp_path / "kept.log"
    kept.touch()
    files.get(str(segment))
    files.get(str(kept))
    segment.unlink()
    files.forget_removed()
    assert (len(files), open_below(tmp_path)) == (1, before + 1)
    files.forget()
