"""Cached responses are those that would be built now, and the cache is bounded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from trio.testing import MockClock

from minibroker.broker.metadata.image import Image
from minibroker.broker.network.quota_stage import RequestCost
from minibroker.broker.network.response_cache import (
    REQUEST_BYTES_MAX,
    RESPONSE_BYTES_MAX,
    RESPONSES_MAX,
    CachedResponse,
    ResponseCache,
)
from minibroker_protocol import registry
from minibroker_protocol.compiler import encode
from minibroker_protocol.headers import RequestHeader, decode_request_header, encode_request_header
from minibroker_protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    SupportedFeatureKey,
)
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.metadata import MetadataRequest
from minibroker_protocol.registry import ApiKey
from tests.broker.network.one_broker import running

IMAGE = Image()


def body(text: str = "x", key: ApiKey = ApiKey.METADATA, version: int = 12) -> bytes:
    return encode_request_header(RequestHeader(key, version, 7, "c")) + text.encode()


def cost(request: bytes, listener: str = "PLAINTEXT", error: int = 0) -> RequestCost:
    client = SimpleNamespace(caller=SimpleNamespace(listener=listener))
    made = RequestCost(cast("Any", client), len(request), 0, 0)
    made.header, made.error = decode_request_header(request)[0], error
    made.response = registry.schema(made.header.api_key).response()
    return made


def kept(cache: ResponseCache, request: bytes, response: bytes = b"abcdefgh", **of: Any) -> None:
    assert cache.find(cost(request, **of), request, IMAGE) is None
    cache.keep(cost(request, **of), request, IMAGE, [response[:3], response[3:]])


def found(cache: ResponseCache, request: bytes, image: Image = IMAGE, **of: Any) -> bytes | None:
    response = cache.find(cost(request, **of), request, image)
    return None if response is None else response_body(response)


def response_body(response: CachedResponse) -> bytes:
    """The response without length and header, which are checked for their size."""
    encoded = response.encode()
    assert int.from_bytes(encoded[:4], "big") == len(encoded) - 4
    return encoded[4 + response.header_bytes :]


def test_response_is_found_for_the_same_request_of_any_client() -> None:
    cache = ResponseCache()
    kept(cache, body())
    other = encode_request_header(RequestHeader(ApiKey.METADATA, 12, 8, "other")) + b"x"
    assert found(cache, body()) == found(cache, other) == b"abcdefgh"
    assert found(cache, body("y")) is None
    assert found(cache, body(version=11)) is None
    assert found(cache, body(), listener="SSL") is None


def test_response_is_not_found_with_another_image() -> None:
    cache = ResponseCache()
    kept(cache, body())
    assert found(cache, body(), Image()) is None
    cache.keep(cost(body()), body(), IMAGE, [b"old"])
    assert found(cache, body(), IMAGE) is None


@pytest.mark.parametrize(("version", "expected"), [(8, b"\0\0\0\7"), (9, b"\0\0\0\7\0")])
def test_response_has_the_header_of_its_request(version: int, expected: bytes) -> None:
    cache = ResponseCache()
    kept(cache, body(version=version))
    response = cache.find(cost(body(version=version)), body(version=version), IMAGE)
    assert response is not None
    assert response.encode()[4:].startswith(expected)
    assert response.header_bytes == len(expected)


def test_found_response_sets_header_and_error() -> None:
    cache = ResponseCache()
    kept(cache, body(), error=3)
    of = cost(body())
    del of.header
    response = cache.find(of, body(), IMAGE)
    assert response is not None
    assert (of.header.correlation_id, of.error, of.is_direct) == (7, 3, True)


@pytest.mark.parametrize(("version", "expected"), [(3, b"\0\0\0\5efgh"), (2, b"abcdefgh")])
def test_throttle_time_is_written_in_versions_that_have_it(version: int, expected: bytes) -> None:
    cache = ResponseCache()
    kept(cache, body(version=version))
    response = cache.find(cost(body(version=version)), body(version=version), IMAGE)
    assert isinstance(response, CachedResponse)
    response.throttle_time_ms = 5
    assert response_body(response) == expected


def api_versions(version: int, software: str = "client") -> tuple[RequestCost, bytes]:
    """A request that names this software, and its response."""
    request = ApiVersionsRequest(client_software_name=software, client_software_version="1")
    header = encode_request_header(RequestHeader(ApiKey.API_VERSIONS, version, 7, "c"))
    frame = header + encode(request, version)
    made = cost(frame)
    client = cast("Any", made.client)
    client.software = None
    client.set_software = lambda name, version: setattr(client, "software", (name, version))
    made.request = request
    made.response = ApiVersionsResponse(
        api_keys=[ApiVersion(api_key=key, max_version=9) for key in (0, 1, 18)],
        supported_features=[SupportedFeatureKey(name="f", min_version=1, max_version=2)],
    )
    return made, frame


def keep_api_versions(cache: ResponseCache, version: int, software: str = "client") -> None:
    of, frame = api_versions(version, software)
    assert cache.find(of, frame, IMAGE) is None
    cache.keep(of, frame, IMAGE, [encode(of.response, version)])


@pytest.mark.parametrize("version", range(6))
def test_throttle_time_is_written_between_other_fields(version: int) -> None:
    cache = ResponseCache()
    keep_api_versions(cache, version)
    for throttle_time_ms in (0, 1, 2**31 - 1):
        of, frame = api_versions(version)
        response = cache.find(of, frame, IMAGE)
        assert response is not None
        of.response.throttle_time_ms = response.throttle_time_ms = throttle_time_ms
        assert response_body(response) == encode(of.response, version)


def test_software_of_a_cached_request_is_that_of_its_client() -> None:
    cache = ResponseCache()
    for version, name in ((3, "a"), (3, "b"), (2, "a")):
        keep_api_versions(cache, version, name)
    for version, name, software in ((3, "a", ("a", "1")), (3, "b", ("b", "1")), (2, "a", None)):
        of, frame = api_versions(version, name)
        assert cache.find(of, frame, IMAGE) is not None
        assert of.client.software == software


def test_response_in_another_version_than_requested_is_not_kept() -> None:
    cache = ResponseCache()
    request = body("", key=ApiKey.API_VERSIONS, version=99)
    of = cost(request)
    assert cache.find(of, request, IMAGE) is None
    of.header = of.header._replace(api_version=0)
    cache.keep(of, request, IMAGE, [b"abcd"])
    assert found(cache, request) is None


def test_other_apis_and_large_requests_are_not_kept() -> None:
    cache = ResponseCache()
    for request in (body(key=ApiKey.SASL_HANDSHAKE, version=1), body("x" * REQUEST_BYTES_MAX)):
        cache.keep(cost(request), request, IMAGE, [b"abcd"])
        assert found(cache, request) is None


def test_number_and_size_of_responses_are_bounded() -> None:
    cache = ResponseCache()
    for number in range(RESPONSES_MAX):
        kept(cache, body(str(number)))
    assert found(cache, body("0")) is not None
    kept(cache, body("one more"))
    assert found(cache, body("0")) is None
    assert found(cache, body("one more")) is not None
    kept(cache, body("large"), bytes(RESPONSE_BYTES_MAX))
    assert found(cache, body("one more")) is None
    assert found(cache, body("large")) is not None
    kept(cache, body("too large"), bytes(RESPONSE_BYTES_MAX + 1))
    assert found(cache, body("too large")) is None


@pytest.mark.parametrize("version", range(6))
async def test_repeated_api_versions_request_gets_the_same_bytes_on_each_connection(
    version: int, tmp_path: Path, autojump_clock: MockClock
) -> None:
    asked = ApiVersionsRequest(client_software_name="c", client_software_version="1")
    async with running(tmp_path, autojump_clock, "combined") as client:
        await client.ask(asked, version)
        received = client.received
        await client.ask(asked, version)
        assert client.received[8:] == received[8:]


@pytest.mark.parametrize("version", range(14))
async def test_repeated_metadata_request_gets_the_same_bytes_until_the_metadata_change(
    version: int, tmp_path: Path, autojump_clock: MockClock
) -> None:
    asked = MetadataRequest(topics=[] if version == 0 else None)
    async with running(tmp_path, autojump_clock, "combined") as client:
        first = await client.ask(asked, version)
        received = client.received
        assert "t" in {topic.name for topic in first.topics}
        await client.ask(asked, version)
        assert client.received[4:] == received[4:]
        topics = [CreatableTopic(name="u", num_partitions=1, replication_factor=1)]
        await client.ask(CreateTopicsRequest(topics=topics), 7)
        changed = await client.ask(asked, version)
        assert {"t", "u"} <= {topic.name for topic in changed.topics}
