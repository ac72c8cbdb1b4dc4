"""Produce with transactional batches: verification, guards, and rejected requests."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.produce import API
from minibroker.broker.log.validation import STEP_RECORDS_MAX
from minibroker.broker.metadata.configs import Alteration, ConfigOperation, Op
from minibroker_protocol.control_records import EndTransactionMarker
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.broker.apis.transactional import PID, WALL_MS, transactional_batch

VERSIONS = [9, 11, 12]


def request(*wanted: tuple[int, bytes], transactional_id: str | None = "id") -> ProduceRequest:
    """Batches for partitions of topic ``t``."""
    data = [PartitionProduceData(index=index, records=records) for index, records in wanted]
    return ProduceRequest(
        acks=-1,
        transactional_id=transactional_id,
        topic_data=[TopicProduceData(name="t", partition_data=data)],
    )


def results(response: Any) -> list[tuple[int, int]]:
    return [
        (each.error_code, each.base_offset)
        for topic in response.responses
        for each in topic.partition_responses
    ]


def asked(apis: Any) -> list[Any]:
    return [part for worker in apis.workers.values() for part in worker.coordinator.asked]


def answer_with(apis: Any, error: ErrorCode) -> None:
    for worker in apis.workers.values():
        worker.coordinator.answers = [error]


@pytest.mark.parametrize("version", VERSIONS)
async def test_first_batch_is_verified_and_later_ones_are_not(log_apis: Any, version: int) -> None:
    first = request((0, transactional_batch(0)), (1, transactional_batch(0)))
    assert results(await log_apis.ask(API, first, version)) == [(0, 0), (0, 0)]
    parts = asked(log_apis)
    assert {key for part in parts for key in part.partitions} == {("t", 0), ("t", 1)}
    assert {part.verify_only for part in parts} == {version < 12}
    second = request((0, transactional_batch(1)), (1, transactional_batch(1)))
    assert results(await log_apis.ask(API, second, version)) == [(0, 1), (0, 1)]
    assert asked(log_apis) == parts
    assert log_apis.hosted("t", 0).last_stable_offset == 0


async def disable_verification(apis: Any) -> None:
    step = ConfigOperation("transaction.partition.verification.enable", Op.SET, "false")
    outcome = await apis.cluster.alter_configs([Alteration("brokers", "", (step,))])
    await apis.controller.publish(outcome.updates)


@pytest.mark.parametrize("version", VERSIONS)
async def test_coordinator_is_not_asked_if_verification_is_disabled(
    log_apis: Any, version: int
) -> None:
    await disable_verification(log_apis)
    first = request((0, transactional_batch(0)))
    assert results(await log_apis.ask(API, first, version)) == [(0, 0)]
    adds = version >= 12
    assert bool(asked(log_apis)) is adds
    assert log_apis.hosted("t", 0).last_stable_offset == 0


async def test_batch_that_is_sent_again_is_a_duplicate(log_apis: Any) -> None:
    for _ in range(2):
        response = await log_apis.ask(API, request((0, transactional_batch(0))), 12)
        assert results(response) == [(0, 0)]
    assert log_apis.hosted("t", 0).log.log_end_offset == 1


@pytest.mark.parametrize(
    ("version", "answer", "error"),
    [
        (9, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (9, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (12, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (12, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (12, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
async def test_batch_without_confirmation_is_rejected(
    log_apis: Any, version: int, answer: ErrorCode, error: ErrorCode
) -> None:
    answer_with(log_apis, answer)
    response = await log_apis.ask(API, request((0, transactional_batch(0))), version)
    assert results(response) == [(error, -1)]
    assert log_apis.hosted("t", 0).log.log_end_offset == 0


async def test_batch_is_rejected_if_transaction_ends_while_it_is_verified(log_apis: Any) -> None:
    partition = log_apis.hosted("t", 0)

    def abort() -> None:
        partition.append_marker(
            PID, 0, EndTransactionMarker(False, 0), transaction_version=0, now_ms=WALL_MS
        )

    for worker in log_apis.workers.values():
        worker.coordinator.before_answer = abort
    response = await log_apis.ask(API, request((0, transactional_batch(0))), 9)
    assert results(response) == [(ErrorCode.INVALID_TXN_STATE, -1)]
    assert partition.last_stable_offset == 1


async def test_transactional_batch_without_transactional_id_is_not_authorized(
    log_apis: Any,
) -> None:
    wanted = request((0, transactional_batch(0)), transactional_id=None)
    response = await log_apis.ask(API, wanted, 12)
    assert results(response) == [(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)]


async def test_batches_of_several_producers_are_rejected(log_apis: Any) -> None:
    owner = {index: log_apis.hosted("t", index) for index in range(3)}
    same = [0, 2] if owner[0] is not owner[2] else [0, 1]
    wanted = request(
        (same[0], transactional_batch(0)),
        (same[1], transactional_batch(0, producer_id=PID + 1)),
    )
    response = await log_apis.ask(API, wanted, 12)
    assert results(response) == [(ErrorCode.INVALID_PRODUCER_ID_MAPPING, -1)] * 2
    assert asked(log_apis) == []


async def test_large_transactional_batch_is_verified(log_apis: Any) -> None:
    large = transactional_batch(0, *[b"v"] * (STEP_RECORDS_MAX + 1))
    response = await log_apis.ask(API, request((0, large)), 12)
    assert results(response) == [(0, 0)]
    assert len(asked(log_apis)) == 1


async def test_rejected_large_batch_beside_transactional_one_has_its_error(log_apis: Any) -> None:
    large = transactional_batch(5, *[b"v"] * (STEP_RECORDS_MAX + 1))
    wanted = request((0, large), (2, transactional_batch(0)))
    response = await log_apis.ask(API, wanted, 12)
    assert results(response) == [(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1), (0, 0)]
