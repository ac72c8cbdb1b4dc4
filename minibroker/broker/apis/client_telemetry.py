"""The requests of client telemetry: which metrics to push, and the pushes (KIP-714).

Reads what subscriptions can select a client by. Invariant: a client is known by the properties of
the connection that it asks with. In Kafka: ``ClientMetricsManager``.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from minibroker.broker.apis.base import (
    CONTROLLER,
    Api,
    Caller,
    Context,
    ControllerRequest,
    ControllerScope,
    Owner,
    at_controller,
)
from minibroker.broker.metadata.image import CLIENT_METRICS
from minibroker.broker.settings import TELEMETRY_MAX_BYTES
from minibroker.broker.telemetry import (
    FIELDS_MAX,
    ClientInstances,
    InvalidMetrics,
    MetricPoint,
    Push,
    TelemetryProperties,
    read_points,
    select,
)
from minibroker_protocol.compression import Compression, decompress
from minibroker_protocol.errors import DecodeError, ErrorCode
from minibroker_protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from minibroker_protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import ZERO_UUID, Uuid, uuid_text


class TelemetryClient(NamedTuple):
    """The client that asks or pushes, and when."""

    instance_id: Uuid
    properties: TelemetryProperties
    now_ms: int


def client_properties(caller: Caller, client_id: str, instance_id: Uuid) -> TelemetryProperties:
    """The properties of the caller."""
    name, version = caller.software
    return TelemetryProperties(
        client_instance_id=uuid_text(instance_id),
        client_id=client_id,
        client_software_name=name,
        client_software_version=version,
        client_source_address=caller.client_host,
        client_source_port=str(caller.client_port),
    )


async def instances_with(scope: ControllerScope, client: TelemetryClient) -> ClientInstances:
    """The client instances, of which the client is one.

    A new client is compared with the patterns of all subscriptions in a thread.
    """
    instances = current_instances(scope)
    if not instances.has_current(client.instance_id):
        subscriptions = instances.subscriptions
        work = partial(select, subscriptions, client.properties)
        selection = await scope.run_in_thread(work) if subscriptions else work()
        instances.add(
            client.instance_id, client.properties, subscriptions, selection, client.now_ms
        )
    return instances


def current_instances(scope: ControllerScope) -> ClientInstances:
    """The client instances, with the present subscriptions."""
    configs = (
        config for (kind, _), config in scope.image.configs.items() if kind == CLIENT_METRICS
    )
    scope.telemetry.follow(configs)
    return scope.telemetry


# GetTelemetrySubscriptions (71) -------------------------------------------------------------------
#
# Which metrics a client has to push, and how often (KIP-714). Version 0. A client without an
# instance id gets one. The subscription combines all configs of client metrics that match the
# client; without any the client pushes nothing and asks again later. A client that asks again too
# soon gets THROTTLING_QUOTA_EXCEEDED. In Kafka:
# ``ClientMetricsManager.processGetTelemetrySubscriptionRequest``.


ACCEPTED_COMPRESSION: Final = (4, 3, 1, 2)
"""zstd, lz4, gzip, snappy: Kafka's order of preference."""


async def _get_subscription(
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


GET_TELEMETRY_SUBSCRIPTIONS = at_controller(
    _get_subscription,
    key=ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    versions=(0, 0),
    requires=(),
)


# PushTelemetry (72) -------------------------------------------------------------------------------
#
# Metrics of a client (KIP-714). Version 0. The client must have asked for its subscription and push
# at its interval; the last push of a client that ends may come sooner. The metrics are
# OpenTelemetry's, possibly compressed; what cannot be read gets INVALID_RECORD, and so do more
# fields than ``FIELDS_MAX``. The newest metrics of each client are in ``/metrics`` and in the
# control API, with the reason of that error. In Kafka:
# ``ClientMetricsManager.processPushTelemetryRequest``, which gives the bytes to a plug-in.


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


def _split_push(ctx: Context, request: PushTelemetryRequest) -> Mapping[Owner, PushTelemetryPart]:
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


async def _push(scope: ControllerScope, part: PushTelemetryPart) -> PushTelemetryReply:
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


def _merge_push(
    _ctx: Context, _request: PushTelemetryRequest, replies: Mapping[Owner, PushTelemetryReply]
) -> PushTelemetryResponse:
    return PushTelemetryResponse(error_code=replies.get(CONTROLLER, ErrorCode.INVALID_REQUEST))


PUSH_TELEMETRY = Api(
    key=ApiKey.PUSH_TELEMETRY,
    versions=(0, 0),
    requires=(),
    split=_split_push,
    execute_at_controller=_push,
    merge=_merge_push,
    left_out=(
        "histograms: the clients of Kafka push gauges and sums only",
        f"pushes with more than {FIELDS_MAX:,} fields of protobuf get INVALID_RECORD",
    ),
)


APIS = (
    GET_TELEMETRY_SUBSCRIPTIONS,
    PUSH_TELEMETRY,
)
