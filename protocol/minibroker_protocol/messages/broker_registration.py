"""BrokerRegistration (API key 62): a broker makes itself known to the controller.

Versions 0 to 4, all in the compact encoding.

What changed:
  1  request adds is_migrating_zk_broker
  2  request adds log_dirs
  3  request adds previous_broker_epoch
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import (
    BOOLEAN,
    INT16,
    INT32,
    INT64,
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


class BrokerRegistrationRequest(Message, api_key=62, versions="0-4", flexible="0+"):
    broker_id: int = field(INT32, means=Meaning.BROKER)
    cluster_id: str = field(STRING, means=Meaning.CLUSTER)
    incarnation_id: Uuid = field(UUID)
    listeners: list[Listener] = field(array(Listener))
    features: list[Feature] = field(array(Feature))
    rack: str | None = field(NULLABLE_STRING)
    is_migrating_zk_broker: bool = field(BOOLEAN, versions="1+")
    log_dirs: list[Uuid] = field(array(UUID), versions="2+")
    previous_broker_epoch: int = field(INT64, versions="3+", default=-1)


class BrokerRegistrationResponse(Message, api_key=62, versions="0-4", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    broker_epoch: int = field(INT64, default=-1)
