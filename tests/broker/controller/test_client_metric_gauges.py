"""Metrics of clients as gauges: labels and limits."""

from __future__ import annotations

import pytest

from minibroker.broker.controller import client_metric_gauges as gauges_module
from minibroker.broker.controller.client_metric_gauges import client_metric_gauges
from minibroker.broker.telemetry.instances import ClientInstances
from minibroker.broker.telemetry.otlp import MetricPoint
from minibroker.broker.telemetry.subscriptions import TelemetryProperties, select

NOW = 1_000_000
POINT = MetricPoint("records.total", (("a", "b"), ("topic", "t")), 7.0)


def client(name: str) -> TelemetryProperties:
    return TelemetryProperties(name, f"app-{name}", "java", "4.4.0", "10.0.0.1", "5000")


@pytest.fixture
def known() -> ClientInstances:
    made = ClientInstances(size_max_bytes=100)
    for name in ("1", "2"):
        made.add(name.encode(), client(name), (), select((), client(name)), NOW)
        made.ask(name.encode(), NOW)
        made.keep(name.encode(), [POINT, POINT._replace(name="x" * 500)])
    return made


def test_points_have_bounded_labels(known: ClientInstances) -> None:
    gauges = client_metric_gauges(known, NOW + 1)
    assert gauges.pop(("minibroker_client_instances", ())) == 2
    labels = ("app-1", "1", "records.total", "a=b,topic=t")
    assert gauges["minibroker_client_metric", labels] == 7.0
    assert {len(text) <= gauges_module.LABEL_MAX for _, texts in gauges for text in texts} == {True}
    assert len(gauges) == 4


def test_series_of_the_clients_seen_last_are_shown(
    known: ClientInstances, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges_module, "SERIES_MAX", 2)
    gauges = client_metric_gauges(known, NOW + 1)
    assert {labels[1] for _, labels in gauges if labels} == {"2"}


def test_expired_clients_are_not_shown(known: ClientInstances) -> None:
    late = NOW + 3 * 300_000 + 1
    assert client_metric_gauges(known, late) == {}
