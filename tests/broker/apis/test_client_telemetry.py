"""Requests of a client that pushes metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from minibroker.broker.apis.client_telemetry import (
    GET_TELEMETRY_SUBSCRIPTIONS,
    PUSH_TELEMETRY,
    TelemetryClient,
    client_properties,
    instances_with,
)
from minibroker.broker.metadata.image import CLIENT_METRICS, ConfigChanged, Update, apply_update
from minibroker.broker.telemetry import FIELDS_MAX, ClientInstances, MetricPoint
from minibroker_protocol.compression import Compression, compress
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
)
from minibroker_protocol.messages.push_telemetry import PushTelemetryRequest
from minibroker_protocol.types import ZERO_UUID
from tests.broker.telemetry.otlp import double, gauge, metrics

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


async def test_properties_are_those_of_the_connection(apis: Any) -> None:
    context = apis.context(71, 0)
    context = replace(context, caller=context.caller._replace(software=("java", "4.4.0")))
    assert client_properties(context.caller, "test", ZERO_UUID) == (
        "AAAAAAAAAAAAAAAAAAAAAA",
        "test",
        "java",
        "4.4.0",
        "127.0.0.1",
        "5000",
    )


async def test_instances_follow_the_subscriptions_of_the_image(apis: Any) -> None:
    await subscribe(apis, metrics="a")
    assert metrics_of(await known(apis)) == ("a",)
    await subscribe(apis, metrics="b")
    assert metrics_of(await known(apis)) == ("b",)


async def test_client_of_present_subscriptions_is_not_matched_again(apis: Any) -> None:
    await subscribe(apis, metrics="a", match="client_id=test")
    await known(apis)
    [before] = apis.controller.telemetry.all()
    await known(apis)
    assert apis.controller.telemetry.all() == [before]


async def test_hostile_pattern_does_not_stall(apis: Any) -> None:
    """With an engine that tries every way, this match would take longer than the universe."""
    await subscribe(apis, metrics="a", match="client_id=(a+)+b")
    assert metrics_of(await known(apis, client_id="a" * 60)) == ()


async def known(apis: Any, **properties: str) -> ClientInstances:
    caller = apis.context(71, 0).caller
    client = client_properties(caller, "test", ZERO_UUID)._replace(**properties)
    return await instances_with(apis.controller, TelemetryClient(b"i", client, 10**12))


def metrics_of(instances: ClientInstances) -> tuple[str, ...]:
    [instance] = instances.all()
    return instance.selection.metrics


# Get telemetry subscriptions ----------------------------------------------------------------------


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


# Push telemetry -----------------------------------------------------------------------------------


METRICS = metrics(gauge("m", double(4, 2.0)))


@pytest.fixture
async def asked(apis: Any) -> tuple[Any, bytes, int]:
    """Return APIs, and the id and subscription of a client that requested one."""
    apis.wall_ms = NOW_MS
    await subscribe(apis, metrics="*", interval_ms="1000")
    response = await ask(apis)
    return apis, response.client_instance_id, response.subscription_id


@pytest.mark.parametrize("compression", list(Compression), ids=lambda one: one.name)
async def test_metrics_are_kept_in_every_compression(asked: Any, compression: Compression) -> None:
    data = METRICS if compression is Compression.NONE else compress(compression, METRICS)
    error = await push(*asked, compression_type=compression, metrics=bytes(data))
    assert error == ErrorCode.NONE
    [instance] = asked[0].controller.telemetry.all()
    assert instance.points == [MetricPoint("m", (), 2.0)]


async def test_push_without_metrics_is_accepted(asked: Any) -> None:
    assert await push(*asked, metrics=b"", terminating=True) == ErrorCode.NONE


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"metrics": b"\xff"}, ErrorCode.INVALID_RECORD),
        ({"metrics": METRICS, "compression_type": 4}, ErrorCode.INVALID_RECORD),
        ({"metrics": METRICS, "compression_type": 9}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"metrics": bytes(1001)}, ErrorCode.TELEMETRY_TOO_LARGE),
        ({"metrics": bytes(2_000_000)}, ErrorCode.TELEMETRY_TOO_LARGE),
    ],
)
async def test_invalid_push_is_rejected(
    asked: Any, fields: dict[str, Any], error: ErrorCode
) -> None:
    assert await push(*asked, **fields) == error


async def test_small_push_of_many_empty_messages_is_rejected_with_the_reason(asked: Any) -> None:
    many = bytes(compress(Compression.GZIP, b"\x0a\x00" * (FIELDS_MAX + 1)))
    error = await push(*asked, compression_type=Compression.GZIP, metrics=many)
    assert error == ErrorCode.INVALID_RECORD
    [instance] = asked[0].controller.telemetry.all()
    assert "more than 100000 fields" in instance.problem


async def test_push_of_unknown_subscription_or_instance_is_rejected(asked: Any) -> None:
    apis, instance_id, subscription_id = asked
    unknown = await push(apis, instance_id, subscription_id + 1, metrics=METRICS)
    assert unknown == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    for reserved in (ZERO_UUID, bytes(15) + b"\x01"):
        error = await push(apis, reserved, subscription_id, metrics=METRICS)
        assert error == ErrorCode.INVALID_REQUEST


async def test_early_push_is_throttled(asked: Any) -> None:
    assert await push(*asked, metrics=METRICS) == ErrorCode.NONE
    assert await push(*asked, metrics=METRICS) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
