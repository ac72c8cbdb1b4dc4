"""Requests as they are sent, and the errors that no run may have."""

from __future__ import annotations

import pytest

from minibroker_protocol.compiler import decode
from minibroker_protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from minibroker_protocol.wire import decode_request_header
from system_tests.benchmarks.client import RunFailed
from system_tests.benchmarks.frames import frame, refuse_errors


def committed(error_code: int) -> OffsetCommitResponse:
    partition = OffsetCommitResponsePartition(partition_index=0, error_code=error_code)
    return OffsetCommitResponse(
        topics=[OffsetCommitResponseTopic(name="t", partitions=[partition])]
    )


def test_frame_is_the_size_the_header_and_the_request() -> None:
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    sent = frame(request, 4)
    assert int.from_bytes(sent[:4], "big") == len(sent) - 4
    header, at = decode_request_header(sent[4:])
    assert (header.api_key, header.api_version) == (12, 4)
    assert decode(HeartbeatRequest, 4, sent[4:], at) == request


def test_refuse_errors_of_a_response_without_errors_returns() -> None:
    refuse_errors(HeartbeatResponse(error_code=0))
    refuse_errors(committed(0))


def test_refuse_errors_finds_error_codes_at_any_depth() -> None:
    with pytest.raises(RunFailed, match="HeartbeatResponse has error code 27"):
        refuse_errors(HeartbeatResponse(error_code=27))
    with pytest.raises(RunFailed, match="OffsetCommitResponsePartition has error code 25"):
        refuse_errors(committed(25))
