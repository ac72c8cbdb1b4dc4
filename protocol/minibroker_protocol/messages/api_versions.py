"""ApiVersions (API key 18): which APIs and versions a broker serves.

Versions 0 to 5, in the compact encoding from 3 on.

What changed:
  1  response adds throttle_time_ms
  3  request adds client_software_name, client_software_version; response adds
     supported_features, finalized_features_epoch, finalized_features, zk_migration_ready
  5  request adds cluster_id, node_id
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BOOLEAN, INT16, INT32, INT64, NULLABLE_STRING, STRING


class ApiVersionsRequest(Message, api_key=18, versions="0-5", flexible="3+"):
    client_software_name: str = field(STRING, versions="3+")
    client_software_version: str = field(STRING, versions="3+")
    cluster_id: str | None = field(
        NULLABLE_STRING, means=Meaning.CLUSTER, versions="5+", default=None
    )
    node_id: int = field(INT32, means=Meaning.BROKER, versions="5+", default=-1)


class ApiVersion(Struct):
    api_key: int = field(INT16)
    min_version: int = field(INT16)
    max_version: int = field(INT16)


class SupportedFeatureKey(Struct):
    name: str = field(STRING, means=Meaning.FEATURE)
    min_version: int = field(INT16)
    max_version: int = field(INT16)


class FinalizedFeatureKey(Struct):
    name: str = field(STRING, means=Meaning.FEATURE)
    max_version_level: int = field(INT16)
    min_version_level: int = field(INT16)


class ApiVersionsResponse(Message, api_key=18, versions="0-5", flexible="3+"):
    error_code: int = field(INT16, means=Meaning.ERROR)
    api_keys: list[ApiVersion] = field(array(ApiVersion))
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="2+", versions="1+")
    supported_features: list[SupportedFeatureKey] = field(
        array(SupportedFeatureKey), tagged="3+", tag=0
    )
    finalized_features_epoch: int = field(INT64, tagged="3+", tag=1, default=-1)
    finalized_features: list[FinalizedFeatureKey] = field(
        array(FinalizedFeatureKey), tagged="3+", tag=2
    )
    zk_migration_ready: bool = field(BOOLEAN, tagged="3+", tag=3)
