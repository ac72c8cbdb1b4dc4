"""."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.lab.verdicts.judging import RuleOutcome
from minibroker.lab.verdicts.retry_rules import (
    COMPARISONS_MIN,
    REPEATS_PER_S_MAX,
    WAIT_MS_MAX,
    WAIT_MS_MIN,
    RepeatedWaits,
    repeated_waits,
)
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse
from minibroker_protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from minibroker_protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from minibroker_protocol.records import Record, build_batch
from tests.lab.verdicts.test_metadata_rules import fetch, produce
from tests.lab.verdicts.written import WrittenJournal


def initialize(journal: WrittenJournal, error_code: int = 0, transactional_id: str = "tx") -> None:
    request = InitProducerIdRequest(transactional_id=transactional_id)
    journal.ask("1", request, 4, InitProducerIdResponse(error_code=error_code))


def retries(gaps_ms: list[float]) -> WrittenJournal:
    journal = WrittenJournal()
    for gap_ms in gaps_ms:
        initialize(journal, ErrorCode.CONCURRENT_TRANSACTIONS)
        journal.now += gap_ms
    initialize(journal)
    return journal


def test_growing_times_between_retries_are_kept() -> None:
    journal = retries([90, 210, 390, 820, 1000, 1100, 900])
    assert journal.findings("retry-backoff") == []
    assert journal.findings("retry-backoff-grows") == []


def test_retries_without_a_pause_are_found() -> None:
    [text] = retries([2, 1, 0, 1]).findings("retry-backoff")
    assert text == (
        "repeated InitProducerId v4 for transactional id tx 4 times after CONCURRENT_TRANSACTIONS, "
        "1.0 ms after the error on average"
    )


def test_equal_times_between_retries_are_found() -> None:
    journal = retries([100.0] * 8)
    assert journal.findings("retry-backoff") == []
    [text] = journal.findings("retry-backoff-grows")
    assert text.endswith(
        "8 times after CONCURRENT_TRANSACTIONS: after 100 ms at first, and after 100 ms at last"
    )


def test_longest_time_between_retries_need_not_grow() -> None:
    assert retries([1000.0] * 8).findings("retry-backoff-grows") == []


JITTERED = [95.0, 112.0, 83.0, 104.0, 118.0, 90.0, 81.0, 99.0, 114.0]


def test_retries_after_equal_times_are_found() -> None:
    [text] = retries([100.0] * 9).findings("retry-backoff-jitter")
    assert text == (
        "repeated InitProducerId v4 for transactional id tx without jitter: 8 of 8 waits were the "
        "one before or its double, within 5%"
    )


def test_retries_after_doubled_times_are_found() -> None:
    journal = WrittenJournal()
    for _ in range(3):
        for gap_ms in (100.0, 200.0, 400.0, 800.0):
            initialize(journal, ErrorCode.CONCURRENT_TRANSACTIONS)
            journal.now += gap_ms
        initialize(journal)
    assert len(journal.findings("retry-backoff-jitter")) == 1


def test_retries_with_jitter_are_kept() -> None:
    assert retries(JITTERED).findings("retry-backoff-jitter") == []
    assert retries(JITTERED).verdict("retry-backoff-jitter").outcome is RuleOutcome.KEPT


def test_few_equal_times_are_no_situation() -> None:
    for gaps_ms in ([100.0] * 8, [1000.0] * 20, [5.0] * 20):
        verdict = retries(gaps_ms).verdict("retry-backoff-jitter")
        assert verdict.outcome is RuleOutcome.NOT_OBSERVED


def test_requests_in_flight_at_the_same_time_are_not_retries() -> None:
    """A proxy records a request when the client sends it."""
    journal = WrittenJournal()
    request = InitProducerIdRequest(transactional_id="tx")
    sent = [journal.send("1", request, 4) for _ in range(8)]
    for each in sent:
        journal.answer(each, InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS))
    assert journal.verdict("retry-backoff").outcome is RuleOutcome.NOT_OBSERVED


@pytest.mark.parametrize("gaps", [[1.0], [1.0, 1.0, 1.0]])
def test_few_fast_retries_are_no_situation(gaps: list[float]) -> None:
    assert retries(gaps).verdict("retry-backoff").outcome is RuleOutcome.NOT_OBSERVED


def test_error_that_cannot_be_retried_ends_a_row() -> None:
    journal = WrittenJournal()
    for _ in range(8):
        initialize(journal, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    assert journal.verdict("retry-backoff").outcome is RuleOutcome.NOT_OBSERVED


def test_requests_for_different_ids_are_not_retries() -> None:
    journal = WrittenJournal()
    for number in range(8):
        initialize(journal, ErrorCode.CONCURRENT_TRANSACTIONS, f"tx-{number}")
    assert journal.verdict("retry-backoff").outcome is RuleOutcome.NOT_OBSERVED


def test_batches_in_flight_are_not_retries() -> None:
    journal = WrittenJournal()
    for number in range(8):
        produce(journal, b"%d" % number, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert journal.verdict("retry-backoff").outcome is RuleOutcome.NOT_OBSERVED


def test_batch_that_is_repeated_without_a_pause_is_found() -> None:
    journal = WrittenJournal()
    for _ in range(6):
        produce(journal, b"1", ErrorCode.NOT_ENOUGH_REPLICAS)
    assert len(journal.findings("retry-backoff")) == 1


def test_fetches_of_a_failing_partition_with_pauses_are_kept() -> None:
    journal = WrittenJournal()
    for _ in range(6):
        fetch(journal, ErrorCode.KAFKA_STORAGE_ERROR)
    assert journal.findings("retry-backoff") == []


def test_moved_clock_hides_retries() -> None:
    journal = WrittenJournal()
    for _ in range(6):
        initialize(journal, ErrorCode.CONCURRENT_TRANSACTIONS)
        journal.clock()
    assert journal.verdict("retry-backoff").outcome is RuleOutcome.NOT_OBSERVED


def poll(journal: WrittenJournal, count: int, gap_ms: float) -> None:
    for _ in range(count):
        journal.ask("1", FetchRequest(), 11, FetchResponse(), 1)
        journal.now += gap_ms


def test_equal_requests_without_a_pause_are_found_once() -> None:
    journal = WrittenJournal()
    poll(journal, 3 * REPEATS_PER_S_MAX, 1)
    [text] = journal.findings("no-busy-loop")
    assert text == "sent the same Fetch v11 51 times in 100 ms, 2.0 ms apart on average"


def test_polls_with_a_wait_are_kept() -> None:
    journal = WrittenJournal()
    poll(journal, 2 * REPEATS_PER_S_MAX, 50)
    assert journal.findings("no-busy-loop") == []


def test_requests_that_waited_for_a_connection_are_no_loop() -> None:
    journal = WrittenJournal()
    for _ in range(3):
        poll(journal, 2 * REPEATS_PER_S_MAX - 10, 0)
        journal.now += 2000
    assert journal.findings("no-busy-loop") == []


def test_equal_requests_of_many_clients_with_one_id_are_kept() -> None:
    """Each of the clients looks up the coordinator once and fails, and waits before it repeats."""
    journal = WrittenJournal()
    request = FindCoordinatorRequest(coordinator_keys=["g"])
    missing = Coordinator(key="g", error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    for _ in range(8):
        for number in range(60):
            response = FindCoordinatorResponse(coordinators=[missing])
            journal.ask(str(number), request, 4, response, ms=1)
        journal.now += 40
    for rule in ("no-busy-loop", "retry-backoff"):
        assert journal.findings(rule) == []


def test_retries_on_new_connections_are_found() -> None:
    journal = WrittenJournal()
    for number in range(6):
        journal.open(str(number))
        request = InitProducerIdRequest(transactional_id="tx")
        response = InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
        journal.ask(str(number), request, 4, response)
        journal.close(str(number))
    assert len(journal.findings("retry-backoff")) == 1


def send_batch(journal: WrittenJournal, records: bytes) -> None:
    data = [PartitionProduceData(index=0, records=records)]
    done = [PartitionProduceResponse(index=0, error_code=ErrorCode.NOT_ENOUGH_REPLICAS)]
    journal.ask(
        "1",
        ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=data)]),
        9,
        ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=done)]),
    )


@pytest.mark.parametrize(("producer_id", "base_sequence"), [(-1, -1), (7, 4)])
def test_batch_that_is_built_again_without_a_pause_is_found(
    producer_id: int, base_sequence: int
) -> None:
    """Each retry takes one more record into the batch, so its checksum differs."""
    journal = WrittenJournal()
    for count in range(1, 8):
        records = [Record(timestamp=1000 + at, value=b"%d" % at) for at in range(count)]
        content = build_batch(
            records, producer_id=producer_id, producer_epoch=0, base_sequence=base_sequence
        )
        send_batch(journal, content)
    assert len(journal.findings("retry-backoff")) == 1


def test_new_batches_that_fail_are_not_retries() -> None:
    journal = WrittenJournal()
    for number in range(8):
        send_batch(journal, build_batch([Record(timestamp=1000 + number, value=b"x")]))
    assert journal.verdict("retry-backoff").outcome is RuleOutcome.NOT_OBSERVED


CLIENTS = 2000


def kafka_waits(random: Random, first_ms: float, count: int) -> list[float]:
    """Waits by the formula of KIP-580."""
    return [min(first_ms * 2**at * random.uniform(0.8, 1.2), 1000) for at in range(count)]


def varied_waits(random: Random, count: int) -> list[float]:
    """Waits of 100 ms that do not grow, with the jitter of Kafka."""
    return [100 * random.uniform(0.8, 1.2) for _ in range(count)]


@given(
    wait_ms=st.floats(WAIT_MS_MIN, WAIT_MS_MAX / 1.05),
    noise=st.lists(st.floats(0, 0.04), min_size=COMPARISONS_MIN + 1, max_size=30),
)
def test_equal_waits_lack_jitter(wait_ms: float, noise: list[float]) -> None:
    assert repeated_waits([[wait_ms * (1 + each) for each in noise]]).lack_jitter


@given(first_ms=st.floats(WAIT_MS_MIN, 110), noise=st.lists(st.floats(0, 0.02), min_size=24))
def test_waits_that_double_exactly_lack_jitter(first_ms: float, noise: list[float]) -> None:
    rows = [
        [min(first_ms * 2**at, 1000) * (1 + noise[8 * row + at]) for at in range(8)]
        for row in range(3)
    ]
    found = repeated_waits(rows)
    assert found.are_enough
    assert found.lack_jitter


@pytest.mark.parametrize("first_ms", [50, 100, 250])
def test_clients_with_the_jitter_of_kafka_have_jitter(first_ms: float) -> None:
    random = Random(first_ms)
    found = [
        repeated_waits([kafka_waits(random, first_ms, 8) for _ in range(5)]) for _ in range(CLIENTS)
    ]
    assert all(each.are_enough for each in found)
    assert sum(each.lack_jitter for each in found) <= CLIENTS / 1000


def test_few_waits_with_jitter_are_rarely_equal() -> None:
    random = Random(1)
    rows = [[varied_waits(random, COMPARISONS_MIN + 1)] for _ in range(CLIENTS)]
    assert sum(repeated_waits(each).lack_jitter for each in rows) <= CLIENTS / 1000


def test_waits_at_the_maximum_are_not_compared() -> None:
    """By the formula of KIP-580 they may be equal."""
    assert repeated_waits([[1000.0] * 30]) == RepeatedWaits(0, 0)
    assert repeated_waits([[1.0] * 30]) == RepeatedWaits(0, 0)


def test_too_few_waits_are_not_enough() -> None:
    assert not repeated_waits([[100.0] * COMPARISONS_MIN]).are_enough
    assert repeated_waits([[100.0] * (COMPARISONS_MIN + 1)]).are_enough
    assert not repeated_waits([]).lack_jitter


def test_waits_at_the_same_place_of_two_rows_are_compared() -> None:
    assert repeated_waits([[100, 300], [101, 500], [102]]) == RepeatedWaits(2, 5)
