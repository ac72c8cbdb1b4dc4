from __future__ import annotations

from minibroker.lab.verdicts.consumer_rules import VALIDATIONS_MAX
from minibroker.lab.verdicts.judging import RuleOutcome
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from minibroker_protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from minibroker_protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from tests.lab.verdicts.consumer_messages import get_committed, validate
from tests.lab.verdicts.group_messages import GROUP, POLL_MS, SESSION_MS, TOPIC, beat, join, leave
from tests.lab.verdicts.written import WrittenJournal

POSITION, VALIDATION, FETCHES = "committed-position", "epoch-validation", "fetches-on"
END = 10
"""Offset of the end of the log."""


def get_end(journal: WrittenJournal) -> None:
    """Look up the end of the log."""
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    found = ListOffsetsPartitionResponse(partition_index=0, offset=END)
    journal.ask(
        "1",
        ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=[partition])]),
        7,
        ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=TOPIC, partitions=[found])]),
    )


def fetch(
    journal: WrittenJournal,
    offset: int | None = 0,
    *,
    end: int | None = END,
    session: int = 0,
    epoch: int = -1,
    forgets: bool = False,
) -> None:
    """Fetch one partition, or only its session if there is no offset."""
    partitions = [] if offset is None else [FetchPartition(partition=0, fetch_offset=offset)]
    data = PartitionData(partition_index=0, high_watermark=end or 0, records=None)
    found = [FetchableTopicResponse(topic=TOPIC, partitions=[data])]
    journal.ask(
        "1",
        FetchRequest(
            session_id=session,
            session_epoch=epoch,
            topics=[FetchTopic(topic=TOPIC, partitions=partitions)] if partitions else [],
            forgotten_topics_data=[ForgottenTopic(topic=TOPIC, partitions=[0])] if forgets else [],
        ),
        12,
        FetchResponse(responses=[] if end is None else found, session_id=max(session, 7)),
    )


# Committed offsets --------------------------------------------------------------------------------


def test_end_of_the_log_after_a_failed_offset_fetch_is_found() -> None:
    journal = WrittenJournal()
    get_committed(journal, "1", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    get_end(journal)
    fetch(journal, END)
    [text] = journal.findings(POSITION)
    assert text == (
        "fetched t-0 from the end of the log after COORDINATOR_LOAD_IN_PROGRESS to OffsetFetch v8, "
        "although the committed offset is unknown"
    )


def test_end_of_the_log_after_a_stale_member_epoch_is_found() -> None:
    journal = WrittenJournal()
    get_committed(journal, "1", ErrorCode.STALE_MEMBER_EPOCH)
    get_end(journal)
    fetch(journal, END)
    [text] = journal.findings(POSITION)
    assert "after STALE_MEMBER_EPOCH to OffsetFetch v8" in text


def test_end_of_the_log_that_was_looked_up_before_is_found_too() -> None:
    """https://github.com/platformatic/kafka/issues/267."""
    journal = WrittenJournal()
    get_end(journal)
    get_committed(journal, "1", partition_error=ErrorCode.UNSTABLE_OFFSET_COMMIT)
    fetch(journal, END)
    assert len(journal.findings(POSITION)) == 1


def test_end_of_the_log_after_an_older_offset_fetch_is_found() -> None:
    """Before version 8 the error of the group is that of the whole response."""
    journal = WrittenJournal()
    topic = OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])
    error = OffsetFetchResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    journal.ask("1", OffsetFetchRequest(group_id=GROUP, topics=[topic]), 3, error)
    get_end(journal)
    fetch(journal, END)
    assert len(journal.findings(POSITION)) == 1


def test_repeated_offset_fetch_is_kept() -> None:
    journal = WrittenJournal()
    get_committed(journal, "1", ErrorCode.NOT_COORDINATOR)
    get_committed(journal, "1")
    get_end(journal)
    fetch(journal, END)
    assert journal.findings(POSITION) == []


def test_end_of_the_log_without_a_failure_is_no_situation() -> None:
    journal = WrittenJournal()
    get_committed(journal, "1")
    get_end(journal)
    fetch(journal, END)
    assert journal.verdict(POSITION).outcome is RuleOutcome.NOT_OBSERVED


def test_position_at_the_end_of_the_log_may_be_fetched_on() -> None:
    journal = WrittenJournal()
    get_end(journal)
    fetch(journal, END)
    get_committed(journal, "1", ErrorCode.NOT_COORDINATOR)
    fetch(journal, END)
    assert journal.verdict(POSITION).outcome is RuleOutcome.NOT_OBSERVED


