"""A log of keyed records, as both coordinators use it (more in ``test_offsets_log``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from minibroker.broker.groups.state_log import StateLog
from minibroker.broker.log.errors import LogError
from minibroker_protocol.errors import DecodeError, ErrorCode

if TYPE_CHECKING:
    from tests.broker.groups.conftest import Disk


def decode(key: bytes, value: bytes | None) -> tuple[bytes, bytes | None] | None:
    if key == b"bad":
        raise DecodeError("bad", 0)
    return None if key == b"unknown" else (key, value)


def replay(log: StateLog) -> list[tuple[bytes, bytes | None]]:
    return [entry for batch in log.batches() for entry in log.entries(batch, decode)]


def test_appended_records_are_replayed_in_order(disk: Disk) -> None:
    log = StateLog(disk.open(0))
    log.append([(b"a", b"1"), (b"b", None)], now_ms=1)
    log.append([(b"a", b"2")], now_ms=2)
    disk.kill()
    assert replay(StateLog(disk.open(0))) == [(b"a", b"1"), (b"b", None), (b"a", b"2")]


def test_records_that_cannot_be_decoded_are_skipped(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    log = StateLog(disk.open(0))
    log.append([(b"unknown", b"1"), (b"bad", b"2"), (b"a", b"3")], now_ms=1)
    assert replay(log) == [(b"a", b"3")]
    assert len(caplog.messages) == 1


def test_large_log_is_split_into_segments_that_can_be_compacted(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibroker.broker.groups.state_log.STATE_LOG_SEGMENT_BYTES", 1000)
    log = StateLog(disk.open(0))
    for number in range(100):
        log.append([(b"a", b"%d" % number), (b"b", b"2")], now_ms=1)
    assert len(log.log.segments) > 5
    assert max(segment.size for segment in log.log.segments) < 1200
    disk.compact(0)
    disk.kill()
    assert replay(StateLog(disk.open(0))) == [(b"a", b"99"), (b"b", b"2")]


def test_log_that_cannot_start_a_segment_grows(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minibroker.broker.groups.state_log.STATE_LOG_SEGMENT_BYTES", 100)
    log = StateLog(disk.open(0))

    def refuse(*, now_ms: int) -> None:
        raise LogError(ErrorCode.KAFKA_STORAGE_ERROR, f"no space left at {now_ms}")

    with monkeypatch.context() as patch:
        patch.setattr(log.log, "roll", refuse)
        for number in range(10):
            log.append([(b"a", b"%d" % number)], now_ms=1)
    assert len(log.log.segments) == 1
    log.append([(b"a", b"10")], now_ms=1)
    assert len(log.log.segments) == 2
    assert len(replay(log)) == 11


def test_cleared_log_is_empty(disk: Disk) -> None:
    log = StateLog(disk.open(0))
    log.append([(b"a", b"1")], now_ms=1)
    log.clear()
    assert replay(log) == []
    assert log.leader_epoch == 0
