from __future__ import annotations

from minibroker.broker.metrics.metric import Metric, MetricKind


def test_metric_counts_in_its_own_unit_by_default() -> None:
    metric = Metric("minibroker_things", MetricKind.GAUGE, (), "Things.")
    assert (metric.jmx, metric.divisor) == ("", 1)
