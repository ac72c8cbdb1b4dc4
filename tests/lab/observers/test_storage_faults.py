"""Appends fail, are torn and wait where rules say so, and nowhere else."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.log import Log
from minibroker.broker.log.segment import SegmentFiles
from minibroker.broker.process.environment import WORKER
from minibroker.lab.faults.actions import FailAppend, StallAppend
from minibroker.lab.faults.fault_rule import ActiveRule, FaultRule
from minibroker.lab.faults.register import FaultCounts
from minibroker.lab.observers.messages import FaultRules
from minibroker.lab.observers.storage_faults import StorageFaults
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import Record, build_batch
from tests.broker.process.conftest import MakeEnvironment, make_env

__all__ = ["make_env"]


class At:
    """Logs of one worker whose appends meet rules."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.files = SegmentFiles()
        self.failures: list[int | None] = []
        self.faults = StorageFaults(env, self.files, lambda: None)

    def open(self, topic: str, partition: int) -> Log:
        return Log.open(
            self.env.data_dir,
            topic,
            partition,
            LogConfig(),
            now_ms=0,
            files=self.files,
            on_failure=lambda _, error: self.failures.append(error.errno),
        )

    def set(self, *rules: FaultRule) -> None:
        now = self.env.clock.now()
        active = [ActiveRule(str(slot), rule, slot, now) for slot, rule in enumerate(rules)]
        self.faults.change_rules(FaultRules(1, tuple(active), replaces=True))

    def counts(self, slot: int = 0) -> tuple[int, int]:
        return FaultCounts(self.env.data_dir).read(slot)[:2]


@pytest.fixture
async def at(make_env: MakeEnvironment) -> At:
    return At(make_env(WORKER, 0))


def file_bytes(path: Path) -> int:
    return path.stat().st_size


def append(log: Log) -> ErrorCode:
    try:
        log.append(build_batch([Record(timestamp=1, key=None, value=b"value")]), now_ms=0)
    except LogError as error:
        return error.code
    return ErrorCode.NONE


async def test_only_selected_appends_fail(at: At) -> None:
    logs = {(topic, index): at.open(topic, index) for topic in ("t-1", "u") for index in (0, 1)}
    at.set(FaultRule(FailAppend(errno="EIO"), topic="t*", partition=1, first=1))
    failed = [each for each, log in logs.items() if append(log) is ErrorCode.KAFKA_STORAGE_ERROR]
    assert failed == [("t-1", 1)]
    assert at.failures == [errno.EIO]
    assert append(logs["t-1", 1]) is ErrorCode.NONE
    assert at.counts() == (2, 1)
    assert logs["t-1", 1].log_end_offset == 1


async def test_torn_batch_stays_in_the_file_and_recovery_removes_it(at: At) -> None:
    log = at.open("t", 0)
    append(log)
    at.set(FaultRule(FailAppend(bytes=20)))
    assert append(log) is ErrorCode.KAFKA_STORAGE_ERROR
    path = Path(log.segments.active.path)
    assert file_bytes(path) == log.size + 20
    log.abandon()
    at.set()
    recovered = at.open("t", 0)
    assert (recovered.log_end_offset, file_bytes(path)) == (1, recovered.size)
    assert recovered.truncation is not None
    assert append(recovered) is ErrorCode.NONE
    recovered.abandon()


async def test_torn_batch_is_overwritten_by_the_next_one_and_closed_cleanly(at: At) -> None:
    log = at.open("t", 0)
    at.set(FaultRule(FailAppend(bytes=10_000), first=1))
    assert append(log) is ErrorCode.KAFKA_STORAGE_ERROR
    assert append(log) is ErrorCode.NONE
    at.set(FaultRule(FailAppend(bytes=30)))
    assert append(log) is ErrorCode.KAFKA_STORAGE_ERROR
    at.set()
    log.close(now_ms=0)
    reopened = at.open("t", 0)
    assert reopened.log_end_offset == 1
    assert append(reopened) is ErrorCode.NONE
    reopened.abandon()


async def test_append_waits_and_succeeds(at: At, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    at.set(FaultRule(StallAppend(pause_ms=1500)))
    assert append(at.open("t", 0)) is ErrorCode.NONE
    assert slept == [1.5]


async def test_failure_lasts_as_long_as_its_rule(at: At) -> None:
    for rule in (
        FaultRule(FailAppend(), first=1),
        FaultRule(StallAppend(pause_ms=1)),
        FaultRule(FailAppend(), after_ms=1000),
    ):
        at.set(rule)
        assert not at.faults.fails_always()
    at.set(FaultRule(FailAppend(), until_ms=1000))
    assert at.faults.fails_always()
    at.set()
    assert not at.faults.fails_always()
    assert at.files.write_fault is None


async def test_rule_that_has_no_place_for_its_counts_does_nothing(at: At) -> None:
    at.faults.change_rules(FaultRules(1, (ActiveRule("1", FaultRule(FailAppend())),)))
    assert at.files.write_fault is None


async def test_rules_are_added_and_removed_one_by_one(at: At) -> None:
    log = at.open("t", 0)
    rules = [
        ActiveRule(str(slot), FaultRule(FailAppend(), topic=topic), slot)
        for slot, topic in enumerate(("t", "other", "*"))
    ]
    for number, active in enumerate(rules):
        at.faults.change_rules(FaultRules(number, (active, active)))
    assert append(log) is ErrorCode.KAFKA_STORAGE_ERROR
    assert [at.counts(slot) for slot in range(3)] == [(1, 1), (0, 0), (0, 0)]
    at.faults.change_rules(FaultRules(4, removed=("0", "none")))
    assert append(log) is ErrorCode.KAFKA_STORAGE_ERROR
    assert [at.counts(slot) for slot in range(3)] == [(1, 1), (0, 0), (1, 1)]
    at.faults.change_rules(FaultRules(5, removed=("2",)))
    assert append(log) is ErrorCode.NONE
    at.faults.change_rules(FaultRules(6, removed=("1",)))
    assert at.files.write_fault is None
