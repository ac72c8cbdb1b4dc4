"""Client instances: when they may ask and push, and how many are kept."""

from __future__ import annotations

import pytest

from minibroker.broker.telemetry import instances
from minibroker.broker.telemetry.instances import ClientInstances, Push
from minibroker.broker.telemetry.otlp import MetricPoint
from minibroker.broker.telemetry.subscriptions import Selection, TelemetryProperties, select
from minibroker_protocol.errors import ErrorCode

CLIENT = TelemetryProperties("id-1", "app", "java", "4.4.0", "10.0.0.1", "5000")
ID = bytes(15) + b"\x07"
NOW = 1_000_000
INTERVAL = 1000
CONFIG = {"metrics": "a", "interval.ms": str(INTERVAL)}


@pytest.fixture
def known() -> ClientInstances:
    made = ClientInstances(size_max_bytes=100)
    made.follow([CONFIG])
    return made


def ask(known: ClientInstances, now_ms: int, instance_id: bytes = ID) -> ErrorCode | Selection:
    know(known, now_ms, instance_id)
    return known.ask(instance_id, now_ms)


def know(known: ClientInstances, now_ms: int, instance_id: bytes = ID) -> None:
    selection = select(known.subscriptions, CLIENT)
    known.add(instance_id, CLIENT, known.subscriptions, selection, now_ms)


def push(
    known: ClientInstances,
    now_ms: int,
    *,
    subscription_id: int | None = None,
    terminating: bool = False,
    compression: bool = True,
    size: int = 1,
) -> ErrorCode:
    know(known, now_ms)
    if subscription_id is None:
        subscription_id = known.all()[-1].selection.subscription_id
    request = Push(subscription_id, terminating, compression, size)
    return known.check_push(ID, request, now_ms)


def test_client_asks_and_pushes_at_its_interval(known: ClientInstances) -> None:
    selection = ask(known, NOW)
    assert isinstance(selection, Selection)
    assert (selection.metrics, selection.interval_ms) == (("a",), INTERVAL)
    assert push(known, NOW + 1) == ErrorCode.NONE
    assert push(known, NOW + 2) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert push(known, NOW + 1 + INTERVAL) == ErrorCode.NONE
    assert ask(known, NOW + 2 + INTERVAL) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert isinstance(ask(known, NOW + 1 + 2 * INTERVAL), Selection)


@pytest.mark.parametrize(
    ("fields", "error", "may_ask"),
    [
        ({"subscription_id": 5}, ErrorCode.UNKNOWN_SUBSCRIPTION_ID, True),
        ({"compression": False}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, True),
        ({"size": 101}, ErrorCode.TELEMETRY_TOO_LARGE, False),
    ],
)
def test_invalid_push_is_rejected(
    known: ClientInstances, fields: dict[str, int], error: ErrorCode, may_ask: bool
) -> None:
    ask(known, NOW)
    assert push(known, NOW + 1, **fields) == error  # type: ignore[arg-type]
    assert isinstance(ask(known, NOW + 2), Selection) == may_ask


def test_last_push_may_come_early_and_ends_the_instance(known: ClientInstances) -> None:
    ask(known, NOW)
    assert push(known, NOW + 1) == ErrorCode.NONE
    assert push(known, NOW + 2, terminating=True) == ErrorCode.NONE
    assert push(known, NOW + 2 * INTERVAL) == ErrorCode.INVALID_REQUEST


def test_newest_points_are_kept(known: ClientInstances) -> None:
    ask(known, NOW)
    points = [MetricPoint("a", (), 1.0)]
    known.keep(ID, points)
    known.keep(ID, [])
    [instance] = known.all()
    assert (instance.points, instance.pushes) == (points, 2)
    known.keep(ID, "why")
    assert (instance.error, instance.problem) == (ErrorCode.INVALID_RECORD, "why")
    known.keep(ID, [])
    assert (instance.problem, instance.pushes) == ("", 3)
    known.keep(b"unknown", points)


def test_changed_subscriptions_make_the_instance_ask_again(known: ClientInstances) -> None:
    before = ask(known, NOW)
    assert isinstance(before, Selection)
    known.keep(ID, [MetricPoint("a", (), 1.0)])
    known.follow([CONFIG])
    assert push(known, NOW + 1) == ErrorCode.NONE
    known.follow([{**CONFIG, "metrics": "b"}])
    old = before.subscription_id
    unknown = ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert push(known, NOW + 2, subscription_id=old) == unknown
    after = ask(known, NOW + 3)
    assert isinstance(after, Selection)
    assert after.metrics == ("b",)
    assert known.all()[0].points


def test_silent_and_excess_instances_are_dropped(
    known: ClientInstances, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "INSTANCES_MAX", 2)
    for number in range(3):
        ask(known, NOW + number, bytes([number]))
    assert [one.instance_id for one in known.all()] == [b"\x01", b"\x02"]
    ask(known, NOW + instances.EXPIRY_MS_MIN + 10, b"\x09")
    assert [one.instance_id for one in known.all()] == [b"\x09"]
