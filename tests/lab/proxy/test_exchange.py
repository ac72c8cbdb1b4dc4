from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.lab.proxy import exchange
from minibroker.lab.proxy.exchange import Exchange, ProxiedRequest, UnexpectedFrame, is_request
from minibroker_protocol.compiler import encode
from minibroker_protocol.headers import RequestHeader, encode_request_header
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.produce import ProduceRequest
from minibroker_protocol.messages.sasl_handshake import SaslHandshakeRequest
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Message

TOKENS = [
    b"\0alice\0secret",
    b"\0A\0p",
    b"n,,n=alice,r=xyz",
    b"c=biws,r=xyz,p=proof",
    b"n,a=bob,\x01auth=Bearer token\x01\x01",
    b"\x60\x82\x02\x4c" + bytes(100),
    b"\x05\x04\x04\xff" + bytes(20),
    b"\x01",
    b"",
]


def request(
    message: Message, version: int, correlation_id: int = 1, client_id: str | None = "c"
) -> bytes:
    key = type(message).__api_key__
    assert key is not None
    header = RequestHeader(key, version, correlation_id, client_id)
    return encode_request_header(header) + encode(message, version)


def response(correlation_id: int, rest: bytes = b"") -> bytes:
    return correlation_id.to_bytes(4, "big") + rest


def pass_on(conversation: Exchange, frame: bytes) -> ProxiedRequest:
    found = conversation.read(frame)
    conversation.forwarded(found)
    return found


def test_responses_belong_to_requests_in_their_order() -> None:
    conversation = Exchange()
    assert conversation.is_idle
    for number in (7, 8):
        pass_on(conversation, request(HeartbeatRequest(), 4, number))
    assert conversation.match(response(7)).correlation_id == 7
    conversation.complete()
    with pytest.raises(UnexpectedFrame, match="correlation id 9, not 8"):
        conversation.match(response(9))
    assert conversation.match(response(8)).api_key == ApiKey.HEARTBEAT
    conversation.complete()
    assert conversation.is_idle
    with pytest.raises(UnexpectedFrame, match="without a request"):
        conversation.match(response(8))


def test_short_frames_are_unexpected() -> None:
    conversation = Exchange()
    with pytest.raises(UnexpectedFrame, match="7 bytes"):
        conversation.read(bytes(7))
    pass_on(conversation, request(HeartbeatRequest(), 4))
    with pytest.raises(UnexpectedFrame, match="3 bytes"):
        conversation.match(bytes(3))


def test_unknown_api_passes() -> None:
    conversation = Exchange()
    found = pass_on(conversation, b"\x13\x88\x00\x01\x00\x00\x00\x05\x00\x01x")
    assert found == ProxiedRequest(5000, 1, 5)
    assert conversation.match(response(5)) == found
    assert conversation.client_id == "x"


def test_client_id_is_that_of_the_last_request_with_one() -> None:
    damaged = request(HeartbeatRequest(), 4)[:8] + b"\0\x01\xff"
    frames = [request(HeartbeatRequest(), 4, client_id=each) for each in ("a", None)]
    conversation = Exchange()
    seen = [conversation.client_id]
    for frame in [*frames, damaged]:
        conversation.read(frame)
        seen.append(conversation.client_id)
    assert seen == [None, "a", "a", "\ufffd"]


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("transactional_id", [None, "", "t" * 200])
def test_produce_without_acknowledgement_has_no_response(
    version: int, transactional_id: str | None
) -> None:
    for acks in (-1, 0, 1):
        message = ProduceRequest(transactional_id=transactional_id, acks=acks)
        conversation = Exchange()
        found = pass_on(conversation, request(message, version))
        assert found.has_response == (acks != 0)
        assert conversation.is_idle == (acks == 0)


def test_old_produce_is_read_too() -> None:
    start = b"\0\0\0\0\0\0\0\x01\0\x01c"
    assert not Exchange().read(start + b"\0\0\0\0\0\0").has_response
    assert Exchange().read(start + b"\0\x01\0\0\0\0").has_response
    assert Exchange().read(start).has_response  # The broker judges it.


@pytest.mark.parametrize("token", TOKENS)
def test_tokens_after_the_old_handshake_pass_until_a_request(token: bytes) -> None:
    conversation = Exchange()
    pass_on(conversation, request(SaslHandshakeRequest(mechanism="PLAIN"), 0))
    conversation.match(response(1, b"\0\0\0\0\0\0"))
    conversation.complete()
    for _ in range(3):
        assert pass_on(conversation, token).is_token
        assert conversation.match(b"").is_token
        conversation.complete()
    found = pass_on(conversation, request(HeartbeatRequest(), 4, 2))
    assert (found.is_token, found.correlation_id) == (False, 2)
    assert conversation.match(response(2)) == found


@pytest.mark.parametrize(("version", "error"), [(1, b"\0\0"), (0, b"\0\x21")])
def test_other_handshakes_are_followed_by_requests(version: int, error: bytes) -> None:
    conversation = Exchange()
    pass_on(conversation, request(SaslHandshakeRequest(mechanism="PLAIN"), version))
    conversation.match(response(1, error + b"\0\0\0\0"))
    conversation.complete()
    assert not conversation.read(b"\0alice\0secret").is_token


def test_requests_in_flight_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "IN_FLIGHT_MAX", 2)
    conversation = Exchange()
    for number in range(2):
        assert not conversation.is_full
        pass_on(conversation, request(HeartbeatRequest(), 4, number))
    assert conversation.is_full
    conversation.match(response(0))
    conversation.complete()
    assert not conversation.is_full


@given(frames=st.lists(st.tuples(st.booleans(), st.binary(max_size=40)), max_size=20))
def test_any_frames_match_or_are_unexpected(frames: list[tuple[bool, bytes]]) -> None:
    conversation = Exchange()
    for is_response, frame in frames:
        try:
            if is_response:
                conversation.match(frame)
                conversation.complete()
            else:
                pass_on(conversation, frame)
        except UnexpectedFrame:
            return
        is_request(frame)
