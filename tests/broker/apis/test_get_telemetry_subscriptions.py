"""GetTelemetrySubscriptions: new instances, their metrics, and requests that come too soon."""

from __future__ import annotations

from typing import Any

from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.types import ZERO_UUID
from tests.broker.apis.telemetry import NOW_MS, ask, subscribe


async def test_new_client_gets_an_id_and_its_subscription(apis: Any) -> None:
    apis.wall_ms = NOW_MS
    await subscribe(apis, metrics="org.apache.kafka.", interval_ms="1000", match="client_id=test")
    response = await ask(apis)
    assert response.error_code == ErrorCode.NONE
    assert response.client_instance_id != ZERO_UUID
    assert response.requested_metrics == ["org.apache.kafka."]
    assert (response.push_interval_ms, response.telemetry_max_bytes) == (1000, 1_048_576)
    assert response.accepted_compression_types == [4, 3, 1, 2]
    assert response.delta_temporality
    apis.wall_ms += 1000
    again = await ask(apis, response.client_instance_id)
    assert again.client_instance_id == response.client_instance_id
    assert again.subscription_id == response.subscription_id


async def test_client_without_subscription_asks_again_later(apis: Any) -> None:
    apis.wall_ms = NOW_MS
    response = await ask(apis)
    assert (response.requested_metrics, response.push_interval_ms) == ([], 300_000)


async def test_client_that_asks_too_soon_is_throttled(apis: Any) -> None:
    apis.wall_ms = NOW_MS
    instance_id = (await ask(apis)).client_instance_id
    response = await ask(apis, instance_id)
    assert response.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
