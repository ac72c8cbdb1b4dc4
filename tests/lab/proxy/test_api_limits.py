from __future__ import annotations

import pytest

from minibroker.lab.proxy.api_limits import is_too_new, limit_versions, unsupported_api_versions
from minibroker.lab.proxy.rewriting import REWRITTEN
from minibroker_protocol import registry
from minibroker_protocol.compiler import decode
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.headers import decode_response_header
from minibroker_protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from minibroker_protocol.registry import ApiKey

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
