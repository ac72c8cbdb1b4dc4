"""What a proxied connection records, as entries of a journal."""

from __future__ import annotations

import time

import pytest
import trio

from minibroker.lab.journal.entries import FRAME_BYTES_MAX, JournalEntry, decoded
from minibroker.lab.journal.merging import Journal, JournalMerger
from minibroker.lab.journal.records import UNKNOWN, JournalBuffer
from minibroker.lab.proxy.journal import JournaledProcess, throttle_time_ms
from minibroker_protocol.messages.api_versions import ApiVersionsResponse
from minibroker_protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from minibroker_protocol.messages.leave_group import LeaveGroupResponse
from minibroker_protocol.messages.produce import ProduceResponse
from minibroker_protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from minibroker_protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.lab.proxy.conversation import conversation, request_frame, response_frame

BEAT = HeartbeatRequest(group_id="g", member_id="m")


def switched_on(process: JournaledProcess) -> JournaledProcess:
    process.journal = JournalBuffer(1, process.journal_counts.word(process.name))
    return process


def entries_of(process: JournaledProcess) -> list[JournalEntry]:
    assert process.journal is not None
    merger = JournalMerger(Journal(), process.clock.epoch_s, process.journal_counts)
    merger.add(process.name, process.journal.take())
    merger.merge(time.perf_counter_ns())
    return list(merger.journal)


async def test_conversation_is_recorded_in_its_order() -> None:
    async with conversation() as at:
        switched_on(at.process)
        await at.add("replace", api="Heartbeat", response={"throttle_time_ms": 7})
        await at.send(BEAT, 4, 5)
        await at.taken()
        await at.answer(HeartbeatResponse(), 4, 5)
        await at.receive_frame()
        at.client.close()
        await at.ended.wait()
        request, fault, response, closed = entries_of(at.process)
    assert [each.kind for each in (request, fault, response, closed)] == [
        "request",
        "fault",
        "response",
        "connection_closed",
    ]
    assert {each.connection for each in (request, fault, response, closed)} == {"3"}
    assert {each.client_id for each in (request, fault, response, closed)} == {"client"}
    assert request.address == "127.0.0.9:5"
    assert (request.api, request.version, request.correlation_id) == ("Heartbeat", 4, 5)
    body = decoded(request)
    assert body is not None
    assert body["group_id"] == "g"
    assert fault.details == {"rule": "1", "action": "replace"}
    assert response.throttle_time_ms == 7
    assert response.stages.keys() == {"total"}
    assert closed.details == {"listener": "kafka:9092", "reason": "client_closed", "text": ""}


async def test_opened_connection_is_recorded() -> None:
    process = switched_on(JournaledProcess())
    async with conversation(process=process):
        (opened,) = entries_of(process)
    assert (opened.kind, opened.details) == ("connection_opened", {"listener": "kafka:9092"})


async def test_secrets_and_large_frames_are_not_kept() -> None:
    async with conversation() as at:
        switched_on(at.process)
        await at.send(SaslHandshakeRequest(mechanism="PLAIN"), 0, 1)
        await at.taken()
        await at.answer(SaslHandshakeResponse(mechanisms=["PLAIN"]), 0, 1)
        await at.receive_frame()
        await at.send_frame(b"\0alice\0secret")
        await at.taken_frame()
        await at.answer_frame(b"")
        await at.receive_frame()
        await at.send(SaslAuthenticateRequest(auth_bytes=b"secret"), 2, 2)
        await at.taken()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.send_frame, request_frame(BEAT, 4, 3) + bytes(FRAME_BYTES_MAX))
            assert len(await at.taken_frame() or b"") > FRAME_BYTES_MAX
        entries = entries_of(at.process)
    assert [(each.kind, each.api) for each in entries] == [
        ("request", "SaslHandshake"),
        ("response", "SaslHandshake"),
        ("request", None),  # A token without a header.
        ("response", None),
        ("request", "SaslAuthenticate"),
        ("request", "Heartbeat"),
    ]
    assert [each.frame for each in entries] == [None] * 6
    assert [each.frame_bytes for each in entries[2:4]] == [len(b"\0alice\0secret"), 0]
    assert entries[-1].frame_bytes > FRAME_BYTES_MAX
    assert entries[-1].client_id == "client"


async def test_damaged_response_is_recorded_as_it_is_sent() -> None:
    async with conversation() as at:
        switched_on(at.process)
        await at.add("corrupt", api="Heartbeat", part="correlation_id")
        await at.send(BEAT, 4, 5)
        await at.taken()
        await at.answer(HeartbeatResponse(), 4, 5)
        sent = await at.receive_frame()
        response = entries_of(at.process)[-1]
    assert response.frame == sent


async def test_unreadable_request_is_recorded() -> None:
    async with conversation() as at:
        switched_on(at.process)
        await at.send_frame(b"\x13\x88\x00\x01\x00\x00\x00\x05\x00\x01x")
        await at.taken_frame()
        (request,) = entries_of(at.process)
    assert (request.api, request.version, request.correlation_id) == ("5000", 1, 5)


async def test_nothing_is_recorded_while_the_journal_is_off() -> None:
    async with conversation() as at:
        await at.send(BEAT, 4)
        await at.taken()
        assert at.process.journal is None


@pytest.mark.parametrize(
    ("response", "version", "expected"),
    [
        (HeartbeatResponse(throttle_time_ms=5), 4, 5),
        (HeartbeatResponse(throttle_time_ms=5), 0, UNKNOWN),
        (LeaveGroupResponse(throttle_time_ms=5), 4, 5),
        (ProduceResponse(throttle_time_ms=5), 9, 5),
        (ApiVersionsResponse(throttle_time_ms=5), 3, 5),
        (SaslHandshakeResponse(), 1, UNKNOWN),
    ],
)
def test_throttle_time_is_found_wherever_it_is(
    response: HeartbeatResponse, version: int, expected: int
) -> None:
    key = type(response).__api_key__
    assert key is not None
    frame = response_frame(response, version)
    assert throttle_time_ms(key, version, frame) == expected
    assert throttle_time_ms(key, version, frame[:5]) == UNKNOWN
    assert throttle_time_ms(5000, version, frame) == UNKNOWN
