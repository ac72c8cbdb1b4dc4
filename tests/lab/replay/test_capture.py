"""Lines become requests with their responses; others are refused with their number."""

from __future__ import annotations

import json

import pytest

from minibroker.lab.replay.capture import LINE_CHARS_MAX, InvalidCapture, read_capture
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.lab.replay.recording import CaptureWriter

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
