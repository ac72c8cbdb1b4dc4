"""Every file call of a log fails once, and nothing that was acknowledged is lost or doubled.

The scenario is run once to count its file calls and then once for each of them, which fails. An
operation that fails is tried again, as clients and the worker's timers do.
"""

from __future__ import annotations

import builtins
import dataclasses
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.log import Appended, Log
from minibroker.broker.log.segment import SegmentFiles
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import Record, build_batch, iter_batches, iter_records
from tests.descriptors import open_below

NOW_MS = 1_700_000_000_000
T = TypeVar("T")
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100, file_delete_delay_ms=0)
FLUSHED = dataclasses.replace(CONFIG, flush_messages=1)
CALLS = (
    *("open", "pwritev", "ftruncate", "fsync", "replace", "unlink", "listdir", "mkdir"),
    *("pread", "stat"),
)
ERRORS = (errno.EMFILE, errno.EIO, errno.ENOMEM)
STORAGE = ErrorCode.KAFKA_STORAGE_ERROR
TRIES_MAX = 3


class Faults:
    """Counts file calls, and lets the one with the given number fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.failing = -1
        self.is_paused = False
        self.errno = errno.EMFILE
        for name in CALLS:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))
        monkeypatch.setattr(builtins, "open", self._counted(builtins.open))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.calls += not self.is_paused
            if not self.is_paused and self.calls == self.failing:
                raise OSError(self.errno, os.strerror(self.errno))
            return call(*arguments, **options)

        return counted


class Scenario:
    """A log that is used, killed and closed, and what it acknowledged."""

    def __init__(self, folder: Path, faults: Faults, config: LogConfig) -> None:
        self.folder = folder
        self.config = config
        self.faults = faults
        self.files = SegmentFiles(2)
        self.acknowledged: dict[int, bytes] = {}
        self.log = self.open()
        self.sequence = 0

    def open(self) -> Log:
        return self.tried(
            lambda: Log.open(
                self.folder,
                *("t", 0, self.config),
                now_ms=NOW_MS,
                topic_id=b"1" * 16,
                files=self.files,
            )
        )

    @staticmethod
    def tried(call: Callable[[], T]) -> T:
        for _ in range(TRIES_MAX):
            try:
                return call()
            except (LogError, OSError) as error:
                if isinstance(error, LogError) and error.code is not STORAGE:
                    raise
        raise AssertionError("it fails again and again")

    def append(self, *, idempotent: bool) -> None:
        value = b"%d" % len(self.acknowledged)
        batch = build_batch(
            [Record(timestamp=NOW_MS, key=b"k", value=value)],
            producer_id=5 if idempotent else -1,
            producer_epoch=0 if idempotent else -1,
            base_sequence=self.sequence if idempotent else -1,
        )
        self.sequence += idempotent
        appended = self.tried(lambda: self.append_once(batch))
        assert appended.base_offset not in self.acknowledged
        self.acknowledged[appended.base_offset] = value

    def append_once(self, batch: bytes) -> Appended:
        end_offset = self.log.log_end_offset
        try:
            return self.log.append(batch, now_ms=NOW_MS)
        except LogError:
            assert self.log.log_end_offset == end_offset
            raise

    def check(self) -> None:
        self.faults.is_paused = True
        records_found: dict[int, bytes] = {}
        offset = self.log.log_start_offset
        while offset < self.log.log_end_offset:
            file_slice = self.log.read(offset, 10_000)
            assert file_slice is not None
            data = file_slice.load()
            for position, header in iter_batches(data):
                for record in iter_records(data[position : position + header.size]):
                    records_found[record.offset] = record.value or b""
                offset = header.next_offset
        assert sorted(records_found) == list(
            range(self.log.log_start_offset, self.log.log_end_offset)
        )
        retained = {
            offset: value
            for offset, value in self.acknowledged.items()
            if offset >= self.log.log_start_offset
        }
        assert {offset: records_found[offset] for offset in retained} == retained
        self.faults.is_paused = False

    def kill(self) -> None:
        self.log.abandon()
        self.log = self.open()

    def close(self) -> None:
        with suppress(LogError):  # A close that fails is as good as a kill.
            self.log.close(now_ms=NOW_MS)
        self.log = self.open()

    def run(self) -> None:
        steps: list[Callable[[], object]] = [
            *[lambda: self.append(idempotent=True)] * 4,
            *[lambda: self.append(idempotent=False)] * 4,
            lambda: self.tried(lambda: self.log.flush(now_ms=NOW_MS)),
            *[lambda: self.append(idempotent=True)] * 3,
            self.kill,
            *[lambda: self.append(idempotent=True)] * 3,
            lambda: self.tried(lambda: self.log.delete_records(9)),
            lambda: self.tried(lambda: self.log.apply_retention(now_ms=NOW_MS)),
            self.close,
            lambda: self.append(idempotent=True),
        ]
        for step in steps:
            step()
            self.check()
        self.kill()
        self.check()
        self.log.abandon()


@pytest.mark.parametrize("config", [CONFIG, FLUSHED], ids=["unflushed", "flushed"])
def test_log_keeps_acknowledged_records_if_any_file_call_fails(
    config: LogConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counted").mkdir()
    with monkeypatch.context() as context:
        faults = Faults(context)
        Scenario(tmp_path / "counted", faults, config).run()
        calls = faults.calls
    assert calls > 100
    for failing in range(1, calls + 1):
        folder = tmp_path / str(failing)
        folder.mkdir()
        with monkeypatch.context() as context:
            faults = Faults(context)
            faults.failing, faults.errno = failing, ERRORS[failing % len(ERRORS)]
            try:
                Scenario(folder, faults, config).run()
            except BaseException as error:
                raise AssertionError(f"with call {failing} failing") from error
        assert open_below(tmp_path) == 0, f"with call {failing} failing"
