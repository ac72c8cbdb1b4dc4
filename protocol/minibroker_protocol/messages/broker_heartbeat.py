"""BrokerHeartbeat (API key 63): a broker reports to the controller that it is alive.

Versions 0 to 2, all in the compact encoding.

What changed:
  1  request adds offline_log_dirs
  2  request adds cordoned_log_dirs
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, array, field
from minibroker_protocol.types import BOOLEAN, INT16, INT32, INT64, UUID, Uuid


class BrokerHeartbeatRequest(Message, api_key=63, versions="0-2", flexible="0+"):
    broker_id: int = field(INT32, means=Meaning.BROKER)
    broker_epoch: int = field(INT64, default=-1)
    current_metadata_offset: int = field(INT64, means=Meaning.OFFSET)
    want_fence: bool = field(BOOLEAN)
    want_shut_down: bool = field(BOOLEAN)
    offline_log_dirs: list[Uuid] = field(array(UUID), tagged="1+", tag=0)
    cordoned_log_dirs: list[Uuid] | None = field(
        array(UUID), nullable="2+", tagged="2+", tag=1, default=None
    )


class BrokerHeartbeatResponse(Message, api_key=63, versions="0-2", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    is_caught_up: bool = field(BOOLEAN)
    is_fenced: bool = field(BOOLEAN, default=True)
    should_shut_down: bool = field(BOOLEAN)
