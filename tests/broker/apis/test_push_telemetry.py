"""PushTelemetry: accepted metrics in every compression, and all rejections."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.telemetry.otlp import FIELDS_MAX, MetricPoint
from minibroker_protocol.compression import Compression, compress
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.types import ZERO_UUID
from tests.broker.apis.telemetry import NOW_MS, ask, push, subscribe
from tests.broker.telemetry.otlp import double, gauge, metrics

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
