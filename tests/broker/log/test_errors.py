"""Tests."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pytest

from minibroker.broker.log import errors
from minibroker.broker.log.errors import LogError
from minibroker_protocol.errors import ErrorCode


def test_log_error_can_be_pickled() -> None:
    error = LogError(ErrorCode.CORRUPT_MESSAGE, "why")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.code, copy.text, str(copy)) == (2, "why", "CORRUPT_MESSAGE: why")


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, True),
        (errno.EDQUOT, True),
        (errno.EROFS, True),
        (errno.EIO, True),
        (errno.ENOENT, False),
        (errno.EMFILE, False),
    ],
)
def test_is_unwritable_is_true_for_storage_errors_only(number: int, expected: bool) -> None:
    assert errors.is_unwritable(OSError(number, "")) is expected


def test_description_names_path_error_and_free_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "t-0")
    found = os.statvfs(tmp_path)
    monkeypatch.setattr("os.statvfs", {str(tmp_path): found}.__getitem__)  # Others write too.
    text = errors.describe(path, OSError(errno.ENOSPC, "No space left on device"))
    assert text == f"{path}: No space left on device; {errors.free_bytes(path)} bytes are free"
    assert errors.free_bytes(path) > 0


def test_free_bytes_of_a_missing_directory_are_unknown() -> None:
    assert errors.free_bytes("/no/such/path") == -1


def test_probe_of_a_writable_directory_leaves_nothing(tmp_path: Path) -> None:
    assert errors.probe(str(tmp_path)) is None
    assert os.listdir(tmp_path) == []


def test_probe_returns_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    error = errors.probe(str(tmp_path))
    assert error is not None
    assert error.errno == errno.ENOSPC
    assert os.listdir(tmp_path) == []


def test_probe_fails_if_little_space_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "free_bytes", lambda _: errors.FREE_BYTES_MIN - 1)
    error = errors.probe(str(tmp_path))
    assert error is not None
    assert error.errno == errno.ENOSPC


def test_partially_written_probe_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda *_: 7)
    error = errors.probe(str(tmp_path))
    assert error is not None
    assert error.errno == errno.ENOSPC
