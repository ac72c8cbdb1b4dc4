from __future__ import annotations

import pytest

from minibroker.lab.verdicts.judging import RuleOutcome
from minibroker.lab.verdicts.producer_rules import BATCHES_MAX, FAILURES_MAX
from minibroker_protocol.compression import Compression
from minibroker_protocol.errors import ErrorCode
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
from tests.lab.verdicts.written import WrittenJournal, batch

RULE = "sequence-numbers"


def produce(
    journal: WrittenJournal,
    sequence: int,
    count: int = 1,
    *,
    value: bytes = b"x",
    epoch: int = 0,
    keep: bool = True,
    code: int | None = None,
) -> None:
    """Send a batch; it is answered if there is a code."""
    records = batch(value, producer_id=7, epoch=epoch, sequence=sequence, count=count)
    send_records(journal, records, keep=keep, code=code)


def send_records(
    journal: WrittenJournal, records: bytes, *, keep: bool = True, code: int | None = None
) -> None:
    data = [PartitionProduceData(index=0, records=records)]
    request = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=data)])
    sent = journal.send("1", request, 9, keep_frame=keep)
    done = [] if code is None else [PartitionProduceResponse(index=0, error_code=code)]
    responses = [TopicProduceResponse(name="t", partition_responses=done)] if done else []
    journal.answer(sent, ProduceResponse(responses=responses))


def start(journal: WrittenJournal) -> None:
    response = InitProducerIdResponse(producer_id=7, producer_epoch=0)
    journal.ask("1", InitProducerIdRequest(transactional_id=None), 4, response)


def test_consecutive_sequences_and_retries_are_kept() -> None:
    journal = WrittenJournal()
    start(journal)
    produce(journal, 0, 3)
    produce(journal, 3)
    produce(journal, 0, 3)
    produce(journal, 3)
    produce(journal, 4)
    assert journal.findings(RULE) == []


def test_gap_is_found_with_both_batches() -> None:
    journal = WrittenJournal()
    produce(journal, 10)
    produce(journal, 12)
    [text] = journal.findings(RULE)
    assert text == "sequence 12 of producer 7 (epoch 0) in t-0, and 11 was next"


def test_first_sequence_of_a_new_producer_is_zero() -> None:
    journal = WrittenJournal()
    start(journal)
    produce(journal, 1)
    assert len(journal.findings(RULE)) == 1


def test_first_sequence_of_an_older_producer_is_no_situation() -> None:
    journal = WrittenJournal()
    produce(journal, 1)
    assert journal.verdict(RULE).outcome is RuleOutcome.NOT_OBSERVED


def test_sequences_wrap_to_zero() -> None:
    journal = WrittenJournal()
    produce(journal, 2**31 - 1)
    produce(journal, 0)
    assert journal.findings(RULE) == []


def test_new_epoch_starts_again() -> None:
    journal = WrittenJournal()
    produce(journal, 5)
    produce(journal, 0, epoch=1)
    produce(journal, 1, epoch=1)
    assert journal.findings(RULE) == []


def test_request_that_was_not_kept_proves_no_gap() -> None:
    journal = WrittenJournal()
    produce(journal, 0)
    produce(journal, 1, 5, keep=False)
    produce(journal, 6)
    produce(journal, 7)
    assert journal.findings(RULE) == []


# Sequences for other records ----------------------------------------------------------------------


def test_sequence_for_other_records_is_found_with_both_requests() -> None:
    """A producer that gives one sequence to several batches: the broker appends only the first."""
    journal = WrittenJournal()
    start(journal)
    produce(journal, 0, value=b"first", code=0)
    for value in (b"second", b"third"):
        produce(journal, 1, value=value, code=0)
    [text] = journal.findings(RULE)
    assert text.startswith(
        "sequence 1 of producer 7 (epoch 0) in t-0 for other records than before: 1 record with "
    )
    assert "(correlation id 3), and then 1 record with the checksum" in text
    assert text.endswith("(correlation id 4)")
    [finding] = journal.verdict(RULE).findings
    assert [journal.entries[each - 1].correlation_id for each in finding.evidence] == [3, 4]


def test_sequence_inside_another_batch_is_found() -> None:
    journal = WrittenJournal()
    start(journal)
    produce(journal, 0, 5, code=0)
    produce(journal, 3, 1, code=0)
    assert len(journal.findings(RULE)) == 1


