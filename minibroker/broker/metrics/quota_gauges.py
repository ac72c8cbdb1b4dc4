"""Quotas as gauges: the current rates in the ledger, and their limits.

Owns which figure of a counter becomes which metric. It must never record anything. Invariant: at
most ``QUOTA_COUNTERS_SHOWN_MAX`` counters are shown, and none an hour after its last record, so
label sets disappear with their users. Kafka's ``ClientQuotaManager`` has the same metrics.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from minibroker.broker.metrics.definitions import (
    QUOTA_BOUND,
    QUOTA_COUNTERS_SHOWN_MAX,
    QUOTA_EXEMPT_TIME,
    QUOTA_THROTTLE,
    QUOTA_TOKENS,
)
from minibroker.broker.metrics.metrics import Series
from minibroker.broker.quotas.entity import QuotaTable, bound_of
from minibroker.broker.quotas.ledger import QuotaLedger, QuotaUsage
from minibroker.broker.quotas.manager import EXEMPT
from minibroker.broker.quotas.types import BY_NAME

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
