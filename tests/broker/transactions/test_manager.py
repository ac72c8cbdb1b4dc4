"""Transactional ids survive kills; failed writes change nothing."""

from __future__ import annotations

import pytest

from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.transactions.manager import (
    MARKERS_PER_REQUEST_MAX,
    MarkerQueue,
    TransactionManager,
)
from minibroker.broker.transactions.state_machine import TransactionMetadata, TransactionState
from minibroker_protocol.errors import ErrorCode
from tests.broker.log.cleaner.cleaned_partition import compact
from tests.broker.transactions.conftest import START_MS, StateDisk

STATE = TransactionMetadata(1, 0, 60_000, TransactionState.EMPTY, frozenset(), -1, 5, 1)
OK = ErrorCode.NONE


def manager(disk: StateDisk) -> TransactionManager:
    return TransactionManager(
        partitions=50, open_partition=disk.open, transaction_version=lambda: 2
    )


def stored(disk: StateDisk) -> list[int]:
    names = (path.name for path in disk.directory.iterdir())
    return [int(name.rpartition("-")[2]) for name in names]


def test_states_are_restored_after_a_kill(disk: StateDisk) -> None:
    first = manager(disk)
    for name in ("a", "b", "c"):
        assert first.store(name, STATE, 1) is OK
    assert first.store("a", STATE._replace(producer_epoch=7), 2) is OK
    assert first.store("b", None, 3) is OK
    assert "b" not in first.transactions
    disk.kill()
    second = manager(disk)
    assert sorted(second.load(stored(disk))) == ["a", "c"]
    assert second.transactions == {"a": STATE._replace(producer_epoch=7), "c": STATE}
    assert second.coordinator_epoch("a") == 4


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST),
    ],
)
def test_failed_write_keeps_previous_state(
    disk: StateDisk, code: ErrorCode, error: ErrorCode
) -> None:
    states = manager(disk)
    assert states.store("a", STATE, 1) is OK
    disk.fail(states.partition_of("a"), code)
    assert states.store("a", STATE._replace(producer_epoch=1), 2) is error
    assert states.store("a", None, 3) is error
    assert states.transactions == {"a": STATE}


def test_partition_that_cannot_be_opened_is_loaded_later(disk: StateDisk) -> None:
    states = manager(disk)
    states.store("a", STATE, 1)
    disk.kill()
    states = manager(disk)
    index = states.partition_of("a")
    disk.broken = {index}
    assert states.load([index]) == []
    assert (list(states.unloaded), states.is_loaded("a")) == ([index], False)
    assert states.is_loaded("b")
    disk.broken = set()
    assert states.load([index]) == ["a"]
    assert states.is_loaded("a")


def test_compacted_log_has_the_current_states(disk: StateDisk) -> None:
    states = manager(disk)
    for number in range(1000):
        assert states.store("a", STATE._replace(producer_epoch=number), number) is OK
    log = disk.logs[states.partition_of("a")]
    large = log.size
    compact(Partition(log, bytes(16), broker_id=1, leader_id=1, leader_epoch=4), START_MS)
    assert log.size < large / 100
    disk.kill()
    again = manager(disk)
    again.load(stored(disk))
    assert again.transactions["a"].producer_epoch == 999


def test_number_of_ids_is_limited(disk: StateDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minibroker.broker.transactions.manager.TRANSACTIONAL_IDS_MAX", 1)
    states = manager(disk)
    assert states.store("a", STATE, 1) is OK
    assert states.store("b", STATE, 1) is ErrorCode.POLICY_VIOLATION
    assert states.store("a", STATE, 1) is OK


def test_cleared_manager_starts_anew(disk: StateDisk) -> None:
    states = manager(disk)
    states.store("a", STATE, 1)
    states.remove_all(clear=True)
    assert states.transactions == {}
    disk.kill()
    again = manager(disk)
    assert again.load(stored(disk)) == []


A, B, C = ("t", 0), ("t", 1), ("t", 2)


def by_index(_topic: str, index: int) -> int:
    return index % 2


def test_markers_are_taken_by_owner() -> None:
    queue = MarkerQueue()
    queue.add("x", frozenset({A, B, C}))
    queue.add("y", frozenset({B}))
    assert queue.take(by_index) == {
        0: {"x": frozenset({A, C})},
        1: {"x": frozenset({B}), "y": frozenset({B})},
    }
    assert len(queue) == 0


def test_markers_of_busy_owner_wait_until_its_request_is_answered() -> None:
    queue = MarkerQueue()
    queue.add("x", frozenset({A}))
    assert queue.take(by_index)
    queue.add("y", frozenset({A, B}))
    assert queue.take(by_index) == {1: {"y": frozenset({B})}}
    queue.sent(0)
    assert queue.take(by_index) == {0: {"y": frozenset({A})}}


def test_owner_is_the_one_at_the_time_of_sending() -> None:
    queue = MarkerQueue()
    queue.add("x", frozenset({A}))
    queue.take(by_index)
    queue.add("x", frozenset({A}))
    assert queue.take(lambda *_: 5) == {5: {"x": frozenset({A})}}


def test_request_has_a_maximum_of_transactions() -> None:
    queue = MarkerQueue()
    for number in range(MARKERS_PER_REQUEST_MAX + 1):
        queue.add(f"x{number}", frozenset({A}))
    [batch] = queue.take(by_index).values()
    assert len(batch) == MARKERS_PER_REQUEST_MAX
    assert len(queue) == 1
    queue.clear()
    queue.sent(0)
    assert queue.take(by_index) == {}


def test_queue_is_busy_until_all_owners_have_answered() -> None:
    queue = MarkerQueue()
    queue.add("x", frozenset({("t", 0), ("t", 1)}))
    states = [queue.is_busy]
    queue.take(lambda _, index: index)
    for owner in (0, 1):
        states.append(queue.is_busy)
        queue.sent(owner)
    assert [*states, queue.is_busy] == [False, True, True, False]
