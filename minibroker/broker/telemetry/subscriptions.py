"""Which metrics a client pushes: the subscriptions of client metrics configs that match it.

Owns the match of clients and the combination of several subscriptions. It must never know a
request. Invariant: the subscription id changes whenever the metrics or the interval do. Kafka's
``ClientMetricsManager.SubscriptionInfo``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from minibroker.broker.patterns.expression import CompiledPattern
from minibroker.broker.settings.client_metrics import (
    ALL_METRICS,
    INTERVAL_MS,
    MATCH,
    METRICS,
    parse_match,
)
from minibroker.broker.settings.types import BadValueError

MATCHED_MAX: Final = 256
"""Characters of a client's property that are matched with a pattern."""


class TelemetryProperties(NamedTuple):
    """What patterns can select, by the names of the config ``match``."""

    client_instance_id: str
    client_id: str
    client_software_name: str
    client_software_version: str
    client_source_address: str
    client_source_port: str


class Subscription(NamedTuple):
    """One config of client metrics."""

    metrics: tuple[str, ...]
    interval_ms: int
    patterns: Mapping[str, CompiledPattern]

    def matches(self, client: TelemetryProperties) -> bool:
        """Whether every pattern matches the client."""
        return all(
            pattern.matches(getattr(client, name)[:MATCHED_MAX])
            for name, pattern in self.patterns.items()
        )


class Selection(NamedTuple):
    """What a client has to push, and how often."""

    subscription_id: int
    metrics: tuple[str, ...]
    interval_ms: int


def read_subscriptions(configs: Iterable[Mapping[str, str]]) -> tuple[Subscription, ...]:
    """The subscriptions of valid configs."""
    found = []
    for config in configs:
        try:
            metrics = METRICS.parse(config.get(METRICS.name, ""))
            interval_ms = INTERVAL_MS.parse(config.get(INTERVAL_MS.name, str(INTERVAL_MS.default)))
            patterns = parse_match(MATCH.parse(config.get(MATCH.name, "")))
        except BadValueError:
            continue
        found.append(Subscription(metrics, interval_ms, patterns))
    return tuple(found)


def select(subscriptions: Iterable[Subscription], client: TelemetryProperties) -> Selection:
    """All metrics of the matching subscriptions, at the shortest of their intervals."""
    matching = [each for each in subscriptions if each.matches(client)]
    metrics = tuple(sorted({name for each in matching for name in each.metrics}))
    if ALL_METRICS in metrics:
        metrics = (ALL_METRICS,)
    interval_ms = min([INTERVAL_MS.default, *(each.interval_ms for each in matching)])
    text = f"{client.client_instance_id} {metrics} {interval_ms}"
    unsigned = zlib.crc32(text.encode())
    return Selection(unsigned - 2**32 if unsigned >= 2**31 else unsigned, metrics, interval_ms)
