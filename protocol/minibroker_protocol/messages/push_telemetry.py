"""PushTelemetry (API key 72): a client's metrics (KIP-714).

Version 0, in the compact encoding.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, field
from minibroker_protocol.types import BOOLEAN, BYTES, INT8, INT16, INT32, UUID, Uuid


class PushTelemetryRequest(Message, api_key=72, versions="0", flexible="0+"):
    client_instance_id: Uuid = field(UUID, means=Meaning.CLIENT_INSTANCE)
    subscription_id: int = field(INT32)
    terminating: bool = field(BOOLEAN)
    compression_type: int = field(INT8)
    metrics: bytes = field(BYTES)


class PushTelemetryResponse(Message, api_key=72, versions="0", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
