"""Versions of APIs that clients may use through a proxy.

Owns the limit: where the proxy has to read responses, it knows their versions. It must never know a
connection. Invariant: a client that keeps to what ApiVersions says gets no address of a broker that
the proxy could not replace; all other APIs, also unknown ones, have the versions of the brokers.
"""

from __future__ import annotations

from minibroker.lab.proxy.rewriting import REWRITTEN
from minibroker_protocol import registry
from minibroker_protocol.compiler import encode
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.headers import encode_response_header
from minibroker_protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from minibroker_protocol.registry import ApiKey


def is_too_new(api_key: int, version: int) -> bool:
    """Whether the proxy could not read the response to a request, but has to."""
    is_read = api_key in REWRITTEN or api_key == ApiKey.API_VERSIONS
    return is_read and version > registry.schema(api_key).valid_versions.high


def limit_versions(response: ApiVersionsResponse) -> bool:
    """Lower the versions that brokers offer to those that can be read; return whether any was."""
    kept = []
    changed = False
    for offered in response.api_keys:
        highest = _highest(offered.api_key)
        if highest is not None and offered.max_version > highest:
            changed = True
            if offered.min_version > highest:
                continue
            offered.max_version = highest
        kept.append(offered)
    response.api_keys = kept
    return changed


def _highest(api_key: int) -> int | None:
    if api_key in REWRITTEN or api_key == ApiKey.API_VERSIONS:
        return registry.schema(api_key).valid_versions.high
    return None


def unsupported_api_versions(correlation_id: int) -> bytes:
    """The response to an ApiVersions request that is too new: as Kafka's, in version 0.

    The client repeats its request in a version that the response names.
    """
    key = ApiKey.API_VERSIONS
    versions = registry.schema(key).valid_versions
    response = ApiVersionsResponse(
        error_code=int(ErrorCode.UNSUPPORTED_VERSION),
        api_keys=[ApiVersion(api_key=key, min_version=versions.low, max_version=versions.high)],
    )
    return encode_response_header(key, 0, correlation_id) + encode(response, 0)
