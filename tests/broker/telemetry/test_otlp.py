"""The reader of OTLP: what Kafka's clients push, and any other bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.telemetry import otlp
from minibroker.broker.telemetry.otlp import InvalidMetrics, MetricPoint, read_points
from tests.broker.telemetry.otlp import (
    attribute,
    double,
    fixed,
    gauge,
    message,
    metrics,
    total,
    varint,
)

PUSH = metrics(
    gauge("records.rate", double(4, 2.5) + attribute("topic", "t") + attribute("a", "b")),
    total("records.total", fixed(6, -7), fixed(6, 2**40)),
)


def test_points_of_gauges_and_sums_are_read() -> None:
    assert read_points(PUSH) == [
        MetricPoint("records.rate", (("a", "b"), ("topic", "t")), 2.5),
        MetricPoint("records.total", (), -7.0),
        MetricPoint("records.total", (), float(2**40)),
    ]
    assert read_points(b"") == []


def test_values_of_attributes_are_read_as_text() -> None:
    values = {
        "bool": varint(2 << 3) + b"\x01",
        "int": varint(3 << 3) + varint(2**64 - 5),
        "double": double(4, 0.5),
        "empty": b"",
    }
    point = b"".join(attribute(key, value) for key, value in values.items())
    [found] = read_points(metrics(gauge("m", point)))
    assert dict(found.attributes) == {
        "bool": "true",
        "int": "-5",
        "double": "0.5",
        "empty": "",
    }


def test_unknown_fields_are_skipped() -> None:
    extra = message(99, b"x") + varint(98 << 3) + varint(5) + varint(97 << 3 | 5) + b"abcd"
    assert read_points(extra + metrics(extra + gauge("m", extra + double(4, 1.0)))) == [
        MetricPoint("m", (), 1.0)
    ]


def test_points_and_texts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "POINTS_MAX", 3)
    many = metrics(*(gauge("m" * 1000, double(4, 1.0)) for _ in range(5)))
    points = read_points(many)
    assert len(points) == 3
    assert len(points[0].name) == otlp.TEXT_MAX
    attributes = b"".join(attribute(str(n), "v") for n in range(50))
    [point] = read_points(metrics(gauge("m", attributes)))
    assert len(point.attributes) == otlp.ATTRIBUTES_MAX


def test_fields_are_bounded_in_every_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "FIELDS_MAX", 100)
    empty = message(1, b"")
    for wrapped in (
        lambda content: content,
        lambda content: message(1, message(2, content)),
        lambda content: metrics(gauge("m", content)),
        lambda content: metrics(gauge("m", message(7, content))),
        lambda content: metrics(gauge("m", message(7, message(2, message(9, b"") * 101)))),
    ):
        with pytest.raises(InvalidMetrics, match="more than 100 fields; push fewer metrics"):
            read_points(wrapped(empty * 101))


def test_points_with_all_attributes_have_fewer_fields_than_the_limit() -> None:
    attributes = b"".join(attribute(str(n), "v") for n in range(otlp.ATTRIBUTES_MAX))
    point = varint(2 << 3 | 1) + bytes(8) + varint(3 << 3 | 1) + bytes(8) + double(4, 1.0)
    each = gauge("m", point + attributes)
    assert len(read_points(metrics(*[each] * otlp.POINTS_MAX))) == otlp.POINTS_MAX


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"\x80" * 11,
        b"\x00",
        message(1, b"x")[:-1],
        varint(1 << 3 | 3),
        varint(1 << 3) + varint(5),
        metrics(message(1, b"\xff")),
        metrics(gauge("m", message(4, b"12345678"))),
        varint(1 << 3 | 1) + b"1234",
    ],
)
def test_invalid_bytes_are_reported(data: bytes) -> None:
    with pytest.raises(InvalidMetrics):
        read_points(data)


@given(st.binary(max_size=300), st.integers(0, len(PUSH)), st.integers(0, len(PUSH)))
def test_any_bytes_result_in_points_or_are_invalid(noise: bytes, start: int, end: int) -> None:
    for data in (noise, PUSH[:start] + noise + PUSH[end:]):
        try:
            read_points(data)
        except InvalidMetrics:
            continue
