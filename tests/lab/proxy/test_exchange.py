"""."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.settings.setting import HostPort
from minibroker.lab.proxy import exchange
from minibroker.lab.proxy.exchange import (
    REWRITTEN,
    Exchange,
    ProxiedRequest,
    TopicNames,
    UnexpectedFrame,
    can_name_brokers,
    decode_response,
    is_request,
    is_too_new,
    limit_versions,
    rewrite,
    translate_addresses,
    unsupported_api_versions,
)
from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.errors import DecodeError, ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from minibroker_protocol.messages.find_coordinator import FindCoordinatorResponse
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from minibroker_protocol.messages.produce import ProduceRequest
from minibroker_protocol.messages.sasl_handshake import SaslHandshakeRequest
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Array, Message, Struct
from minibroker_protocol.types import ZERO_UUID
from minibroker_protocol.wire import (
    RequestHeader,
    decode_response_header,
    encode_request_header,
    encode_response_header,
)
from tests.protocol.conftest import draw, project

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


LOCAL = "proxy"


def structs_of(cls: type[Struct]) -> Iterator[type[Struct]]:
    yield cls
    for item in cls.__fields__:
        kind: Any = item.kind.element if isinstance(item.kind, Array) else item.kind
        if isinstance(kind, type):
            yield from structs_of(kind)


def names_hosts(cls: type[Struct]) -> bool:
    """Whether fields of a struct are a host and a port, under any name."""
    names = [item.name for item in cls.__fields__]
    return any("host" in name for name in names) and any("port" in name for name in names)


def test_responses_with_addresses_of_brokers_are_rewritten() -> None:
    for key in ApiKey:
        structs = list(structs_of(registry.schema(key).response))
        means = [item.means for each in structs for item in each.__fields__]
        addresses = means.count(Meaning.HOST) + means.count(Meaning.PEER_HOST)
        assert addresses == len([each for each in structs if names_hosts(each)])
        assert (Meaning.HOST in means) == (key in REWRITTEN)


def translated(broker: HostPort) -> HostPort:
    return HostPort(f"{LOCAL}-{broker.host}", broker.port % 65535 + 1)


def expected(value: Any) -> Any:
    """What a response has after the rewriting, found by a walk over all its values."""
    if isinstance(value, list):
        return [expected(each) for each in value]
    if not isinstance(value, Struct):
        return value
    fields = {
        name: expected(getattr(value, name))
        for name in [item.name for item in type(value).__fields__]
    }
    if fields.get("host") and 0 < fields.get("port", 0) < 65536:
        fields["host"], fields["port"] = translated(HostPort(fields["host"], fields["port"]))
    return type(value)(**fields, unknown_tagged_fields=value.unknown_tagged_fields)


def with_ports(struct: Any, ports: Iterator[int]) -> None:
    """Make the ports of addresses likely ones."""
    for item in type(struct).__fields__:
        value = getattr(struct, item.name)
        if item.name == "port":
            struct.port = next(ports)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Struct):
                with_ports(each, ports)


@pytest.mark.parametrize("key", sorted(REWRITTEN), ids=lambda key: key.name)
def test_all_addresses_are_replaced_and_nothing_else(key: ApiKey) -> None:
    cls = registry.schema(key).response

    @given(st.data())
    def check(data: st.DataObject) -> None:
        version = data.draw(st.integers(cls.__versions__.low, cls.__versions__.high))
        drawn: Message = data.draw(draw(cls))
        ports = data.draw(st.lists(st.sampled_from([-1, 0, 1, 9092, 65535]), min_size=1))
        with_ports(drawn, (ports[number % len(ports)] for number in range(10**6)))
        before = project(drawn, version)
        header = encode_response_header(key, version, 5)
        frame = header + encode(before, version)
        wanted = expected(before)
        after = rewrite(
            key, version, frame, lambda each, at: translate_addresses(each, at, translated)
        )
        assert after == header + encode(wanted, version)
        if wanted == before:
            assert after is frame
        else:
            assert can_name_brokers(key, version)

    check()


@pytest.mark.parametrize("key", sorted(set(ApiKey) - REWRITTEN), ids=lambda key: key.name)
def test_other_responses_pass(key: ApiKey) -> None:
    for version in range(40):
        assert not can_name_brokers(key, version)


def test_versions_without_addresses_pass() -> None:
    assert not can_name_brokers(ApiKey.FETCH, 15)
    assert can_name_brokers(ApiKey.FETCH, 16)
    assert not can_name_brokers(ApiKey.PRODUCE, 9)
    assert can_name_brokers(ApiKey.PRODUCE, 10)
    assert not can_name_brokers(ApiKey.METADATA, 99)
    assert not can_name_brokers(5000, 0)


def test_missing_coordinator_is_no_address() -> None:
    response = FindCoordinatorResponse(error_code=15, node_id=-1, host="", port=-1)
    assert not translate_addresses(response, 3, translated)
    assert can_name_brokers(ApiKey.FIND_COORDINATOR, 3)


def test_same_broker_in_several_places_is_translated_each_time() -> None:
    brokers = [MetadataResponseBroker(node_id=n, host="a", port=9092) for n in (1, 2)]
    response = MetadataResponse(brokers=brokers)
    assert translate_addresses(response, 9, lambda _: HostPort(LOCAL, 7))
    assert [(each.host, each.port) for each in response.brokers] == [(LOCAL, 7), (LOCAL, 7)]


def test_api_versions_with_an_error_is_in_version_0() -> None:
    key = ApiKey.API_VERSIONS
    sent = ApiVersionsResponse(
        error_code=int(ErrorCode.UNSUPPORTED_VERSION),
        api_keys=[ApiVersion(api_key=18, min_version=0, max_version=3)],
    )
    frame = encode_response_header(key, 0, 1) + encode(sent, 0)
    assert decode_response(key, 4, frame) == (sent, 0, 4)
    with pytest.raises(DecodeError):
        decode_response(key, 4, frame[:5])


@given(key=st.sampled_from(sorted(REWRITTEN)), body=st.binary(max_size=60), data=st.data())
def test_any_bytes_are_rewritten_or_a_decode_error(
    key: ApiKey, body: bytes, data: st.DataObject
) -> None:
    versions = registry.schema(key).valid_versions
    version = data.draw(st.integers(versions.low, versions.high))
    try:
        after = rewrite(
            key, version, body, lambda each, at: translate_addresses(each, at, translated)
        )
    except DecodeError:
        return
    assert isinstance(after, bytes)


UNKNOWN = 5000


def offered(*ranges: tuple[int, int, int]) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in ranges
        ]
    )


def ranges(response: ApiVersionsResponse) -> list[tuple[int, int, int]]:
    return [(each.api_key, each.min_version, each.max_version) for each in response.api_keys]


@pytest.mark.parametrize("key", sorted(REWRITTEN))
def test_version_that_cannot_be_read_is_too_new(key: ApiKey) -> None:
    highest = registry.schema(key).valid_versions.high
    assert not is_too_new(key, highest)
    assert is_too_new(key, highest + 1)


def test_apis_that_pass_have_any_version() -> None:
    assert not is_too_new(ApiKey.HEARTBEAT, 99)
    assert not is_too_new(UNKNOWN, 0)


def test_only_versions_that_must_be_read_are_limited() -> None:
    highest = registry.schema(ApiKey.METADATA).valid_versions.high
    response = offered((3, 0, 99), (12, 0, 99), (UNKNOWN, 0, 3), (10, 90, 99))
    assert limit_versions(response)
    assert ranges(response) == [(3, 0, highest), (12, 0, 99), (UNKNOWN, 0, 3)]


def test_known_versions_stay() -> None:
    response = offered((3, 0, 12), (10, 0, 6))
    assert not limit_versions(response)
    assert ranges(response) == [(3, 0, 12), (10, 0, 6)]


def test_api_versions_that_is_too_new_is_answered_in_version_0() -> None:
    frame = unsupported_api_versions(7)
    correlation_id, at = decode_response_header(frame, ApiKey.API_VERSIONS, 0)
    response = decode(ApiVersionsResponse, 0, frame, at)
    assert (correlation_id, response.error_code) == (7, ErrorCode.UNSUPPORTED_VERSION)
    versions = registry.schema(ApiKey.API_VERSIONS).valid_versions
    assert ranges(response) == [(18, versions.low, versions.high)]


def named_topics(*topics: tuple[int, str | None]) -> MetadataResponse:
    return MetadataResponse(
        topics=[
            MetadataResponseTopic(topic_id=number.to_bytes(16, "big"), name=name)
            for number, name in topics
        ]
    )


def id_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_names_are_learned_and_replaced() -> None:
    names = TopicNames()
    names.learn(named_topics((1, "a"), (2, "b"), (3, None), (0, "old version")))
    assert [names.get(id_of(number)) for number in range(4)] == [None, "a", "b", None]
    names.learn(named_topics((1, "c")))
    assert names.get(id_of(1)) == "c"
    assert names.get(ZERO_UUID) is None


def test_oldest_names_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "TOPICS_MAX", 2)
    names = TopicNames()
    names.learn(named_topics((1, "a"), (2, "b")))
    names.learn(named_topics((1, "a"), (3, "c")))
    assert [names.get(id_of(number)) for number in (1, 2, 3)] == ["a", None, "c"]
