"""GetTelemetrySubscriptions (API key 71): which metrics a client should push (KIP-714).

Version 0, in the compact encoding.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, array, field
from minibroker_protocol.types import BOOLEAN, INT8, INT16, INT32, STRING, UUID, Uuid


class GetTelemetrySubscriptionsRequest(Message, api_key=71, versions="0", flexible="0+"):
    client_instance_id: Uuid = field(UUID, means=Meaning.CLIENT_INSTANCE)


class GetTelemetrySubscriptionsResponse(Message, api_key=71, versions="0", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    client_instance_id: Uuid = field(UUID, means=Meaning.CLIENT_INSTANCE)
    subscription_id: int = field(INT32)
    accepted_compression_types: list[int] = field(array(INT8))
    push_interval_ms: int = field(INT32)
    telemetry_max_bytes: int = field(INT32)
    delta_temporality: bool = field(BOOLEAN)
    requested_metrics: list[str] = field(array(STRING))
