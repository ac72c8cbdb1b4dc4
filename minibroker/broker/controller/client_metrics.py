"""Metrics of clients for the control API (KIP-714).

Owns how an instance becomes a record. It must never change an instance. Invariant: an instance that
is gone is not shown.
"""

from __future__ import annotations

import math

from minibroker.broker.controller.client_metric_gauges import attributes_text
from minibroker.broker.telemetry.instances import ClientInstance, ClientInstances
from minibroker.lab.control.client_metrics_shapes import (
    ClientMetricPoint,
    ClientMetricsInstance,
    ClientMetricsView,
)


def client_metrics_view(instances: ClientInstances, now_ms: int) -> ClientMetricsView:
    """All instances for the control API."""
    return ClientMetricsView(
        tuple(_view(one, now_ms) for one in instances.all() if not one.is_expired(now_ms))
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
