from __future__ import annotations

from minibroker.lab.verdicts.exchanges import (
    error_codes,
    requested_partitions,
    results_of,
    returned_partitions,
    sent_batches,
    subject_of,
)
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.init_producer_id import InitProducerIdRequest
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from minibroker_protocol.schema import Message
from tests.lab.verdicts.group_messages import beat, commit
from tests.lab.verdicts.test_metadata_rules import fetch, produce
from tests.lab.verdicts.written import WrittenJournal, batch


def test_results_of_a_fetch_are_those_of_its_partitions() -> None:
    journal = WrittenJournal()
    fetch(journal, ErrorCode.FENCED_LEADER_EPOCH, leader=3)
    [exchange] = journal.traffic.exchanges
    [result] = results_of(exchange)
    assert (result.subject, result.error) == ("t-0", "FENCED_LEADER_EPOCH")
    assert result.has_leader
    assert [name for name, _ in returned_partitions(exchange)] == ["t-0"]


def test_batches_of_a_produce_are_read() -> None:
    journal = WrittenJournal()
    produce(journal, b"x")
    [(subject, fields)] = requested_partitions(journal.traffic.exchanges[0])
    assert subject == "t-0"
    assert [each.header.record_count for each in sent_batches(fields["records"])] == [1]


def test_damaged_batches_are_none() -> None:
    assert sent_batches(None) == []
    assert sent_batches(b"\0" * 61) == []
    assert sent_batches(batch(b"x")[:-1]) == []


def test_result_of_a_group_request_is_its_first_error() -> None:
    journal = WrittenJournal()
    commit(journal, "1", 0, 1, error_code=ErrorCode.UNKNOWN_MEMBER_ID)
    beat(journal, "1")
    first, second = (next(results_of(each)) for each in journal.traffic.exchanges)
    assert (first.subject, first.error) == ("group g", "UNKNOWN_MEMBER_ID")
    assert (second.subject, second.code) == ("group g", 0)


def test_request_without_a_response_has_no_result() -> None:
    journal = WrittenJournal()
    journal.send("1", MetadataRequest(topics=[]), 9)
    [exchange] = journal.traffic.exchanges
    assert exchange.response is None
    assert list(results_of(exchange)) == []
    assert exchange.last_ms == exchange.sent_ms
    assert exchange.answered_ms is None


def test_frame_that_was_not_kept_is_a_missing_body() -> None:
    journal = WrittenJournal()
    journal.send("1", MetadataRequest(topics=[]), 9, keep_frame=False)
    [exchange] = journal.traffic.exchanges
    assert exchange.request is None
    assert requested_partitions(exchange) == []
    assert subject_of(exchange) == ""


def subject(request: Message, version: int) -> str:
    journal = WrittenJournal()
    journal.send("1", request, version)
    return subject_of(journal.traffic.exchanges[0])


def test_subject_is_what_a_request_names() -> None:
    assert subject(FindCoordinatorRequest(key="g"), 2) == "g"
    assert subject(FindCoordinatorRequest(coordinator_keys=["g", "h"]), 4) == "g, h"
    assert subject(InitProducerIdRequest(transactional_id="tx"), 4) == "transactional id tx"
    topics = [MetadataRequestTopic(name="b"), MetadataRequestTopic(name="a")]
    assert subject(MetadataRequest(topics=topics), 9) == "a, b"
    groups = [OffsetFetchRequestGroup(group_id="g", topics=None)]
    assert subject(OffsetFetchRequest(groups=groups), 8) == "group g"


def test_error_codes_are_listed_with_the_outer_ones_first() -> None:
    assert list(
        error_codes({"a": [{"error_code": 2, "b": {"error_code": 3}}], "error_code": 1})
    ) == [
        1,
        2,
        3,
    ]