def test_sequence_for_other_records_while_the_first_is_in_flight_is_found() -> None:
    journal = WrittenJournal()
    start(journal)
    produce(journal, 0, value=b"one")
    produce(journal, 0, value=b"two")
    assert len(journal.findings(RULE)) == 1


def test_batch_that_is_built_and_compressed_again_is_kept() -> None:
    journal = WrittenJournal()
    records = [Record(timestamp=1000, value=b"one" * 20), Record(timestamp=1001, value=b"two")]
    for codec in (Compression.NONE, Compression.GZIP):
        content = build_batch(
            records, compression=codec, producer_id=7, producer_epoch=0, base_sequence=0
        )
        send_records(journal, content)
    assert journal.findings(RULE) == []


@pytest.mark.parametrize("code", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_sequence_of_a_rejected_batch_is_free_again(code: ErrorCode) -> None:
    """Kafka's producer splits a batch that is too large, and gives its sequences to the parts."""
    journal = WrittenJournal()
    start(journal)
    produce(journal, 0, 4, code=code)
    produce(journal, 0, 2, code=0)
    produce(journal, 2, 2, code=0)
    produce(journal, 4, code=0)
    assert journal.findings(RULE) == []


@pytest.mark.parametrize(
    "code", [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
)
def test_sequence_of_a_batch_that_may_be_appended_is_not_free(code: ErrorCode) -> None:
    journal = WrittenJournal()
    start(journal)
    produce(journal, 0, value=b"one", code=code)
    produce(journal, 0, value=b"two", code=0)
    assert len(journal.findings(RULE)) == 1


def test_sequences_shift_after_a_rejected_batch() -> None:
    journal = WrittenJournal()
    start(journal)
    produce(journal, 0, value=b"too large", code=ErrorCode.MESSAGE_TOO_LARGE)
    produce(journal, 1, 5, code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    produce(journal, 0, 5, code=0)
    produce(journal, 5, code=0)
    produce(journal, 6, code=0)
    assert journal.findings(RULE) == []


def test_numbers_start_again_after_an_unknown_producer_id() -> None:
    """Kafka's producer before KIP-360 kept its epoch."""
    journal = WrittenJournal()
    start(journal)
    produce(journal, 0, value=b"one", code=0)
    produce(journal, 1, value=b"two", code=ErrorCode.UNKNOWN_PRODUCER_ID)
    produce(journal, 0, value=b"two", code=0)
    produce(journal, 1, value=b"three", code=0)
    assert journal.findings(RULE) == []


def test_batch_before_the_last_ones_proves_nothing() -> None:
    journal = WrittenJournal()
    for sequence in range(BATCHES_MAX + 1):
        produce(journal, sequence, code=0)
    produce(journal, 0, value=b"other", code=0)
    assert journal.findings(RULE) == []


# Lost states --------------------------------------------------------------------------------------

RESET = "producer-reset"
LOST = [ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]


@pytest.mark.parametrize("code", LOST)
def test_producer_that_goes_on_without_its_state_is_found(code: ErrorCode) -> None:
    journal = WrittenJournal()
    start(journal)
    produce(journal, 0, code=0)
    for sequence in range(1, FAILURES_MAX + 3):
        produce(journal, sequence, code=code)
    [text] = journal.findings(RESET)
    assert text == (
        f"sent 3 more batches of producer 7 (epoch 0) in t-0 within 0 ms after {code.name}, all in "
        "vain"
    )


@pytest.mark.parametrize("code", LOST)
def test_producer_that_goes_on_with_a_new_epoch_is_kept(code: ErrorCode) -> None:
    journal = WrittenJournal()
    start(journal)
    produce(journal, 0, code=code)
    for sequence in range(6):
        produce(journal, sequence, epoch=1, code=0)
    assert journal.findings(RESET) == []


def test_batches_after_one_that_was_rejected_are_no_lost_state() -> None:
    """They are sent again when the batch before them is appended."""
    journal = WrittenJournal()
    start(journal)
    produce(journal, 0, code=ErrorCode.NOT_ENOUGH_REPLICAS)
    for _ in range(6):
        produce(journal, 1, code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert journal.verdict(RESET).outcome is RuleOutcome.NOT_OBSERVED


def test_error_of_a_broker_that_has_the_state_is_no_situation() -> None:
    journal = WrittenJournal()
    start(journal)
    produce(journal, 0, code=ErrorCode.UNKNOWN_PRODUCER_ID)
    for sequence in range(6):
        produce(journal, sequence, code=0)
    assert journal.verdict(RESET).outcome is RuleOutcome.NOT_OBSERVED
