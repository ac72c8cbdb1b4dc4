"""Lines become requests with their responses; others are refused with their number."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.lab.replay.capture import (
    LINE_CHARS_MAX,
    IdMapping,
    InvalidCapture,
    SharedIds,
    first_error,
    learn_response,
    mapped_request,
    read_capture,
)
from minibroker_protocol.compiler import encode
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from minibroker_protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from minibroker_protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from minibroker_protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from minibroker_protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from minibroker_protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from minibroker_protocol.records import Record, build_batch, iter_records, parse_batch_header
from minibroker_protocol.wire import encode_response_header
from tests.lab.replay.recording import CaptureWriter, request_of

ENTRY = (
    '{"kind": "request", "connection": "1", "correlation_id": 1, '
    '"frame": "AAMAAAAAAAEAAXg=", "sequence": %s, "clock_ms": %s}'
)


def test_requests_get_the_responses_of_their_connections() -> None:
    writer = CaptureWriter()
    writer.exchange("1", 7, MetadataRequest(topics=[]), 9, MetadataResponse(cluster_id="a"))
    writer.exchange("2", 7, MetadataRequest(topics=[]), 9)
    writer.exchange("1", 7, MetadataRequest(topics=[]), 9, MetadataResponse(cluster_id="b"))
    capture = read_capture(["", *writer.lines, '{"kind": "clock"}'])
    assert [each.connection for each in capture.requests] == ["1", "2", "1"]
    assert [each.answered_order for each in capture.requests] == [2, None, 5]
    assert [each.latency_ms for each in capture.requests] == [1.0, 0.0, 1.0]
    first, _, third = capture.requests
    assert b"a" in (first.response or b"")
    assert b"b" in (third.response or b"")
    assert capture.skipped == {}


def test_requests_without_bytes_are_counted_by_api() -> None:
    writer = CaptureWriter()
    writer.add("request", "1", 1, None)
    writer.add("response", "1", 1, None)
    writer.exchange("1", 2, MetadataRequest(topics=[]), 9)
    writer.add("response", "1", 2, None)
    capture = read_capture(writer.lines)
    assert capture.skipped == {"Produce": 1}
    [request] = capture.requests
    assert (request.answered_order, request.response) == (4, None)


def test_tokens_without_header_are_counted() -> None:
    token = {"connection": "1", "correlation_id": None, "api": None, "frame": None}
    lines = [json.dumps({"kind": kind, **token}) for kind in ("request", "response")]
    assert read_capture(lines).skipped == {"unknown": 1}


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "{}",
        '{"kind": "request"}',
        '{"kind": "request", "connection": "1", "correlation_id": 1, "frame": "!"}',
        '{"kind": "request", "connection": "1", "correlation_id": 1, "frame": "AAAA"}',
        json.dumps({
            "kind": "request", "connection": "1", "correlation_id": 1, "frame": "A+gAAAAAAAH//w==",
            "sequence": 1, "clock_ms": 0,
        }),
        ENTRY % ("1e999", "0"),
        ENTRY % ("1", "1e999"),
        ENTRY % ("1", "NaN"),
        "[" * 100_000,
        f'{{"kind": "{"x" * LINE_CHARS_MAX}"}}',
    ],
)  # fmt: skip
def test_line_that_is_no_entry_is_refused_with_its_number(line: str) -> None:
    with pytest.raises(InvalidCapture, match=r"^line 2: "):
        read_capture(['{"kind": "clock"}', line])


def test_entry_of_the_wrong_values_above_is_right_with_others() -> None:
    assert len(read_capture([ENTRY % ("1", "0")]).requests) == 1


def test_lost_entries_are_counted() -> None:
    loss = {"kind": "lost", "details": {"entries": 4, "reason": "process_ended", "since_ms": 0}}
    assert read_capture([json.dumps(loss)] * 2).skipped == {"lost": 8}


IDS = st.integers(0, 2**62)
EPOCHS = st.integers(0, 2**15 - 1)
OLD_TOPIC, NEW_TOPIC = bytes(range(16)), bytes(range(16, 32))


def produced(producer_id: int, epoch: int) -> ProduceRequest:
    batch = build_batch(
        [Record(value=b"x")], producer_id=producer_id, producer_epoch=epoch, base_sequence=3
    )
    data = [PartitionProduceData(index=0, records=batch)]
    return ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t", partition_data=data)])


@given(IDS, EPOCHS, IDS, EPOCHS, IDS)
def test_producer_ids_are_replaced_in_requests_and_in_batches(
    old: int, old_epoch: int, new: int, new_epoch: int, unknown: int
) -> None:
    mapping = IdMapping()
    mapping.learn(
        InitProducerIdRequest(),
        InitProducerIdResponse(producer_id=old, producer_epoch=old_epoch),
        InitProducerIdResponse(producer_id=new, producer_epoch=new_epoch),
    )
    end = EndTxnRequest(producer_id=old, producer_epoch=old_epoch)
    mapping.apply(end)
    assert (end.producer_id, end.producer_epoch) == (new, new_epoch)
    for before, wanted in ((old, (new, new_epoch)), (unknown, (unknown, old_epoch))):
        if before == unknown == old:
            continue
        request = produced(before, old_epoch)
        mapping.apply(request)
        batch = bytes(request.topic_data[0].partition_data[0].records or b"")
        header = parse_batch_header(batch)
        assert (header.producer_id, header.producer_epoch) == wanted
        assert header.base_sequence == 3
        assert [record.value for record in iter_records(batch)] == [b"x"]
        assert batch == build_batch(
            [Record(value=b"x")], producer_id=wanted[0], producer_epoch=wanted[1], base_sequence=3
        )


def joined(member: str, leader: str, generation: int, *others: str) -> JoinGroupResponse:
    members = [JoinGroupResponseMember(member_id=each) for each in (member, *others)]
    return JoinGroupResponse(
        member_id=member, leader=leader, generation_id=generation, members=members
    )


def test_members_and_generations_are_replaced_within_their_group() -> None:
    mapping = IdMapping()
    request = JoinGroupRequest(group_id="g")
    mapping.learn(request, joined("a", "b", 5, "b"), joined("x", "y", 2, "z"))
    for group, generation in (("g", 2), ("other", 5)):
        heartbeat = HeartbeatRequest(group_id=group, member_id="a", generation_id=5)
        mapping.apply(heartbeat)
        assert (heartbeat.member_id, heartbeat.generation_id) == ("x", generation)
    sync = SyncGroupRequest(
        group_id="g",
        member_id="b",
        generation_id=5,
        assignments=[SyncGroupRequestAssignment(member_id=each) for each in ("a", "b", "c")],
    )
    mapping.apply(sync)
    assert [each.member_id for each in sync.assignments] == ["x", "y", "c"]


def test_topic_ids_offsets_and_leader_epochs_are_those_of_the_other_broker() -> None:
    mapping = IdMapping()
    mapping.learn(
        MetadataRequest(),
        MetadataResponse(topics=[MetadataResponseTopic(name="t", topic_id=OLD_TOPIC)]),
        MetadataResponse(
            topics=[
                MetadataResponseTopic(name="another", topic_id=bytes([9]) * 16),
                MetadataResponseTopic(name="t", topic_id=NEW_TOPIC),
            ]
        ),
    )
    mapping.learn(produced(1, 0), appended(100), appended(7))
    partition = FetchPartition(partition=0, fetch_offset=102, current_leader_epoch=4)
    other = FetchPartition(partition=1, fetch_offset=102)
    topic = FetchTopic(topic_id=OLD_TOPIC, partitions=[partition, other])
    mapping.apply(FetchRequest(topics=[topic]))
    assert topic.topic_id == NEW_TOPIC
    assert (partition.fetch_offset, partition.current_leader_epoch) == (9, -1)
    assert other.fetch_offset == 102


def appended(offset: int) -> ProduceResponse:
    parts = [PartitionProduceResponse(index=0, base_offset=offset)]
    return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=parts)])


def test_fetch_sessions_belong_to_one_connection() -> None:
    shared = SharedIds()
    one, other = IdMapping(shared), IdMapping(shared)
    one.learn(FetchRequest(), FetchResponse(session_id=5), FetchResponse(session_id=8))
    for mapping, session in ((one, 8), (other, 5)):
        request = FetchRequest(session_id=5, session_epoch=1)
        mapping.apply(request)
        assert (request.session_id, request.session_epoch) == (session, 1)


def test_failed_responses_teach_nothing() -> None:
    mapping = IdMapping()
    failed = InitProducerIdResponse(producer_id=-1, producer_epoch=-1)
    mapping.learn(InitProducerIdRequest(), InitProducerIdResponse(producer_id=3), failed)
    end = EndTxnRequest(producer_id=3, producer_epoch=0)
    mapping.apply(end)
    assert (end.producer_id, end.producer_epoch) == (3, 0)


def test_names_whose_meaning_depends_on_a_type_stay() -> None:
    mapping = IdMapping()
    request = FindCoordinatorRequest(coordinator_keys=["g"])
    response = FindCoordinatorResponse(coordinators=[Coordinator(key="g", node_id=1)])
    mapping.learn(request, response, response)
    mapping.apply(request)
    assert request.coordinator_keys == ["g"]


def test_request_after_a_response_has_the_new_ids() -> None:
    writer = CaptureWriter()
    recorded = InitProducerIdResponse(producer_id=4, producer_epoch=1)
    writer.exchange("1", 1, InitProducerIdRequest(), 4, recorded)
    end = EndTxnRequest(transactional_id="t", producer_id=4, producer_epoch=1)
    writer.exchange("1", 2, end, 3, EndTxnResponse())
    first, second = read_capture(writer.lines).requests
    mapping = IdMapping()
    assert mapped_request(first, mapping) == first.frame
    live = InitProducerIdResponse(producer_id=9, producer_epoch=0)
    frame = encode_response_header(22, 4, 1) + encode(live, 4)
    assert learn_response(first, frame, mapping) == (0, 0)
    wanted = EndTxnRequest(transactional_id="t", producer_id=9, producer_epoch=0)
    assert mapped_request(second, mapping) == request_of(wanted, 3, 2)
    failed = encode_response_header(26, 3, 2) + encode(EndTxnResponse(error_code=48), 3)
    assert learn_response(second, failed, mapping) == (0, ErrorCode.INVALID_TXN_STATE)


def test_unreadable_request_and_response_are_left_as_they_are() -> None:
    writer = CaptureWriter()
    writer.exchange("1", 1, EndTxnRequest(transactional_id="t"), 3, EndTxnResponse())
    [request] = read_capture(writer.lines).requests
    cut = replace(request, frame=request.frame[:-1])
    assert mapped_request(cut, IdMapping()) == cut.frame
    assert learn_response(cut, b"", IdMapping()) == (0, 0)
    assert learn_response(request, b"\0", IdMapping()) == (0, 0)


def test_expected_cluster_is_removed_from_api_versions() -> None:
    writer = CaptureWriter()
    named = {"client_software_name": "a", "client_software_version": "1"}
    expected = ApiVersionsRequest(**named, cluster_id="c", node_id=1)  # type: ignore[arg-type]
    writer.exchange("1", 1, expected, 5)
    [request] = read_capture(writer.lines).requests
    wanted = request_of(ApiVersionsRequest(**named), 5)  # type: ignore[arg-type]
    assert mapped_request(request, IdMapping()) == wanted


def test_first_error_is_found_in_nested_lists() -> None:
    parts = [PartitionProduceResponse(error_code=0), PartitionProduceResponse(error_code=6)]
    topic = TopicProduceResponse(name="t", partition_responses=parts)
    assert first_error(ProduceResponse(responses=[topic]), 9) == 6
    assert first_error(ProduceResponse(responses=[]), 9) == 0
