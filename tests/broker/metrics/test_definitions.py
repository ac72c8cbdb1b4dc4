"""The table of metrics keeps the promises that scrapers rely on."""

from __future__ import annotations

import pytest

from minibroker.broker.metrics.definitions import (
    API_KEYS_MAX,
    METRICS,
    SIZE_BUCKETS_BYTES,
    TIME_BUCKETS_NS,
    CloseReason,
    Metric,
    MetricKind,
)
from minibroker_protocol.registry import ApiKey


def test_metric_names_follow_prometheus_conventions() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.name.startswith("minibroker_")
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
        assert metric.name.removesuffix("_total").endswith("_seconds") == (metric.divisor > 1)


def test_every_metric_has_a_description() -> None:
    for metric in METRICS:
        assert metric.meaning.endswith(".")
        assert "|" not in metric.meaning + metric.jmx, "it stands in a Markdown table"


@pytest.mark.parametrize("bounds", [SIZE_BUCKETS_BYTES, TIME_BUCKETS_NS])
def test_bucket_bounds_increase(bounds: tuple[int, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))
    assert bounds[0] > 0


def test_every_kafka_api_key_has_its_own_row() -> None:
    assert max(ApiKey) < API_KEYS_MAX


def test_metric_counts_in_its_own_unit_by_default() -> None:
    metric = Metric("minibroker_things", MetricKind.GAUGE, (), meaning="Things.")
    assert (metric.jmx, metric.divisor) == ("", 1)


def test_close_reasons_are_unique_labels() -> None:
    names = [reason.value for reason in CloseReason.__members__.values()]
    assert len(set(names)) == len(CloseReason.__members__)
    assert all(name.replace("_", "").isalpha() and name.islower() for name in names)
