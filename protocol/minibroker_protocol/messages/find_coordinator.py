"""FindCoordinator (API key 10): which broker coordinates a group or transaction.

Versions 0 to 6, in the compact encoding from 3 on.

What changed:
  1  request adds key_type; response adds throttle_time_ms, error_message
  4  request adds coordinator_keys, drops key; response adds coordinators, drops error_code,
     error_message, node_id, host, port
"""

from __future__ import annotations

from minibroker_protocol.meanings import COORDINATOR_KEY, Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT8, INT16, INT32, NULLABLE_STRING, STRING


class FindCoordinatorRequest(Message, api_key=10, versions="0-6", flexible="3+"):
    key: str = field(STRING, means=COORDINATOR_KEY, versions="0-3")
    key_type: int = field(INT8, versions="1+")
    coordinator_keys: list[str] = field(array(STRING), means=COORDINATOR_KEY, versions="4+")


class Coordinator(Struct):
    key: str = field(STRING, means=COORDINATOR_KEY)
    node_id: int = field(INT32, means=Meaning.BROKER)
    host: str = field(STRING, means=Meaning.HOST)
    port: int = field(INT32, means=Meaning.PORT)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE)


class FindCoordinatorResponse(Message, api_key=10, versions="0-6", flexible="3+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="2+", versions="1+")
    error_code: int = field(INT16, means=Meaning.ERROR, versions="0-3")
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE, versions="1-3")
    node_id: int = field(INT32, means=Meaning.BROKER, versions="0-3")
    host: str = field(STRING, means=Meaning.HOST, versions="0-3")
    port: int = field(INT32, means=Meaning.PORT, versions="0-3")
    coordinators: list[Coordinator] = field(array(Coordinator), versions="4+")
