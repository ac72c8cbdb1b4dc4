"""Verification of transactional batches: guards, errors of the coordinator, and retries."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from minibroker.broker.apis.transaction_verification import (
    RETRIES_MAX,
    RETRY_PAUSE_S,
    ProducerSession,
    TransactionSupport,
    Verified,
    produce_error,
    support_of,
    verify_here,
    verify_transaction,
)
from minibroker.broker.log.producers import NO_GUARD
from minibroker.runtime.rpc import PeerFailed, PeerLost
from minibroker_protocol.errors import ErrorCode
from tests.broker.apis.transactional import PID, producer_at

SESSION = ProducerSession("id", PID, 0)
PARTITION = ("t", 0)
ADDS = TransactionSupport.ADD_PARTITION
VERIFIES = TransactionSupport.DEFAULT_ERROR
Verify = Callable[..., Any]


@pytest.fixture
def worker(log_apis: Any) -> Any:
    """The owner of the partition."""
    (owner,) = (each for each in log_apis.workers.values() if each.partition(*PARTITION))
    return owner


async def verify(worker: Any, support: TransactionSupport = ADDS, epoch: int = 0) -> Verified:
    session = SESSION._replace(producer_epoch=epoch)
    return await verify_transaction(worker, session, {PARTITION: 0}, support)


@pytest.mark.parametrize(
    ("version", "support"),
    [
        (10, TransactionSupport.DEFAULT_ERROR),
        (11, TransactionSupport.GENERIC_ERROR),
        (12, TransactionSupport.ADD_PARTITION),
    ],
)
def test_support_follows_from_version(version: int, support: TransactionSupport) -> None:
    assert support_of(version, generic_since=11, add_since=12) is support


@pytest.mark.parametrize("support", [ADDS, VERIFIES, TransactionSupport.GENERIC_ERROR])
async def test_confirmed_partition_has_a_guard(worker: Any, support: TransactionSupport) -> None:
    verified = await verify(worker, support)
    assert verified.errors == {}
    assert verified.guards[PARTITION] != NO_GUARD
    (asked,) = worker.coordinator.asked
    assert (asked.transactional_id, asked.producer_id, asked.partitions) == (
        "id",
        PID,
        (PARTITION,),
    )
    assert asked.verify_only is not support.adds


async def test_disabled_verification_gives_a_guard_without_the_coordinator(worker: Any) -> None:
    verified = await verify(worker, TransactionSupport.UNVERIFIED)
    assert verified.guards[PARTITION] != NO_GUARD
    assert worker.coordinator.asked == []


async def test_partition_with_records_of_the_transaction_needs_no_confirmation(
    log_apis: Any, worker: Any
) -> None:
    producer_at(log_apis, *PARTITION).write()
    assert await verify(worker) == Verified({PARTITION: NO_GUARD}, {})
    assert worker.coordinator.asked == []


async def test_partitions_that_cannot_be_appended_to_are_not_confirmed(
    log_apis: Any, worker: Any
) -> None:
    producer = producer_at(log_apis, *PARTITION)
    producer.write()
    producer.end(committed=True)
    fenced = await verify(worker, epoch=0)
    assert fenced.errors == {PARTITION: ErrorCode.INVALID_PRODUCER_EPOCH}
    worker.partition(*PARTITION).update_leadership(2, 1)
    moved = await verify(worker, epoch=1)
    assert moved.errors == {PARTITION: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    unknown = await verify_transaction(worker, SESSION, {("no", 0): 0}, ADDS)
    assert unknown.errors == {("no", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert worker.coordinator.asked == []


@pytest.mark.parametrize(
    ("answer", "support", "error"),
    [
        (ErrorCode.PRODUCER_FENCED, ADDS, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.TRANSACTION_ABORTABLE, VERIFIES, ErrorCode.INVALID_TXN_STATE),
        (
            ErrorCode.TRANSACTION_ABORTABLE,
            TransactionSupport.GENERIC_ERROR,
            ErrorCode.TRANSACTION_ABORTABLE,
        ),
        (ErrorCode.CONCURRENT_TRANSACTIONS, VERIFIES, ErrorCode.CONCURRENT_TRANSACTIONS),
        (PeerLost("it died"), ADDS, ErrorCode.NETWORK_EXCEPTION),
        (PeerFailed("it broke"), ADDS, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_partition_that_is_not_confirmed_has_an_error(
    worker: Any, answer: Any, support: TransactionSupport, error: ErrorCode
) -> None:
    worker.coordinator.answers = [answer]
    assert await verify(worker, support) == Verified({}, {PARTITION: error})
    assert len(worker.coordinator.asked) == 1


@pytest.mark.parametrize("busy", [1, RETRIES_MAX, RETRIES_MAX + 1])
async def test_concurrent_transaction_is_retried_if_partition_is_added(
    worker: Any, busy: int
) -> None:
    worker.coordinator.answers = [ErrorCode.CONCURRENT_TRANSACTIONS] * busy
    verified = await verify(worker)
    is_late = busy > RETRIES_MAX
    assert verified.errors == ({PARTITION: ErrorCode.CONCURRENT_TRANSACTIONS} if is_late else {})
    assert worker.slept_s == pytest.approx(min(busy, RETRIES_MAX) * RETRY_PAUSE_S)


@pytest.mark.parametrize(
    ("error", "support", "expected"),
    [
        (ErrorCode.NOT_COORDINATOR, ADDS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NETWORK_EXCEPTION, VERIFIES, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, VERIFIES, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, VERIFIES, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ADDS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.INVALID_TXN_STATE, VERIFIES, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ADDS, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_produce_translates_errors_that_its_clients_do_not_retry(
    error: ErrorCode, support: TransactionSupport, expected: ErrorCode
) -> None:
    assert produce_error(error, support)[0] is expected


@pytest.mark.parametrize("support", TransactionSupport)
async def test_coordinator_in_this_worker_confirms_at_once(
    worker: Any, support: TransactionSupport
) -> None:
    answers = {"error": ErrorCode.NONE}
    worker.transactions = SimpleNamespace(
        add_partitions=lambda _id, _event: answers["error"],
        verify=lambda _id, event: dict.fromkeys(event.partitions, answers["error"]),
    )
    partition = worker.partition(*PARTITION)
    guard = verify_here(worker, SESSION, partition, 0, support)
    assert guard is not None
    assert partition.log.producers.verifications.is_verified(PID, guard)
    for answers["error"] in (ErrorCode.NOT_COORDINATOR, ErrorCode.CONCURRENT_TRANSACTIONS):
        assert verify_here(worker, SESSION, partition, 0, support) is None


async def test_open_transaction_is_not_verified_again(log_apis: Any, worker: Any) -> None:
    producer_at(log_apis, *PARTITION).write()
    assert verify_here(worker, SESSION, worker.partition(*PARTITION), 1, ADDS) == NO_GUARD
