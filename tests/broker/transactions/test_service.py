"""Decisions are stored before they are answered, and markers are sent until all are written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.groups.hooks import COMPLETING, PREPARED
from minibroker.broker.settings import Settings
from minibroker.broker.transactions.service import (
    TransactionAnswer,
    TransactionLimits,
    TransactionService,
    report_transaction,
)
from minibroker.broker.transactions.state_machine import (
    EPOCH_MAX,
    AddPartitions,
    EndTransaction,
    InitProducer,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
    VerifyPartitions,
    new_metadata,
)
from minibroker_protocol.errors import ErrorCode
from tests.broker.groups.held import TestHoldPoints

if TYPE_CHECKING:
    from tests.broker.transactions.conftest import Cluster

OK = ErrorCode.NONE
PARTS = frozenset({("t", 0), ("t", 1)})
INIT = InitProducer(60_000, None, 2)


@asynccontextmanager
async def running(cluster: Cluster) -> AsyncIterator[TransactionService]:
    """A coordinator after a start or restart."""
    service = cluster.service()
    indexes = {int(path.name.rpartition("-")[2]) for path in cluster.disk.directory.iterdir()}
    service.load(indexes)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        yield service
        nursery.cancel_scope.cancel()


async def begin(service: TransactionService) -> ProducerIdAndEpoch:
    error, producer = await service.init_producer("x", INIT)
    assert error is OK
    assert service.add_partitions("x", AddPartitions(producer, PARTS, 2)) is OK
    return producer


async def end(service: TransactionService, producer: ProducerIdAndEpoch) -> TransactionAnswer:
    return await service.end("x", EndTransaction(producer, True, 2))


def state(service: TransactionService) -> TransactionMetadata:
    metadata = service.describe("x")
    assert isinstance(metadata, TransactionMetadata)
    return metadata


async def test_markers_go_to_owners_and_complete_transaction(cluster: Cluster) -> None:
    async with running(cluster) as service:
        producer = await begin(service)
        assert await end(service, producer) == (OK, (producer.producer_id, 1))
        assert state(service).state is TransactionState.PREPARE_COMMIT
        await wait_all_tasks_blocked()
        assert state(service).state is TransactionState.COMPLETE_COMMIT
    assert sorted((owner, marker.partitions) for owner, (marker,) in cluster.sent) == [
        (0, (("t", 0),)),
        (1, (("t", 1),)),
    ]
    [marker] = cluster.sent[0][1]
    assert (marker.producer_epoch, marker.coordinator_epoch, marker.committed) == (1, 4, True)
    assert marker.transaction_version == 2


async def test_decision_survives_death_before_its_markers(cluster: Cluster) -> None:
    cluster.answers = trio.Event()
    async with running(cluster) as service:
        producer = await begin(service)
        assert (await end(service, producer)).error is OK
        await wait_all_tasks_blocked()
    cluster.disk.kill()
    cluster.sent.clear()
    cluster.answers.set()
    async with running(cluster) as service:
        await wait_all_tasks_blocked()
        assert {each for _, (marker,) in cluster.sent for each in marker.partitions} == PARTS
        assert state(service).state is TransactionState.COMPLETE_COMMIT
        assert await end(service, producer) == (OK, (producer.producer_id, 1))


@pytest.mark.parametrize("failure", ["lost", "not leader"])
async def test_failed_markers_are_sent_again(
    cluster: Cluster, failure: str, autojump_clock: MockClock
) -> None:
    async with running(cluster) as service:
        producer = await begin(service)
        if failure == "lost":
            cluster.lost = 1
        else:
            cluster.errors["t", 0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
        await end(service, producer)
        await trio.sleep(0.05)
        assert state(service).is_prepared
        assert len(state(service).partitions) == 1
        cluster.errors.clear()
        await trio.sleep(0.1)
        assert state(service).state is TransactionState.COMPLETE_COMMIT
        assert len(cluster.sent) == 3


@pytest.mark.parametrize(
    "error", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_PRODUCER_EPOCH]
)
async def test_partition_that_needs_no_marker_is_dropped(
    cluster: Cluster, error: ErrorCode
) -> None:
    cluster.errors["t", 0] = error
    async with running(cluster) as service:
        await end(service, await begin(service))
        await wait_all_tasks_blocked()
        assert state(service).state is TransactionState.COMPLETE_COMMIT


async def test_fenced_coordinator_stops_sending(
    cluster: Cluster, autojump_clock: MockClock
) -> None:
    cluster.errors["t", 0] = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    async with running(cluster) as service:
        await end(service, await begin(service))
        await trio.sleep(5)
        assert len(cluster.sent) == 2
        assert state(service).is_prepared


async def test_completion_that_cannot_be_stored_is_tried_again(
    cluster: Cluster, autojump_clock: MockClock
) -> None:
    cluster.answers = trio.Event()
    async with running(cluster) as service:
        await end(service, await begin(service))
        [index] = cluster.disk.logs
        log = cluster.disk.logs[index]
        working = log.append_prepared
        cluster.disk.fail(index, ErrorCode.KAFKA_STORAGE_ERROR)
        cluster.answers.set()
        await trio.sleep(1)
        assert (state(service).is_prepared, state(service).partitions) == (True, frozenset())
        log.append_prepared = working  # type: ignore[method-assign]
        await trio.sleep(1)
        assert state(service).state is TransactionState.COMPLETE_COMMIT
        assert len(cluster.sent) == 2


async def test_abort_without_partitions_is_complete_at_once(cluster: Cluster) -> None:
    async with running(cluster) as service:
        _, producer = await service.init_producer("x", INIT)
        answer = await service.end("x", EndTransaction(producer, False, 2))
        assert answer == (OK, (producer.producer_id, 1))
        assert state(service).state is TransactionState.COMPLETE_ABORT
    assert cluster.sent == []


async def test_changed_states_are_reported(cluster: Cluster, autojump_clock: MockClock) -> None:
    reported: list[tuple[str, str, str | None, str | None]] = []
    async with running(cluster) as service:
        service.on_state = lambda *report: reported.append(report)
        await end(service, await begin(service))
        await wait_all_tasks_blocked()
        cluster.time_ms += service.limits.id_expiration_ms
        await trio.sleep(101)
    assert {(what, name) for what, name, _, _ in reported} == {("transaction", "x")}
    assert [after for _, _, _, after in reported] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "CompleteCommit",
        None,
    ]


async def test_decision_that_cannot_be_stored_is_not_made(cluster: Cluster) -> None:
    async with running(cluster) as service:
        producer = await begin(service)
        [index] = cluster.disk.logs
        cluster.disk.fail(index, ErrorCode.KAFKA_STORAGE_ERROR)
        assert await end(service, producer) == (ErrorCode.NOT_COORDINATOR, (-1, -1))
        assert state(service).state is TransactionState.ONGOING
        await wait_all_tasks_blocked()
    assert cluster.sent == []


@pytest.mark.parametrize("version", [0, 2])
async def test_timed_out_transaction_is_aborted(
    cluster: Cluster, version: int, autojump_clock: MockClock
) -> None:
    cluster.version = version
    async with running(cluster) as service:
        producer = await begin(service)
        cluster.time_ms += 60_000
        await trio.sleep(10.1)
        assert state(service).state is TransactionState.ONGOING
        cluster.time_ms += 1
        await trio.sleep(10.1)
        assert state(service).state is TransactionState.COMPLETE_ABORT
        assert {marker.committed for _, markers in cluster.sent for marker in markers} == {False}
        assert (await end(service, producer)).error is ErrorCode.INVALID_TXN_STATE
        added = service.add_partitions("x", AddPartitions(producer, PARTS, 2))
        assert added is ErrorCode.PRODUCER_FENCED


async def test_unused_id_expires(cluster: Cluster, autojump_clock: MockClock) -> None:
    async with running(cluster) as service:
        await service.init_producer("x", INIT)
        cluster.time_ms += service.limits.id_expiration_ms
        await trio.sleep(101)
        assert service.describe("x") is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    cluster.disk.kill()
    async with running(cluster) as service:
        assert list(service.list_transactions()) == []


async def test_id_of_other_coordinator_is_rejected(cluster: Cluster) -> None:
    async with running(cluster) as service:
        producer = await begin(service)
        cluster.owned = frozenset()
        not_here = ErrorCode.NOT_COORDINATOR
        assert (await service.init_producer("x", INIT)).error is not_here
        assert (await end(service, producer)).error is not_here
        assert service.add_partitions("x", AddPartitions(producer, PARTS, 2)) is not_here
        assert service.verify("x", VerifyPartitions(producer, frozenset({("t", 0)}))) == {
            ("t", 0): not_here
        }
        assert service.describe("x") is not_here


async def test_id_is_rejected_while_it_is_not_loaded(cluster: Cluster) -> None:
    async with running(cluster) as service:
        producer = await begin(service)
    cluster.disk.broken = set(cluster.disk.logs)
    cluster.disk.kill()
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    async with running(cluster) as service:
        assert list(service.unloaded) == list(cluster.disk.broken)
        assert (await service.init_producer("x", INIT)).error is loading
        assert service.verify("x", VerifyPartitions(producer, PARTS)) == dict.fromkeys(
            PARTS, loading
        )


async def test_producer_without_new_id_retries(cluster: Cluster) -> None:
    cluster.next_id = None
    async with running(cluster) as service:
        answer = await service.init_producer("x", INIT)
        assert answer == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, (-1, -1))


async def test_end_that_needs_a_new_producer_id_is_not_decided_at_once(cluster: Cluster) -> None:
    async with running(cluster) as service:
        producer = await begin(service)
        last = state(service)._replace(producer_epoch=EPOCH_MAX - 1)
        service._manager.transactions["x"] = last
        event = EndTransaction(producer._replace(epoch=EPOCH_MAX - 1), True, 2)
        assert service.end_at_once("x", event) is None
        assert state(service) == last
        answer = await service.end("x", event)
        assert answer.producer.epoch == 0
        assert service.end_at_once("unknown", event) is not None


async def test_reset_forgets_everything_and_late_answers(cluster: Cluster) -> None:
    cluster.answers = trio.Event()
    async with running(cluster) as service:
        await end(service, await begin(service))
        await wait_all_tasks_blocked()
        service.reset()
        cluster.answers.set()
        await wait_all_tasks_blocked()
        assert service.describe("x") is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert (await service.init_producer("x", INIT)).producer.epoch == 0


async def test_prepared_transaction_is_held_before_its_markers(cluster: Cluster) -> None:
    points = cluster.hold_points = TestHoldPoints(PREPARED)
    async with running(cluster) as service:
        producer = await begin(service)
        assert (await end(service, producer)).error is OK
        await wait_all_tasks_blocked()
        assert (points.held, cluster.sent) == ([(PREPARED, "x")], [])
        assert state(service).state is TransactionState.PREPARE_COMMIT
        points.release()
        await wait_all_tasks_blocked()
        assert state(service).state is TransactionState.COMPLETE_COMMIT


async def test_transaction_is_held_before_it_is_complete(
    cluster: Cluster, autojump_clock: MockClock
) -> None:
    points = cluster.hold_points = TestHoldPoints(COMPLETING)
    async with running(cluster) as service:
        producer = await begin(service)
        await end(service, producer)
        await trio.sleep(60)
        assert points.held == [(COMPLETING, "x")]
        assert len(cluster.sent) == 2
        assert state(service).is_prepared
        points.release()
        assert state(service).state is TransactionState.COMPLETE_COMMIT
        points.release()
    cluster.disk.kill()
    async with running(cluster) as service:
        assert state(service).state is TransactionState.COMPLETE_COMMIT


async def test_completion_that_fails_after_its_release_is_tried_again(
    cluster: Cluster, autojump_clock: MockClock
) -> None:
    points = cluster.hold_points = TestHoldPoints(COMPLETING)
    async with running(cluster) as service:
        await end(service, await begin(service))
        await wait_all_tasks_blocked()
        (index,) = cluster.disk.logs
        append = cluster.disk.logs[index].append_prepared
        cluster.disk.fail(index, ErrorCode.KAFKA_STORAGE_ERROR)
        points.points = ()
        points.release()
        assert state(service).is_prepared
        cluster.disk.logs[index].append_prepared = append  # type: ignore[method-assign]
        await trio.sleep(1)
        assert state(service).state is TransactionState.COMPLETE_COMMIT


async def test_release_after_a_reset_changes_nothing(cluster: Cluster) -> None:
    points = cluster.hold_points = TestHoldPoints(PREPARED, COMPLETING)
    async with running(cluster) as service:
        await end(service, await begin(service))
        points.release()
        await wait_all_tasks_blocked()
        assert points.held == [(COMPLETING, "x")]
        service.reset()
        points.release()
        assert list(service.list_transactions()) == []


async def test_transaction_expires_by_request(cluster: Cluster) -> None:
    async with running(cluster) as service:
        assert await service.expire("x") is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        error, producer = await service.init_producer("x", INIT)
        assert await service.expire("x") is ErrorCode.INVALID_TXN_STATE
        service.add_partitions("x", AddPartitions(producer, PARTS, 2))
        assert (error, await service.expire("x")) == (OK, OK)
        assert await service.expire("x") is ErrorCode.CONCURRENT_TRANSACTIONS
        await wait_all_tasks_blocked()
        assert state(service).state is TransactionState.COMPLETE_ABORT
        assert (await end(service, producer)).error is ErrorCode.INVALID_TXN_STATE


async def test_held_markers_are_sent_when_released(cluster: Cluster) -> None:
    async with running(cluster) as service:
        await service.hold_markers()
        await end(service, await begin(service))
        await wait_all_tasks_blocked()
        assert cluster.sent == []
        service.release_markers()
        await wait_all_tasks_blocked()
        assert state(service).state is TransactionState.COMPLETE_COMMIT


async def test_hold_waits_for_markers_that_were_sent(cluster: Cluster) -> None:
    cluster.answers = trio.Event()
    held = trio.Event()

    async def hold(service: TransactionService) -> None:
        await service.hold_markers()
        held.set()

    async with running(cluster) as service, trio.open_nursery() as nursery:
        await end(service, await begin(service))
        await wait_all_tasks_blocked()
        nursery.start_soon(hold, service)
        await wait_all_tasks_blocked()
        assert not held.is_set()
        cluster.answers.set()
        await held.wait()
        assert state(service).state is TransactionState.COMPLETE_COMMIT


async def test_reset_that_keeps_logs_is_undone_by_loading(cluster: Cluster) -> None:
    async with running(cluster) as service:
        producer = await begin(service)
        service.reset(keep_logs=True)
        assert list(service.list_transactions()) == []
        service.load(range(50))
        assert state(service).producer_id == producer.producer_id


METADATA = new_metadata(1, timeout_ms=1000, now_ms=0)


@dataclass
class Reports:
    """What was reported."""

    all: list[tuple[str, str, str | None, str | None]] = field(default_factory=list)

    def __call__(self, what: str, name: str, before: str | None, after: str | None) -> None:
        self.all.append((what, name, before, after))


def test_transaction_is_reported_when_its_state_changes() -> None:
    reports = Reports()
    ongoing = METADATA._replace(state=TransactionState.ONGOING)
    report_transaction(reports, "t", None, METADATA)
    report_transaction(reports, "t", METADATA, METADATA)
    report_transaction(reports, "t", METADATA, ongoing)
    report_transaction(reports, "t", ongoing, None)
    report_transaction(None, "t", None, METADATA)
    assert [(before, after) for _, _, before, after in reports.all] == [
        (None, "Empty"),
        ("Empty", "Ongoing"),
        ("Ongoing", None),
    ]


def test_limits_are_kafkas_defaults() -> None:
    assert TransactionLimits.from_settings(Settings.from_sources()) == TransactionLimits()


def test_intervals_are_converted_to_seconds() -> None:
    settings = Settings.from_sources(
        pairs=[
            "transaction.abort.timed.out.transaction.cleanup.interval.ms=500",
            "transaction.remove.expired.transaction.cleanup.interval.ms=1500",
        ]
    )
    limits = TransactionLimits.from_settings(settings)
    assert (limits.abort_interval_s, limits.expiry_interval_s) == (0.5, 1.5)
