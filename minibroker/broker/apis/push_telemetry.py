"""PushTelemetry (72): metrics of a client (KIP-714).

Version 0. The client must have asked for its subscription and push at its interval; the last push
of a client that ends may come sooner. The metrics are OpenTelemetry's, possibly compressed; what
cannot be read gets INVALID_RECORD, and so do more fields than ``FIELDS_MAX``. The newest metrics
of each client are in ``/metrics`` and in the control API, with the reason of that error. In Kafka:
``ClientMetricsManager.processPushTelemetryRequest``, which gives the bytes to a plug-in.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from minibroker.broker.apis.base import CONTROLLER, Api, Context, ControllerScope, Owner
from minibroker.broker.apis.telemetry_clients import (
    TelemetryClient,
    client_properties,
    instances_with,
)
from minibroker.broker.settings.definitions import TELEMETRY_MAX_BYTES
from minibroker.broker.telemetry.instances import Push
from minibroker.broker.telemetry.otlp import FIELDS_MAX, InvalidMetrics, MetricPoint, read_points
from minibroker_protocol.compression import Compression, decompress
from minibroker_protocol.errors import DecodeError, ErrorCode
from minibroker_protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import ZERO_UUID

UNCOMPRESSED_MAX_BYTES: Final = 8 * 1024 * 1024
_RESERVED: Final = (ZERO_UUID, bytes(15) + b"\x01")
"""Ids that no client instance has: the zero id, and Kafka's id of the metadata topic."""


class PushTelemetryPart(NamedTuple):
    """A push and its client; the metrics are as they were sent."""

    client: TelemetryClient
    push: Push
    compression: int
    metrics: bytes


PushTelemetryReply = ErrorCode


def split(ctx: Context, request: PushTelemetryRequest) -> Mapping[Owner, PushTelemetryPart]:
    """Send a push of a valid client to the controller."""
    instance_id = bytes(request.client_instance_id)
    if instance_id in _RESERVED:
        return {}
    properties = client_properties(ctx.caller, ctx.header.client_id or "", instance_id)
    client = TelemetryClient(instance_id, properties, ctx.wall_ms)
    size_bytes = len(request.metrics)
    push = Push(
        request.subscription_id,
        request.terminating,
        request.compression_type in list(Compression),
        size_bytes,
    )
    # What is too large is refused, so it need not be sent to the controller.
    is_too_large = size_bytes > ctx.settings[TELEMETRY_MAX_BYTES]
    metrics = b"" if is_too_large else bytes(request.metrics)
    return {CONTROLLER: PushTelemetryPart(client, push, request.compression_type, metrics)}


async def execute_at_controller(
    scope: ControllerScope, part: PushTelemetryPart
) -> PushTelemetryReply:
    """Check whether the push is accepted, and keep its metrics."""
    client = part.client
    instances = await instances_with(scope, client)
    error = instances.check_push(client.instance_id, part.push, client.now_ms)
    if error:
        return error
    points: list[MetricPoint] | str = []
    if part.metrics:
        points = await scope.run_in_thread(partial(_points, part.compression, part.metrics))
    instances.keep(client.instance_id, points)
    return ErrorCode.INVALID_RECORD if isinstance(points, str) else ErrorCode.NONE


def _points(compression: int, metrics: bytes) -> list[MetricPoint] | str:
    """The points of a push, or why they cannot be read."""
    try:
        return read_points(decompress(Compression(compression), metrics, UNCOMPRESSED_MAX_BYTES))
    except (DecodeError, InvalidMetrics) as error:
        return str(error)


def merge(
    _ctx: Context, _request: PushTelemetryRequest, replies: Mapping[Owner, PushTelemetryReply]
) -> PushTelemetryResponse:
    """The error."""
    return PushTelemetryResponse(error_code=replies.get(CONTROLLER, ErrorCode.INVALID_REQUEST))


API: Api[PushTelemetryRequest, PushTelemetryPart, PushTelemetryReply, PushTelemetryResponse] = Api(
    key=ApiKey.PUSH_TELEMETRY,
    versions=(0, 0),
    requires=(),
    split=split,
    execute_at_controller=execute_at_controller,
    merge=merge,
    left_out=(
        "histograms: the clients of Kafka push gauges and sums only",
        f"pushes with more than {FIELDS_MAX:,} fields of protobuf get INVALID_RECORD",
    ),
)
