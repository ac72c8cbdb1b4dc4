"""Requests of a client that pushes metrics."""

from __future__ import annotations

from typing import Any, Final

from minibroker.broker.apis.client_telemetry import GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY
from minibroker.broker.metadata.image import CLIENT_METRICS, ConfigChanged, Update, apply_update
from minibroker_protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
)
from minibroker_protocol.messages.push_telemetry import PushTelemetryRequest
from minibroker_protocol.types import ZERO_UUID

NOW_MS: Final = 1_700_000_000_000


async def subscribe(apis: Any, **config: str) -> None:
    """Set the configs of one subscription."""
    image = apis.cluster.image
    named = {name.replace("_", "."): value for name, value in config.items()}
    change = ConfigChanged(CLIENT_METRICS, "s", named)
    update = Update(image.controller_epoch, image.number + 1, (change,))
    apis.cluster._image = apply_update(image, update)
    await apis.controller.publish([update])


async def ask(apis: Any, instance_id: bytes = ZERO_UUID) -> Any:
    request = GetTelemetrySubscriptionsRequest(client_instance_id=instance_id)
    return await apis.ask(GET_TELEMETRY_SUBSCRIPTIONS, request, 0)


async def push(apis: Any, instance_id: bytes, subscription_id: int, **fields: Any) -> int:
    """The error of a push."""
    request = PushTelemetryRequest(
        client_instance_id=instance_id, subscription_id=subscription_id, **fields
    )
    response = await apis.ask(PUSH_TELEMETRY, request, 0)
    code: int = response.error_code
    return code
