"""ApiVersions (18): the APIs and versions that this broker serves; usually the first request.

Versions 0-5. An unknown version of ApiVersions gets a version-0 response with error 35 and the
range of ApiVersions itself (KIP-511); the processor takes it from `unsupported_version`. From
version 3 on the client sends its software name and version, which are validated. Produce is
advertised from 0 although 0-2 are rejected, because older librdkafka does not compress without it
(KAFKA-18659). Below version 4, features with a minimum of 0 are omitted because older clients
cannot read them (KAFKA-17492). The APIs of client telemetry are advertised while there is a
subscription, as Kafka does while it has a receiver: librdkafka logs at its default level that its
instance id has changed when it first asks for one (KIP-714). From version 5 on the client may name
the cluster and the node that it expects (KIP-1242), and gets REBOOTSTRAP_REQUIRED from another one.
With a persona, the features and the response to an unknown version are the persona's. In Kafka:
``KafkaApis.handleApiVersionsRequest`` and ``ApiVersionsResponse.Builder``.
"""

from __future__ import annotations

import re
from typing import Any, Final

from minibroker.broker.apis.base import Context, ServedVersions, without_owner
from minibroker.broker.metadata.features import shown_features
from minibroker.broker.metadata.image import CLIENT_METRICS
from minibroker.broker.personas.persona import ALL, NONE, OWN, Persona
from minibroker.broker.settings import NODE_ID, PERSONA
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.wire import RequestHeader

_SOFTWARE_VERSION: Final = 3
"""Version since which requests name the client's software (KIP-511)."""

NO_NODE_ID: Final = -1
"""Node id of a request that names no node."""

_TELEMETRY: Final = frozenset({ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY})

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def answer(ctx: Context, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """The advertised APIs and features, unless the client expects another broker."""
    if not _is_valid(ctx, request):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if _expects_another_broker(ctx, request):
        return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
    return _response(ctx)


def before_authentication(ctx: Context, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """The advertised APIs and features; as in Kafka, without the check of cluster and node."""
    if not _is_valid(ctx, request):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return _response(ctx)


def software_in(header: RequestHeader, request: Any) -> tuple[str, str] | None:
    """Name and version of the client's software; None if the request is not one that names it."""
    if header.api_key != ApiKey.API_VERSIONS or header.api_version < _SOFTWARE_VERSION:
        return None
    return request.client_software_name, request.client_software_version


def _is_valid(ctx: Context, request: ApiVersionsRequest) -> bool:
    """Whether the software is named well, and the expected cluster and node both or neither."""
    if ctx.version >= _SOFTWARE_VERSION and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return False
    return (request.cluster_id is None) == (request.node_id == NO_NODE_ID)


def _expects_another_broker(ctx: Context, request: ApiVersionsRequest) -> bool:
    expected = request.cluster_id, request.node_id
    return request.cluster_id is not None and expected != (
        ctx.image.cluster_id,
        ctx.settings[NODE_ID],
    )


def _response(ctx: Context) -> ApiVersionsResponse:
    features = shown_features(ctx.settings[PERSONA], ctx.image.features)
    api_keys = _advertised(ctx.served)
    if not any(kind == CLIENT_METRICS for kind, _ in ctx.image.configs):
        api_keys = [each for each in api_keys if each.api_key not in _TELEMETRY]
    if features is None:
        return ApiVersionsResponse(api_keys=api_keys)
    return ApiVersionsResponse(
        api_keys=api_keys,
        supported_features=[
            SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in features.supported.items()
            if ctx.version >= 4 or low > 0
        ],
        finalized_features_epoch=features.epoch,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in features.finalized.items()
        ],
    )


def unsupported_version(
    served: ServedVersions, persona: Persona | None = None
) -> ApiVersionsResponse:
    """Response to an unsupported version of ApiVersions, to be encoded as version 0."""
    key = ApiKey.API_VERSIONS
    lists = OWN if persona is None else persona.behaviour.unknown_api_versions_lists
    api_keys = {
        ALL: _advertised(served),
        OWN: [_version(key, served[key])],
        NONE: [],
    }[lists]
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=api_keys)


_ADVERTISED: Final[list[tuple[ServedVersions, list[ApiVersion]]]] = []


def _advertised(served: ServedVersions) -> list[ApiVersion]:
    # Cached: every connection requests it first, and `served` is the same object for life.
    if not _ADVERTISED or _ADVERTISED[0][0] is not served:
        _ADVERTISED[:] = [(served, [_version(*each) for each in sorted(served.items())])]
    return _ADVERTISED[0][1]


def _version(key: ApiKey, served: tuple[int, int]) -> ApiVersion:
    lowest, highest = served
    return ApiVersion(api_key=key, min_version=lowest, max_version=highest)


API = without_owner(
    answer,
    key=ApiKey.API_VERSIONS,
    versions=(0, 5),
    requires=(),
    is_cacheable=True,
    left_out=(
        "metadata.version and kraft.version: there is no metadata log whose format they would name",
    ),
)
