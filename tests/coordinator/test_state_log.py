"""A log of keyed records, as both coordinators use it (more in ``test_offsets_log``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from minibroker.coordinator.state_log import StateLog
from protocol.errors import DecodeError

if TYPE_CHECKING:
    from tests.coordinator.conftest import Disk


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


def test_compacted_log_has_only_live_records(disk: Disk) -> None:
    log = StateLog(disk.open(0))
    log.append([(b"a", b"1"), (b"b", b"2")], now_ms=1)
    log.compact([(b"b", b"2")], now_ms=2)
    assert replay(log) == [(b"b", b"2")]
    log.clear()
    assert replay(log) == []
    assert log.leader_epoch == 0
