"""ConsumerGroupHeartbeat (68): membership of a consumer group by the protocol of KIP-848.

Versions 0-1, always answered with UNSUPPORTED_VERSION. It is advertised because clients with
``group.protocol=consumer`` fail with a clear error only if a broker answers so: without the API
librdkafka looks for a coordinator again and again and reports nothing. Kafka answers the same
where ``group.coordinator.rebalance.protocols`` lacks ``consumer``, before any check of rights.
"""

from __future__ import annotations

from typing import Final

from minibroker.broker.apis.base import Context, without_owner
from minibroker.broker.apis.unserved import CONSUMER_GROUPS
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from minibroker_protocol.registry import ApiKey

MESSAGE: Final = f"This broker does not serve {CONSUMER_GROUPS.protocol}: {CONSUMER_GROUPS.advice}."


def answer(ctx: Context, _request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
    """Reject the request."""
    ctx.unserved = CONSUMER_GROUPS
    return ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=MESSAGE
    )


API = without_owner(
    answer,
    key=ApiKey.CONSUMER_GROUP_HEARTBEAT,
    versions=(0, 1),
    requires=(),
    left_out=("the groups of KIP-848: every request is answered with UNSUPPORTED_VERSION",),
)
