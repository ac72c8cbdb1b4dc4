"""Metrics of clients in the control API."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import pytest

from minibroker.broker.telemetry import ClientInstances
from minibroker.lab.control.broker import ControlledBroker
from minibroker.lab.control.client_metrics import ClientMetricsView, list_client_metrics
from minibroker.lab.control.operations import OPERATIONS
from tests.broker.telemetry.known_clients import NOW, POINT, known_clients


@pytest.fixture
def known() -> ClientInstances:
    return known_clients()


async def view_of(instances: ClientInstances, now_ms: int) -> ClientMetricsView:
    clock = SimpleNamespace(wall_ms=lambda: now_ms)
    broker = SimpleNamespace(
        scope=SimpleNamespace(telemetry=instances), env=SimpleNamespace(clock=clock)
    )
    return await list_client_metrics(cast("ControlledBroker", broker))


async def test_view_shows_instance_and_points(known: ClientInstances) -> None:
    first, _ = (await view_of(known, NOW + 5)).instances
    assert (first.client_instance_id, first.client_id, first.host) == ("1", "app-1", "10.0.0.1")
    assert (first.seen_ago_ms, first.pushes, first.last_error) == (5, 1, "NONE")
    assert first.last_problem == ""
    known.keep(b"1", "a field is cut short")
    first, _ = (await view_of(known, NOW + 5)).instances
    assert (first.last_error, first.last_problem) == ("INVALID_RECORD", "a field is cut short")
    point = first.points[0]
    assert (point.name, point.attributes, point.value) == ("records.total", "a=b,topic=t", 7.0)


async def test_expired_instance_is_not_shown(known: ClientInstances) -> None:
    assert (await view_of(known, NOW + 3 * 300_000 + 1)).instances == ()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
async def test_value_that_json_does_not_have_is_null(known: ClientInstances, value: float) -> None:
    known.keep(b"1", [POINT._replace(value=value)])
    points = (await view_of(known, NOW + 5)).instances[0].points
    assert [point.value for point in points] == [None]


def test_client_metrics_are_an_operation() -> None:
    [operation] = [one for one in OPERATIONS if one.path == "/v1/client-metrics"]
    assert operation.method == "GET"
    assert operation.answer is ClientMetricsView
