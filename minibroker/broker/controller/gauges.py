"""Gauges of the controller: rates and limits of quotas, and the metrics of clients (KIP-714).

Owns which figure becomes which metric, its labels, and how many are shown. It must never record or
change anything. Invariant: at most ``QUOTA_COUNTERS_SHOWN_MAX`` counters are shown, and none an
hour after its last record, so label sets disappear with their users; at most ``SERIES_MAX`` series
of clients are shown, those that were seen last, and none of a client that is gone. Kafka's
``ClientQuotaManager`` has the same metrics.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from minibroker.broker.metrics.definitions import (
    CLIENT_INSTANCES,
    CLIENT_METRIC,
    QUOTA_BOUND,
    QUOTA_COUNTERS_SHOWN_MAX,
    QUOTA_EXEMPT_TIME,
    QUOTA_THROTTLE,
    QUOTA_TOKENS,
)
from minibroker.broker.metrics.metrics import Series
from minibroker.broker.quotas.ledger import QuotaLedger, QuotaUsage
from minibroker.broker.quotas.manager import EXEMPT
from minibroker.broker.quotas.types import BY_NAME, QuotaTable, bound_of
from minibroker.broker.telemetry import SERIES_MAX, ClientInstance, ClientInstances, MetricPoint

LABEL_MAX: Final = 200
"""Characters of a name that a label has."""


def read_gauges(ledger: QuotaLedger, table: QuotaTable, now_ms: int) -> dict[Series, float]:
    """The gauges of all counters that are shown."""
    gauges: dict[Series, float] = {}
    for entry in ledger.entries(now_ms, QUOTA_COUNTERS_SHOWN_MAX):
        gauges.update(_gauges(entry, table))
    return gauges


def _gauges(entry: QuotaUsage, table: QuotaTable) -> Iterator[tuple[Series, float]]:
    if entry.kind == EXEMPT:
        yield (QUOTA_EXEMPT_TIME.name, ()), entry.usage.rate
        return
    kind = BY_NAME[entry.kind]
    labels = (entry.kind, entry.tags.user[:LABEL_MAX], entry.tags.client[:LABEL_MAX])
    if entry.used:
        yield (kind.row.metric, labels), entry.usage.rate
        bound = bound_of(table, kind, entry.tags)
        if bound is not None:
            yield (QUOTA_BOUND.name, labels), bound.value
        if entry.tokens < math.inf:
            yield (QUOTA_TOKENS.name, labels), entry.tokens
    if not math.isnan(entry.throttle_ms):
        yield (QUOTA_THROTTLE.name, labels), entry.throttle_ms


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
