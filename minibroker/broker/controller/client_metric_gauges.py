"""Metrics of clients as metrics of the broker (KIP-714).

Owns their labels and how many are shown. It must never change an instance. Invariant: at most
``SERIES_MAX`` series are shown, those of the clients that were seen last, and none of a client that
is gone.
"""

from __future__ import annotations

from typing import Final

from minibroker.broker.metrics.definitions import CLIENT_INSTANCES, CLIENT_METRIC
from minibroker.broker.metrics.metrics import Series
from minibroker.broker.telemetry.instances import SERIES_MAX, ClientInstance, ClientInstances
from minibroker.broker.telemetry.otlp import MetricPoint

LABEL_MAX: Final = 200
"""Characters of a label."""


def client_metric_gauges(instances: ClientInstances, now_ms: int) -> dict[Series, float]:
    """The number of instances, and the newest points of those seen last."""
    known = [one for one in instances.all() if not one.is_expired(now_ms)]
    gauges: dict[Series, float] = {(CLIENT_INSTANCES.name, ()): len(known)} if known else {}
    for instance in reversed(known):
        for point in instance.points:
            if len(gauges) > SERIES_MAX:
                return gauges
            gauges[CLIENT_METRIC.name, _labels(instance, point)] = point.value
    return gauges


def _labels(instance: ClientInstance, point: MetricPoint) -> tuple[str, ...]:
    texts = (
        instance.client.client_id,
        instance.client.client_instance_id,
        point.name,
        attributes_text(point),
    )
    return tuple(text[:LABEL_MAX] for text in texts)


def attributes_text(point: MetricPoint) -> str:
    """The attributes of a point as one text."""
    return ",".join(f"{key}={value}" for key, value in point.attributes)
