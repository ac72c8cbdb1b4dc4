"""Every address of a broker is replaced, in every version of every response, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.settings.setting import HostPort
from minibroker.lab.proxy import rewriting
from minibroker.lab.proxy.rewriting import (
    REWRITTEN,
    TopicNames,
    can_name_brokers,
    decode_response,
    is_too_new,
    limit_versions,
    rewrite,
    translate_addresses,
    unsupported_api_versions,
)
from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.errors import DecodeError, ErrorCode
from minibroker_protocol.headers import decode_response_header, encode_response_header
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from minibroker_protocol.messages.find_coordinator import FindCoordinatorResponse
from minibroker_protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Array, Message, Struct
from minibroker_protocol.types import ZERO_UUID
from tests.protocol.conftest import draw, project

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


def response(*topics: tuple[int, str | None]) -> MetadataResponse:
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
    names.learn(response((1, "a"), (2, "b"), (3, None), (0, "old version")))
    assert [names.get(id_of(number)) for number in range(4)] == [None, "a", "b", None]
    names.learn(response((1, "c")))
    assert names.get(id_of(1)) == "c"
    assert names.get(ZERO_UUID) is None


def test_oldest_names_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriting, "TOPICS_MAX", 2)
    names = TopicNames()
    names.learn(response((1, "a"), (2, "b")))
    names.learn(response((1, "a"), (3, "c")))
    assert [names.get(id_of(number)) for number in (1, 2, 3)] == ["a", None, "c"]
