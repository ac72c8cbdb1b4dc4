"""Client metrics in the control API are found at their path."""

from __future__ import annotations

from minibroker.lab.control.client_metrics_shapes import ClientMetricsView
from minibroker.lab.control.routes import OPERATIONS


def test_client_metrics_are_an_operation() -> None:
    [operation] = [one for one in OPERATIONS if one.path == "/v1/client-metrics"]
    assert operation.method == "GET"
    assert operation.answer is ClientMetricsView
