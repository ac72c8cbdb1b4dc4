"""UpdateFeatures (API key 57): finalize feature levels.

Versions 0 to 2, all in the compact encoding.

What changed:
  1  request adds upgrade_type, validate_only, drops allow_downgrade
  2  response drops results
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BOOLEAN, INT8, INT16, INT32, NULLABLE_STRING, STRING


class FeatureUpdateKey(Struct):
    feature: str = field(STRING, means=Meaning.FEATURE)
    max_version_level: int = field(INT16)
    allow_downgrade: bool = field(BOOLEAN, versions="0")
    upgrade_type: int = field(INT8, versions="1+", default=1)


class UpdateFeaturesRequest(Message, api_key=57, versions="0-2", flexible="0+"):
    timeout_ms: int = field(INT32, default=60000)
    feature_updates: list[FeatureUpdateKey] = field(array(FeatureUpdateKey))
    validate_only: bool = field(BOOLEAN, versions="1+")


class UpdatableFeatureResult(Struct):
    feature: str = field(STRING, means=Meaning.FEATURE)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE)


class UpdateFeaturesResponse(Message, api_key=57, versions="0-2", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE)
    results: list[UpdatableFeatureResult] = field(array(UpdatableFeatureResult), versions="0-1")
