"""GetTelemetrySubscriptions (71): which metrics a client has to push, and how often (KIP-714).

Version 0. A client without an instance id gets one. The subscription combines all configs of client
metrics that match the client; without any the client pushes nothing and asks again later. A client
that asks again too soon gets THROTTLING_QUOTA_EXCEEDED. In Kafka:
``ClientMetricsManager.processGetTelemetrySubscriptionRequest``.
"""

from __future__ import annotations

import uuid
from typing import Final

from minibroker.broker.apis.base import ControllerRequest, ControllerScope, at_controller
from minibroker.broker.apis.telemetry_clients import (
    TelemetryClient,
    client_properties,
    instances_with,
)
from minibroker.broker.settings.definitions import TELEMETRY_MAX_BYTES
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import ZERO_UUID

ACCEPTED_COMPRESSION: Final = (4, 3, 1, 2)
"""zstd, lz4, gzip, snappy: Kafka's order of preference."""


async def execute(
    scope: ControllerScope, request: ControllerRequest[GetTelemetrySubscriptionsRequest]
) -> GetTelemetrySubscriptionsResponse:
    """The subscription of the client, or the error."""
    instance_id = request.message.client_instance_id
    if instance_id == ZERO_UUID:
        instance_id = uuid.uuid4().bytes
    properties = client_properties(request.caller, request.client_id, instance_id)
    client = TelemetryClient(instance_id, properties, request.wall_ms)
    instances = await instances_with(scope, client)
    answer = instances.ask(instance_id, request.wall_ms)
    if isinstance(answer, ErrorCode):
        return GetTelemetrySubscriptionsResponse(error_code=answer)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=answer.subscription_id,
        accepted_compression_types=list(ACCEPTED_COMPRESSION),
        push_interval_ms=answer.interval_ms,
        telemetry_max_bytes=scope.settings[TELEMETRY_MAX_BYTES],
        delta_temporality=True,
        requested_metrics=list(answer.metrics),
    )


API = at_controller(
    execute,
    key=ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    versions=(0, 0),
    requires=(),
)