def test_offset_of_the_application_after_a_failure_is_no_situation() -> None:
    journal = WrittenJournal()
    get_committed(journal, "1", ErrorCode.NOT_COORDINATOR)
    fetch(journal, 5)
    assert journal.verdict(POSITION).outcome is RuleOutcome.NOT_OBSERVED


# Validation ---------------------------------------------------------------------------------------


def test_validation_without_end_is_found() -> None:
    journal = WrittenJournal()
    for _ in range(VALIDATIONS_MAX + 1):
        validate(journal, "1")
    [text] = journal.findings(VALIDATION)
    assert text == (
        "validated its position in t-0 with leader epoch 3 4 times within 303 ms, each time with "
        "success, before it fetched"
    )


def test_validation_before_a_fetch_is_kept() -> None:
    journal = WrittenJournal()
    for _ in range(VALIDATIONS_MAX + 1):
        validate(journal, "1")
        fetch(journal, 3)
    assert journal.findings(VALIDATION) == []


def test_validation_before_a_fetch_of_its_session_is_kept() -> None:
    journal = WrittenJournal()
    fetch(journal, 3, session=0, epoch=0)
    for number in range(VALIDATIONS_MAX + 1):
        validate(journal, "1")
        fetch(journal, None, end=None, session=7, epoch=number + 1)
    assert journal.findings(VALIDATION) == []


def test_validation_that_fails_may_be_repeated() -> None:
    journal = WrittenJournal()
    for _ in range(VALIDATIONS_MAX + 1):
        validate(journal, "1", ErrorCode.UNKNOWN_LEADER_EPOCH)
    assert journal.verdict(VALIDATION).outcome is RuleOutcome.NOT_OBSERVED


# Lag ----------------------------------------------------------------------------------------------


def stay_alive(journal: WrittenJournal, ms: float) -> None:
    end = journal.now + ms
    while journal.now < end:
        journal.now += SESSION_MS / 3
        beat(journal, "1")


def test_member_that_stops_fetching_records_is_found() -> None:
    journal = WrittenJournal()
    join(journal, "1", 0)
    fetch(journal, 4)
    stay_alive(journal, POLL_MS + SESSION_MS)
    [text] = journal.findings(FETCHES)
    assert text.startswith("did not fetch t-0 for 30")
    assert text.endswith("as member m of group g, although 6 records are left")


def test_member_that_stops_fetching_within_a_session_is_found() -> None:
    journal = WrittenJournal()
    join(journal, "1", 0)
    fetch(journal, 4, session=0, epoch=0)
    fetch(journal, None, end=None, session=7, epoch=1, forgets=True)
    for epoch in range(2, 12):
        stay_alive(journal, POLL_MS / 9)
        fetch(journal, None, end=None, session=7, epoch=epoch)
    beat(journal, "1")
    assert len(journal.findings(FETCHES)) == 1


def test_member_that_fetches_with_a_session_is_kept() -> None:
    journal = WrittenJournal()
    join(journal, "1", 0)
    fetch(journal, 4, session=0, epoch=0)
    for epoch in range(1, 12):
        stay_alive(journal, POLL_MS / 9)
        fetch(journal, None, end=None, session=7, epoch=epoch)
    beat(journal, "1")
    assert journal.findings(FETCHES) == []


def test_member_that_fetches_everything_may_stop() -> None:
    journal = WrittenJournal()
    join(journal, "1", 0)
    fetch(journal, END)
    stay_alive(journal, POLL_MS + SESSION_MS)
    assert journal.verdict(FETCHES).outcome is RuleOutcome.NOT_OBSERVED


def test_member_that_loses_the_partition_may_stop() -> None:
    journal = WrittenJournal()
    join(journal, "1", 0)
    fetch(journal, 4)
    beat(journal, "1")
    join(journal, "1", 1, generation=2)
    stay_alive(journal, POLL_MS + SESSION_MS)
    assert journal.findings(FETCHES) == []


def test_member_that_leaves_may_stop() -> None:
    journal = WrittenJournal()
    join(journal, "1", 0)
    fetch(journal, 4)
    beat(journal, "1")
    leave(journal, "1")
    journal.now += 2 * POLL_MS
    fetch(journal, END)
    assert journal.findings(FETCHES) == []


def test_moved_clock_does_not_make_a_member_idle() -> None:
    journal = WrittenJournal()
    join(journal, "1", 0)
    fetch(journal, 4)
    journal.clock()
    stay_alive(journal, POLL_MS + SESSION_MS)
    assert journal.verdict(FETCHES).outcome is RuleOutcome.NOT_OBSERVED
