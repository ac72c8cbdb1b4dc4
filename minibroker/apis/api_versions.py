"""ApiVersions (18): which APIs and versions this broker serves, the first thing a client asks.

Versions 0-4.  An unknown version of this very API is answered with a version-0 body that carries
error 35 and this API's own range (KIP-511); the processor takes it from `unsupported_version`.
From 3 on the client names its software, which must look like a name.  Produce is advertised from 0
although 0-2 are refused, as without it older librdkafka compresses nothing (KAFKA-18659).  Features
below 4 leave out what may be 0, which older clients cannot read (KAFKA-17492).  Echoes
``KafkaApis.handleApiVersionsRequest`` and ``ApiVersionsResponse.Builder``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from minibroker.apis.base import Api, Context, Owner, ServedVersions
from protocol.errors import ErrorCode
from protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from protocol.registry import ApiKey

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class AdvertisedFeature(NamedTuple):
    """A feature of KIP-584: the levels that could be chosen, and the one that is."""

    name: str
    lowest: int
    highest: int
    finalized: int


FEATURES: Final = (
    # Clients take Produce 12 and above for a sign of level 2 and some break without (franz-go
    # issue 1017); a level says how transactions would work, and none is served.
    AdvertisedFeature("transaction.version", lowest=0, highest=2, finalized=2),
)
FINALIZED_EPOCH: Final = 0
"""Grows with every change of a finalized level; here nothing ever changes one."""


def split(_ctx: Context, _request: ApiVersionsRequest) -> Mapping[Owner, None]:
    """Nobody needs to be asked."""
    return {}


def merge(
    ctx: Context, request: ApiVersionsRequest, _replies: Mapping[Owner, None]
) -> ApiVersionsResponse:
    """All that is advertised, and the features."""
    if ctx.version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(
        api_keys=_advertised(ctx.served),
        supported_features=[
            SupportedFeatureKey(
                name=feature.name, min_version=feature.lowest, max_version=feature.highest
            )
            for feature in FEATURES
            if ctx.version >= 4 or feature.lowest > 0
        ],
        finalized_features_epoch=FINALIZED_EPOCH,
        finalized_features=[
            FinalizedFeatureKey(
                name=feature.name,
                max_version_level=feature.finalized,
                min_version_level=feature.finalized,
            )
            for feature in FEATURES
        ],
    )


def unsupported_version(served: ServedVersions) -> ApiVersionsResponse:
    """The answer to a version that is not served, to be encoded as version 0."""
    key = ApiKey.API_VERSIONS
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[_version(key, served[key])]
    )


_ADVERTISED: Final[list[tuple[ServedVersions, list[ApiVersion]]]] = []


def _advertised(served: ServedVersions) -> list[ApiVersion]:
    # Every connection asks for it first, and what is served stays the same object for life.
    if not _ADVERTISED or _ADVERTISED[0][0] is not served:
        _ADVERTISED[:] = [(served, [_version(*each) for each in sorted(served.items())])]
    return _ADVERTISED[0][1]


def _version(key: ApiKey, served: tuple[int, int]) -> ApiVersion:
    lowest, highest = served
    return ApiVersion(api_key=key, min_version=lowest, max_version=highest)


API: Api[ApiVersionsRequest, None, None, ApiVersionsResponse] = Api(
    key=ApiKey.API_VERSIONS,
    versions=(0, 4),
    split=split,
    merge=merge,
    left_out=(
        "metadata.version and kraft.version: there is no metadata log whose format they would name",
        "group.version, share.version, streams.version: those group protocols are not served",
    ),
)
