"""The lock of a data directory, between open files and between processes."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from minibroker.runtime.dirlock import HOLDER_BYTES_MAX, LOCK_FILE, DirLock, DirLockedError


def test_second_lock_is_rejected_with_its_holder(tmp_path: Path) -> None:
    with DirLock(tmp_path, "starting") as lock:
        lock.describe("minibroker on 127.0.0.1:9092")
        with pytest.raises(DirLockedError) as refused:
            DirLock(tmp_path, "another")
    text = str(refused.value)
    assert str(tmp_path) in text
    assert f"pid {os.getpid()}, minibroker on 127.0.0.1:9092" in text
    assert "give another directory" in text
    DirLock(tmp_path, "next").release()


def test_lock_file_of_dead_process_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).write_text("pid 1, long gone, with a rather long description\n")
    with DirLock(tmp_path, "new"):
        assert (tmp_path / LOCK_FILE).read_text() == f"pid {os.getpid()}, new\n"


def test_lock_of_killed_holder_is_released_by_its_last_child(tmp_path: Path) -> None:
    end_read, end_write = os.pipe()
    pid_read, pid_write = os.pipe()
    holder = os.fork()
    if holder == 0:
        try:
            DirLock(tmp_path, "holder")
            if os.fork() == 0:
                os.close(end_write)
                os.write(pid_write, str(os.getpid()).encode())
                os.read(end_read, 1)
        finally:
            os._exit(0)
    os.waitpid(holder, 0)
    last_child = os.pidfd_open(int(os.read(pid_read, 100)))
    with pytest.raises(DirLockedError, match=f"pid {holder}, holder"):
        DirLock(tmp_path, "too early")
    os.close(end_write)
    assert select.select([last_child], [], [], 120)[0]
    DirLock(tmp_path, "next").release()
    for fd in (end_read, pid_read, pid_write, last_child):
        os.close(fd)


def test_long_description_is_cut(tmp_path: Path) -> None:
    with DirLock(tmp_path, "x" * 5000):
        assert (tmp_path / LOCK_FILE).stat().st_size == HOLDER_BYTES_MAX


def test_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DirLock(tmp_path / "missing", "x")


def test_lock_file_that_is_a_link_is_rejected_and_its_target_unchanged(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    (tmp_path / LOCK_FILE).symlink_to(tmp_path / "notes")
    with pytest.raises(OSError, match="symbolic links"):
        DirLock(tmp_path, "x")
    assert (tmp_path / "notes").read_text() == "mine"
