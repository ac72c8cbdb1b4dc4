"""Metrics that clients push (KIP-714), in the control API.

Owns their records and the operation that returns them. It must never change an instance. Invariant:
an instance that is gone is not shown.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from minibroker.broker.roles.metadata_publisher import attributes_text
from minibroker.lab.control.operation import Operations
from minibroker.lab.schema import Doc

if TYPE_CHECKING:
    from minibroker.broker.telemetry import ClientInstance
    from minibroker.lab.control.broker import ControlledBroker


class ClientMetricPoint(NamedTuple):
    """The newest value of a metric that a client has pushed."""

    name: Annotated[str, Doc("As the client names it, e.g. `org.apache.kafka.producer.…`.")]
    attributes: Annotated[str, Doc("`key=value` of each attribute, with commas between them.")]
    value: Annotated[float | None, Doc("Null if it is not a finite number.")]


class ClientMetricsInstance(NamedTuple):
    """A client instance that has asked for its subscription."""

    client_instance_id: str
    client_id: str
    software_name: str
    software_version: str
    host: str
    subscription_id: int
    metrics: Annotated[tuple[str, ...], Doc("Prefixes of the metrics that it is to push.")]
    interval_ms: Annotated[int, Doc("The interval of its pushes.")]
    seen_ago_ms: Annotated[int, Doc("When its last request arrived.")]
    pushes: Annotated[int, Doc("Accepted pushes.")]
    last_error: Annotated[str, Doc("The error of its last request, or `NONE`.")]
    last_problem: Annotated[
        str, Doc("Why the metrics of its last push could not be read, or empty.")
    ]
    points: tuple[ClientMetricPoint, ...]


class ClientMetricsView(NamedTuple):
    """The client instances, the one that was seen last at the end."""

    instances: tuple[ClientMetricsInstance, ...]


CLIENT_METRICS_OPERATIONS: Final = Operations()


@CLIENT_METRICS_OPERATIONS.add("GET", "/v1/client-metrics")
async def list_client_metrics(broker: ControlledBroker) -> ClientMetricsView:
    """List the clients that push metrics (KIP-714), with their newest values."""
    now_ms = broker.env.clock.wall_ms()
    return ClientMetricsView(
        tuple(
            _view(instance, now_ms)
            for instance in broker.scope.telemetry.all()
            if not instance.is_expired(now_ms)
        )
    )


def _view(instance: ClientInstance, now_ms: int) -> ClientMetricsInstance:
    client, selection = instance.client, instance.selection
    return ClientMetricsInstance(
        client_instance_id=client.client_instance_id,
        client_id=client.client_id,
        software_name=client.client_software_name,
        software_version=client.client_software_version,
        host=client.client_source_address,
        subscription_id=selection.subscription_id,
        metrics=selection.metrics,
        interval_ms=selection.interval_ms,
        seen_ago_ms=max(0, now_ms - instance.seen_ms),
        pushes=instance.pushes,
        last_error=instance.error.name,
        last_problem=instance.problem,
        points=tuple(
            ClientMetricPoint(
                point.name,
                attributes_text(point),
                point.value if math.isfinite(point.value) else None,
            )
            for point in instance.points
        ),
    )
