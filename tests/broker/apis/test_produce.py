"""Produce: appended batches, and the response of each partition."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.base import CloseConnection
from minibroker.broker.apis.produce import API
from minibroker.broker.log.validation import STEP_READS_MAX, STEP_RECORDS_MAX
from minibroker.broker.metadata.configs import Alteration, ConfigOperation, Op
from minibroker_protocol.compression import Compression
from minibroker_protocol.control_records import EndTransactionMarker
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from tests.broker.apis.transactional import PID, WALL_MS, transactional_batch

VERSIONS = [3, 8, 12, 13]


def batch(*values: bytes, **options: Any) -> bytes:
    return build_batch([Record(0, WALL_MS, None, value) for value in values or (b"v",)], **options)


def request(apis: Any, *wanted: tuple[str, int, bytes | None], acks: int = 1) -> ProduceRequest:
    topics: dict[str, TopicProduceData] = {}
    for name, index, records in wanted:
        known = apis.controller.image.topics.get(name)
        topic_id = known.topic_id if known else b"\x01" * 16
        topic = topics.setdefault(name, TopicProduceData(name=name, topic_id=topic_id))
        topic.partition_data.append(PartitionProduceData(index=index, records=records))
    return ProduceRequest(acks=acks, topic_data=list(topics.values()))


def results(response: Any) -> list[tuple[int, int]]:
    return [
        (each.error_code, each.base_offset)
        for topic in response.responses
        for each in topic.partition_responses
    ]


def end(apis: Any, topic: str, partition: int) -> int:
    found: int = apis.hosted(topic, partition).log.log_end_offset
    return found


async def test_partition_of_another_leader_is_rejected(log_apis: Any) -> None:
    log_apis.hosted("t", 0).update_leadership(2, 7)
    response = await log_apis.ask(API, request(log_apis, ("t", 0, batch())), 9)
    assert results(response) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [1, -1])
async def test_each_partition_is_appended_by_its_worker(
    log_apis: Any, version: int, acks: int
) -> None:
    wanted = request(log_apis, ("t", 0, batch(b"a", b"b")), ("t", 1, batch()), ("u", 0, batch()))
    wanted.acks = acks
    response = await log_apis.ask(API, wanted, version)
    assert results(response) == [(0, 0), (0, 0), (0, 0)]
    assert set(log_apis.asked) == {0, 1}
    response = await log_apis.ask(API, request(log_apis, ("t", 0, batch())), version)
    assert results(response) == [(0, 2)]
    assert end(log_apis, "t", 0) == 3
    counted = [entry for worker in log_apis.workers.values() for entry in worker.counted]
    assert sorted((topic, index, count) for topic, index, _, count in counted) == [
        ("t", 0, 1),
        ("t", 0, 2),
        ("t", 1, 1),
        ("u", 0, 1),
    ]
    assert {size for *_, size, count in counted if count == 2} == {len(batch(b"a", b"b"))}


@pytest.mark.parametrize("version", VERSIONS)
async def test_unknown_partitions_are_rejected_and_others_appended(
    log_apis: Any, version: int
) -> None:
    wanted = request(log_apis, ("no", 0, batch()), ("t", 7, batch()), ("t", -1, batch()))
    wanted.topic_data += request(log_apis, ("u", 0, batch())).topic_data
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    no_topic = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else missing
    response = await log_apis.ask(API, wanted, version)
    assert results(response) == [(no_topic, -1), (missing, -1), (missing, -1), (0, 0)]


@pytest.mark.parametrize("acks", [2, -2])
async def test_invalid_acks_are_rejected_without_asking_workers(log_apis: Any, acks: int) -> None:
    response = await log_apis.ask(API, request(log_apis, ("t", 0, batch()), acks=acks), 9)
    assert results(response) == [(ErrorCode.INVALID_REQUIRED_ACKS, -1)]
    assert log_apis.asked == {}


@pytest.mark.parametrize("kind", ["brokers", "topics"])
async def test_acks_all_with_min_insync_replicas_above_the_replicas_is_accepted(
    log_apis: Any, kind: str
) -> None:
    step = ConfigOperation("min.insync.replicas", Op.SET, "2")
    name = "t" if kind == "topics" else ""
    outcome = await log_apis.cluster.alter_configs([Alteration(kind, name, (step,))])
    await log_apis.controller.publish(outcome.updates)
    wanted = request(log_apis, ("t", 0, batch()), acks=-1)
    assert results(await log_apis.ask(API, wanted, 9)) == [(ErrorCode.NONE, 0)]
    wanted.acks = 1
    assert results(await log_apis.ask(API, wanted, 9)) == [(ErrorCode.NONE, 1)]


async def test_produce_with_acks_0_has_no_response(log_apis: Any) -> None:
    wanted = request(log_apis, ("t", 0, batch()), acks=0)
    assert await log_apis.ask(API, wanted, 9) is None
    assert end(log_apis, "t", 0) == 1


@pytest.mark.parametrize("wanted", [("t", 0, b"junk"), ("no", 0, batch())])
async def test_rejected_produce_with_acks_0_closes_connection(
    log_apis: Any, wanted: tuple[str, int, bytes]
) -> None:
    with pytest.raises(CloseConnection, match=f"{wanted[0]}-0 sent with acks=0 were refused"):
        await log_apis.ask(API, request(log_apis, wanted, acks=0), 9)


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (batch()[:-1] + b"!", ErrorCode.CORRUPT_MESSAGE),
        (batch() * 2, ErrorCode.INVALID_RECORD),
    ],
    ids=["null", "empty", "corrupt", "two batches"],
)
async def test_rejected_batch_has_error_message(
    log_apis: Any, records: bytes | None, error: ErrorCode
) -> None:
    response = await log_apis.ask(API, request(log_apis, ("t", 0, records)), 9)
    (refused,) = response.responses[0].partition_responses
    assert refused.error_code == error
    assert refused.error_message
    assert refused.record_errors == []
    assert all(worker.counted == [] for worker in log_apis.workers.values())
    older = await log_apis.ask(API, request(log_apis, ("t", 0, records)), 7)
    assert results(older) == [(error, -1)]


@pytest.mark.parametrize("version", [8, 13])
async def test_all_records_without_key_for_compacted_topic_are_listed(
    log_apis: Any, version: int
) -> None:
    step = ConfigOperation("cleanup.policy", Op.SET, "compact")
    outcome = await log_apis.cluster.alter_configs([Alteration("topics", "t", (step,))])
    await log_apis.controller.publish(outcome.updates)
    records = [Record(0, WALL_MS, None if i in (3, 7) else b"k", b"v") for i in range(10)]
    wanted = request(log_apis, ("t", 0, build_batch(records)), ("u", 0, batch()))
    response = await log_apis.ask(API, wanted, version)
    assert results(response) == [(ErrorCode.INVALID_RECORD, -1), (0, 0)]
    (refused,) = response.responses[0].partition_responses
    assert [each.batch_index for each in refused.record_errors] == [3, 7]
    assert all("no key" in each.batch_index_error_message for each in refused.record_errors)


@pytest.mark.parametrize("version", [9, 13])
@pytest.mark.parametrize("client_id", ["test", "", "__admin_client"])
async def test_produce_to_internal_topic_is_accepted_from_admin_client_only(
    log_apis: Any, version: int, client_id: str
) -> None:
    log_apis.client_id = client_id
    wanted = request(log_apis, ("__consumer_offsets", 0, batch()), ("t", 0, batch()))
    response = await log_apis.ask(API, wanted, version)
    allowed = client_id == "__admin_client"
    no_key = (ErrorCode.INVALID_RECORD, -1)  # the topic is compacted
    first = no_key if allowed else (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
    assert results(response) == [first, (0, 0)]


async def test_batch_too_large_for_a_step_is_validated_in_a_thread(log_apis: Any) -> None:
    many = build_batch([Record(0, WALL_MS, None, b"")] * (STEP_RECORDS_MAX + 1))
    wanted = request(log_apis, ("t", 0, batch()), ("t", 1, many), ("u", 0, many[:-1] + b"!"))
    response = await log_apis.ask(API, wanted, 9)
    corrupt = (ErrorCode.CORRUPT_MESSAGE, -1)
    assert results(response) == [(0, 0), (0, 0), corrupt]
    assert end(log_apis, "t", 1) == STEP_RECORDS_MAX + 1
    assert sum(worker.thread_calls for worker in log_apis.workers.values()) == 1


async def test_batches_beyond_the_work_of_a_step_are_validated_in_a_thread(log_apis: Any) -> None:
    records = [Record(0, WALL_MS, None, bytes(i % 3)) for i in range(STEP_READS_MAX * 2 // 3)]
    several = build_batch(records)
    wanted = request(log_apis, ("t", 0, several), ("t", 2, several))
    response = await log_apis.ask(API, wanted, 9)
    assert results(response) == [(0, 0), (0, 0)]
    assert sum(worker.thread_calls for worker in log_apis.workers.values()) == 1


async def test_invalid_large_batch_is_rejected_with_record_errors(log_apis: Any) -> None:
    records = [Record(0, WALL_MS, None, b"")] * STEP_RECORDS_MAX + [
        Record(0, WALL_MS * 2, None, b"")
    ]
    response = await log_apis.ask(API, request(log_apis, ("t", 0, build_batch(records))), 9)
    assert results(response) == [(ErrorCode.INVALID_TIMESTAMP, -1)]
    (refused,) = response.responses[0].partition_responses
    assert [each.batch_index for each in refused.record_errors] == [STEP_RECORDS_MAX]
    assert end(log_apis, "t", 0) == 0


async def test_duplicate_batch_gets_original_offset_and_is_counted_once(log_apis: Any) -> None:
    again = batch(producer_id=5, producer_epoch=0, base_sequence=0)
    for _ in range(2):
        response = await log_apis.ask(API, request(log_apis, ("t", 0, again)), 9)
        assert results(response) == [(0, 0)]
    assert end(log_apis, "t", 0) == 1
    assert sum(len(worker.counted) for worker in log_apis.workers.values()) == 1


@pytest.mark.parametrize(("version", "error"), [(6, 76), (7, 0)])
async def test_zstd_is_rejected_in_versions_without_it(
    log_apis: Any, version: int, error: int
) -> None:
    packed = batch(compression=Compression.ZSTD)
    response = await log_apis.ask(API, request(log_apis, ("t", 0, packed)), version)
    assert [code for code, _ in results(response)] == [error]


@pytest.mark.parametrize(
    ("records", "error", "log_start_offset"),
    [
        (
            batch(producer_id=1, producer_epoch=0, base_sequence=5),
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            0,
        ),
        (batch() + batch(), ErrorCode.INVALID_RECORD, -1),
        (batch()[:-1] + b"\x7f", ErrorCode.CORRUPT_MESSAGE, -1),
    ],
    ids=["out of order", "two batches", "wrong checksum"],
)
async def test_rejected_batch_has_log_start_offset_if_the_log_saw_it(
    log_apis: Any, records: bytes, error: int, log_start_offset: int
) -> None:
    if error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
        first = batch(producer_id=1, producer_epoch=0, base_sequence=0)
        await log_apis.ask(API, request(log_apis, ("t", 0, first)), 9)
    response = await log_apis.ask(API, request(log_apis, ("t", 0, records)), 9)
    (result,) = response.responses[0].partition_responses
    assert (result.error_code, result.log_start_offset) == (error, log_start_offset)


async def test_response_has_log_start_offset(log_apis: Any) -> None:
    response = await log_apis.ask(API, request(log_apis, ("t", 0, batch())), 9)
    (result,) = response.responses[0].partition_responses
    assert (result.log_start_offset, result.log_append_time_ms) == (0, -1)


def test_old_versions_are_advertised_but_not_served() -> None:
    assert (API.versions, API.served_from) == ((0, 13), 3)
    assert not API.may_wait


# Transactions -------------------------------------------------------------------------------------


TRANSACTIONAL_VERSIONS = [9, 11, 12]


def transactional_request(
    *wanted: tuple[int, bytes], transactional_id: str | None = "id"
) -> ProduceRequest:
    """Batches for partitions of topic ``t``."""
    data = [PartitionProduceData(index=index, records=records) for index, records in wanted]
    return ProduceRequest(
        acks=-1,
        transactional_id=transactional_id,
        topic_data=[TopicProduceData(name="t", partition_data=data)],
    )


def asked(apis: Any) -> list[Any]:
    return [part for worker in apis.workers.values() for part in worker.coordinator.asked]


def answer_with(apis: Any, error: ErrorCode) -> None:
    for worker in apis.workers.values():
        worker.coordinator.answers = [error]


@pytest.mark.parametrize("version", TRANSACTIONAL_VERSIONS)
async def test_first_batch_is_verified_and_later_ones_are_not(log_apis: Any, version: int) -> None:
    first = transactional_request((0, transactional_batch(0)), (1, transactional_batch(0)))
    assert results(await log_apis.ask(API, first, version)) == [(0, 0), (0, 0)]
    parts = asked(log_apis)
    assert {key for part in parts for key in part.partitions} == {("t", 0), ("t", 1)}
    assert {part.verify_only for part in parts} == {version < 12}
    second = transactional_request((0, transactional_batch(1)), (1, transactional_batch(1)))
    assert results(await log_apis.ask(API, second, version)) == [(0, 1), (0, 1)]
    assert asked(log_apis) == parts
    assert log_apis.hosted("t", 0).last_stable_offset == 0


async def disable_verification(apis: Any) -> None:
    step = ConfigOperation("transaction.partition.verification.enable", Op.SET, "false")
    outcome = await apis.cluster.alter_configs([Alteration("brokers", "", (step,))])
    await apis.controller.publish(outcome.updates)


@pytest.mark.parametrize("version", TRANSACTIONAL_VERSIONS)
async def test_coordinator_is_not_asked_if_verification_is_disabled(
    log_apis: Any, version: int
) -> None:
    await disable_verification(log_apis)
    first = transactional_request((0, transactional_batch(0)))
    assert results(await log_apis.ask(API, first, version)) == [(0, 0)]
    adds = version >= 12
    assert bool(asked(log_apis)) is adds
    assert log_apis.hosted("t", 0).last_stable_offset == 0


async def test_batch_that_is_sent_again_is_a_duplicate(log_apis: Any) -> None:
    for _ in range(2):
        response = await log_apis.ask(API, transactional_request((0, transactional_batch(0))), 12)
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
    response = await log_apis.ask(API, transactional_request((0, transactional_batch(0))), version)
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
    response = await log_apis.ask(API, transactional_request((0, transactional_batch(0))), 9)
    assert results(response) == [(ErrorCode.INVALID_TXN_STATE, -1)]
    assert partition.last_stable_offset == 1


async def test_transactional_batch_without_transactional_id_is_not_authorized(
    log_apis: Any,
) -> None:
    wanted = transactional_request((0, transactional_batch(0)), transactional_id=None)
    response = await log_apis.ask(API, wanted, 12)
    assert results(response) == [(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)]


async def test_batches_of_several_producers_are_rejected(log_apis: Any) -> None:
    owner = {index: log_apis.hosted("t", index) for index in range(3)}
    same = [0, 2] if owner[0] is not owner[2] else [0, 1]
    wanted = transactional_request(
        (same[0], transactional_batch(0)),
        (same[1], transactional_batch(0, producer_id=PID + 1)),
    )
    response = await log_apis.ask(API, wanted, 12)
    assert results(response) == [(ErrorCode.INVALID_PRODUCER_ID_MAPPING, -1)] * 2
    assert asked(log_apis) == []


async def test_large_transactional_batch_is_verified(log_apis: Any) -> None:
    large = transactional_batch(0, *[b"v"] * (STEP_RECORDS_MAX + 1))
    response = await log_apis.ask(API, transactional_request((0, large)), 12)
    assert results(response) == [(0, 0)]
    assert len(asked(log_apis)) == 1


async def test_rejected_large_batch_beside_transactional_one_has_its_error(log_apis: Any) -> None:
    large = transactional_batch(5, *[b"v"] * (STEP_RECORDS_MAX + 1))
    wanted = transactional_request((0, large), (2, transactional_batch(0)))
    response = await log_apis.ask(API, wanted, 12)
    assert results(response) == [(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1), (0, 0)]
