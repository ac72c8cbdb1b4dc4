"""Recorded frames are sent with other ids, and unreadable ones as they are."""

from __future__ import annotations

from dataclasses import replace

from minibroker.lab.replay.capture import read_capture
from minibroker.lab.replay.id_mapping import IdMapping
from minibroker.lab.replay.replayed_frames import first_error, learn_response, mapped_request
from minibroker_protocol.compiler import encode
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.headers import encode_response_header
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from minibroker_protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from tests.lab.replay.recording import CaptureWriter, request_of


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
