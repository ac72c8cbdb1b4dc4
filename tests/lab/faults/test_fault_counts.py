"""Counts of rules are exact over processes, and survive those that are killed."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from minibroker.broker.log.data_directory import FAULT_COUNTS_FILE
from minibroker.lab.faults.fault_counts import FaultCounts
from minibroker.lab.faults.fault_rule import FaultRule
from minibroker.lab.faults.rulebook import NO_COUNTS, RuleCounts
from minibroker.lab.faults.rules import ActiveRule

RULE = ActiveRule("1", FaultRule("fail_append", first=30, after_ms=1000), slot=999, added=5.0)


def test_rule_fires_exactly_as_often_as_it_says_in_several_files(tmp_path: Path) -> None:
    def match(_: int) -> int:
        counts = FaultCounts(tmp_path)
        fired = sum(counts.decide(RULE, 6.0) for _ in range(20))
        counts.close()
        return fired

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(match, range(4))) == 30
    assert FaultCounts(tmp_path).read(999) == RuleCounts(80, 30, 0, 0)


def test_match_outside_of_the_time_is_not_counted(tmp_path: Path) -> None:
    counts = FaultCounts(tmp_path)
    assert not counts.decide(RULE, 5.5)
    assert counts.read(999) == NO_COUNTS


def test_counts_are_written_and_read_back(tmp_path: Path) -> None:
    first, second = FaultCounts(tmp_path), FaultCounts(tmp_path)
    first.write(3, RuleCounts(4, 3, 2, 1))
    assert second.read(3) == RuleCounts(4, 3, 2, 1)
    assert second.read(2) == NO_COUNTS


def test_full_disk_is_an_error_without_a_leak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No space"):
        FaultCounts(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
    assert (tmp_path / FAULT_COUNTS_FILE).exists()
