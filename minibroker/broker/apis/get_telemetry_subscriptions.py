"""GetTelemetrySubscriptions (71): which metrics a client has to push, and how often (KIP-714).

Version 0. A client without an instance id gets one. The subscription combines all configs of client
metrics that match the client; without any the client pushes nothing and asks again later. A client
that asks again too soon gets THROTTLING_QUOTA_EXCEEDED. In Kafka:
``ClientMetricsManager.processGetTelemetrySubscriptionRequest``.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Final

from minibroker.broker.apis.base import CONTROLLER, Api, Context, ControllerScope, Owner
from minibroker.broker.apis.telemetry_clients import (
    TelemetryClient,
    client_properties,
    instances_with,
)
from minibroker.broker.settings import TELEMETRY_MAX_BYTES
from minibroker.broker.telemetry.subscriptions import Selection
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import ZERO_UUID, Uuid

ACCEPTED_COMPRESSION: Final = (4, 3, 1, 2)
"""zstd, lz4, gzip, snappy: Kafka's order of preference."""


GetTelemetrySubscriptionsReply = tuple[Uuid, ErrorCode | Selection]
"""The instance id, and the error or the subscription."""


def split(
    ctx: Context, request: GetTelemetrySubscriptionsRequest
) -> Mapping[Owner, TelemetryClient]:
    """Send everything to the controller, which knows the clients of all connections."""
    instance_id = bytes(request.client_instance_id)
    if instance_id == ZERO_UUID:
        instance_id = uuid.uuid4().bytes
    client = TelemetryClient(instance_id, client_properties(ctx, instance_id), ctx.wall_ms)
    return {CONTROLLER: client}


async def execute_at_controller(
    scope: ControllerScope, part: TelemetryClient
) -> GetTelemetrySubscriptionsReply:
    """Select the metrics of the client."""
    instances = await instances_with(scope, part)
    answer = instances.ask(part.instance_id, part.now_ms)
    return part.instance_id, answer


def merge(
    ctx: Context,
    _request: GetTelemetrySubscriptionsRequest,
    replies: Mapping[Owner, GetTelemetrySubscriptionsReply],
) -> GetTelemetrySubscriptionsResponse:
    """The subscription, or the error."""
    instance_id, answer = replies[CONTROLLER]
    if isinstance(answer, ErrorCode):
        return GetTelemetrySubscriptionsResponse(error_code=answer)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=answer.subscription_id,
        accepted_compression_types=list(ACCEPTED_COMPRESSION),
        push_interval_ms=answer.interval_ms,
        telemetry_max_bytes=ctx.settings[TELEMETRY_MAX_BYTES],
        delta_temporality=True,
        requested_metrics=list(answer.metrics),
    )


API: Api[
    GetTelemetrySubscriptionsRequest,
    TelemetryClient,
    GetTelemetrySubscriptionsReply,
    GetTelemetrySubscriptionsResponse,
] = Api(
    key=ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    versions=(0, 0),
    split=split,
    execute_at_controller=execute_at_controller,
    merge=merge,
)
