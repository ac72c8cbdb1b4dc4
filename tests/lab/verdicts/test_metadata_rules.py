from __future__ import annotations

import pytest

from minibroker.lab.verdicts.judging import RuleOutcome
from minibroker.lab.verdicts.metadata_rules import LOOKUP_MS_MAX, REQUESTS_MAX
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    PartitionData,
)
from minibroker_protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tests.lab.verdicts.group_messages import beat
from tests.lab.verdicts.written import WrittenJournal, batch


def fetch(
    journal: WrittenJournal,
    error_code: int = 0,
    *,
    partition: int = 0,
    leader: int = -1,
    epoch: int = 5,
) -> None:
    fields = FetchPartition(partition=partition, current_leader_epoch=epoch)
    asked = FetchTopic(topic="t", partitions=[fields])
    current = None if leader < 0 else LeaderIdAndEpoch(leader_id=leader, leader_epoch=1)
    data = PartitionData(
        partition_index=partition, error_code=error_code, records=None, current_leader=current
    )
    answer = FetchableTopicResponse(topic="t", partitions=[data])
    response = FetchResponse(responses=[answer])
    journal.ask("1", FetchRequest(topics=[asked]), 12, response)
    journal.now += 200


def produce(journal: WrittenJournal, value: bytes, error_code: int = 0) -> None:
    data = [PartitionProduceData(index=0, records=batch(value))]
    done = [PartitionProduceResponse(index=0, error_code=error_code)]
    journal.ask(
        "1",
        ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=data)]),
        9,
        ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=done)]),
    )


def test_metadata_that_is_delayed_by_a_backoff_is_kept() -> None:
    journal = WrittenJournal()
    for _ in range(REQUESTS // 2):
        fetch(journal, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    journal.ask_metadata("1")
    assert journal.findings("metadata-refresh") == []


def test_leader_that_answers_again_needs_no_lookup() -> None:
    journal = WrittenJournal()
    fetch(journal, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    for _ in range(REQUESTS):
        fetch(journal)
    assert journal.verdict("metadata-refresh").outcome is RuleOutcome.NOT_OBSERVED


def test_moved_clock_does_not_make_metadata_late() -> None:
    journal = WrittenJournal()
    for _ in range(REQUESTS_MAX + 2):
        fetch(journal, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        journal.clock()
        journal.now += LOOKUP_MS_MAX
    assert journal.verdict("metadata-refresh").outcome is RuleOutcome.NOT_OBSERVED


ERRORS = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH]
REQUESTS = 10
"""Further requests, 200 ms each, so that the lookup is late."""


@pytest.mark.parametrize("error", ERRORS)
def test_metadata_after_an_old_leader_is_kept(error: ErrorCode) -> None:
    journal = WrittenJournal()
    fetch(journal, error)
    fetch(journal, error)
    journal.ask_metadata("1")
    fetch(journal)
    assert journal.findings("metadata-refresh") == []


@pytest.mark.parametrize("error", ERRORS)
def test_old_leader_that_is_used_on_is_found(error: ErrorCode) -> None:
    journal = WrittenJournal()
    for _ in range(REQUESTS + 1):
        fetch(journal, error)
    [text] = journal.findings("metadata-refresh")
    assert text == (
        f"sent 10 more requests for t-0 within 2009 ms after {error.name} to Fetch v12, without "
        "Metadata"
    )


def test_epoch_error_to_a_request_without_an_epoch_is_no_situation() -> None:
    """A broker does not compare an epoch that the request does not name (KIP-320)."""
    journal = WrittenJournal()
    for _ in range(REQUESTS + 1):
        fetch(journal, ErrorCode.FENCED_LEADER_EPOCH, epoch=-1)
    assert journal.verdict("metadata-refresh").outcome is RuleOutcome.NOT_OBSERVED


def test_new_leader_in_the_response_needs_no_metadata() -> None:
    journal = WrittenJournal()
    for _ in range(REQUESTS + 1):
        fetch(journal, ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=2)
    assert journal.findings("metadata-refresh") == []


def test_other_partitions_may_be_used_on() -> None:
    journal = WrittenJournal()
    fetch(journal, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    for _ in range(REQUESTS + 1):
        fetch(journal, partition=1)
    assert journal.verdict("metadata-refresh").outcome is RuleOutcome.NOT_OBSERVED


def test_batches_in_flight_are_not_repetitions() -> None:
    journal = WrittenJournal()
    for value in (b"1", b"2", b"3", b"4", b"5"):
        produce(journal, value, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    journal.ask_metadata("1")
    assert journal.findings("metadata-refresh") == []


def test_batch_that_is_sent_to_the_old_leader_again_is_found() -> None:
    journal = WrittenJournal()
    for _ in range(REQUESTS + 1):
        produce(journal, b"1", ErrorCode.NOT_LEADER_OR_FOLLOWER)
        journal.now += 200
    assert len(journal.findings("metadata-refresh")) == 1


def test_other_errors_are_no_situation() -> None:
    journal = WrittenJournal()
    for _ in range(REQUESTS + 1):
        fetch(journal, ErrorCode.KAFKA_STORAGE_ERROR)
    assert journal.verdict("metadata-refresh").outcome is RuleOutcome.NOT_OBSERVED


def find_coordinator(journal: WrittenJournal) -> None:
    request = FindCoordinatorRequest(coordinator_keys=["g"])
    journal.ask("1", request, 4, FindCoordinatorResponse())


def test_lookup_after_an_old_coordinator_is_kept() -> None:
    journal = WrittenJournal()
    beat(journal, "1", error_code=ErrorCode.NOT_COORDINATOR)
    find_coordinator(journal)
    beat(journal, "1")
    assert journal.findings("coordinator-lookup") == []


def test_old_coordinator_that_is_used_on_is_found() -> None:
    journal = WrittenJournal()
    for _ in range(REQUESTS_MAX + 2):
        beat(journal, "1", error_code=ErrorCode.NOT_COORDINATOR)
        journal.now += LOOKUP_MS_MAX
    [text] = journal.findings("coordinator-lookup")
    assert text == (
        "sent 3 more requests for group g within 4502 ms after NOT_COORDINATOR to Heartbeat v4, "
        "without FindCoordinator"
    )


def test_client_that_gave_up_is_no_situation() -> None:
    journal = WrittenJournal()
    beat(journal, "1", error_code=ErrorCode.NOT_COORDINATOR)
    assert journal.verdict("coordinator-lookup").outcome is RuleOutcome.NOT_OBSERVED
