from __future__ import annotations

from minibroker.verdicts.judging import RuleOutcome
from protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.verdicts.written import WrittenJournal, batch

RULE = "sequence-numbers"


def produce(
    journal: WrittenJournal, sequence: int, count: int = 1, *, epoch: int = 0, keep: bool = True
) -> None:
    records = batch(b"x", producer_id=7, epoch=epoch, sequence=sequence, count=count)
    data = [PartitionProduceData(index=0, records=records)]
    request = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=data)])
    sent = journal.send("1", request, 9, keep_frame=keep)
    journal.answer(sent, ProduceResponse())


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
