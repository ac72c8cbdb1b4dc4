"""ControllerRegistration (API key 70): a controller makes itself known to the leader.

Version 0, in the compact encoding.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import (
    BOOLEAN,
    INT16,
    INT32,
    NULLABLE_STRING,
    STRING,
    UINT16,
    UUID,
    Uuid,
)


class Listener(Struct):
    name: str = field(STRING)
    host: str = field(STRING, means=Meaning.PEER_HOST)
    port: int = field(UINT16, means=Meaning.PEER_PORT)
    security_protocol: int = field(INT16)


class Feature(Struct):
    name: str = field(STRING, means=Meaning.FEATURE)
    min_supported_version: int = field(INT16)
    max_supported_version: int = field(INT16)


class ControllerRegistrationRequest(Message, api_key=70, versions="0", flexible="0+"):
    controller_id: int = field(INT32, means=Meaning.BROKER)
    incarnation_id: Uuid = field(UUID)
    zk_migration_ready: bool = field(BOOLEAN)
    listeners: list[Listener] = field(array(Listener))
    features: list[Feature] = field(array(Feature))


class ControllerRegistrationResponse(Message, api_key=70, versions="0", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE)
