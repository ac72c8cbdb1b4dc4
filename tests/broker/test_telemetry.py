"""Client instances: which subscriptions match, when they may push, and what is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker import telemetry
from minibroker.broker.telemetry import (
    ClientInstances,
    InvalidMetrics,
    MetricPoint,
    Push,
    Selection,
    TelemetryProperties,
    read_points,
    read_subscriptions,
    select,
)
from minibroker_protocol.errors import ErrorCode
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

CLIENT = TelemetryProperties("id-1", "app-7", "apache-kafka-java", "4.4.0", "10.0.0.1", "5000")


def metrics_of(*configs: dict[str, str], client: TelemetryProperties = CLIENT) -> tuple[str, ...]:
    return select(read_subscriptions(configs), client).metrics


@pytest.mark.parametrize(
    ("match", "is_match"),
    [
        ("", True),
        ("client_id=app-.*", True),
        ("client_id=app", False),
        ("client_id=app-.*,client_software_name=librdkafka", False),
        ("client_software_name=apache.*,client_software_version=4\\..*", True),
        ("client_source_address=10\\.0\\.0\\.[0-9]+,client_source_port=5000", True),
        ("client_instance_id=id-2", False),
    ],
)
def test_all_patterns_must_match_the_whole_property(match: str, is_match: bool) -> None:
    assert metrics_of({"metrics": "a", "match": match}) == (("a",) if is_match else ())


def test_matching_subscriptions_are_combined() -> None:
    configs = (
        {"metrics": "b,a", "interval.ms": "2000"},
        {"metrics": "c,a", "interval.ms": "1000"},
        {"metrics": "d", "interval.ms": "500", "match": "client_id=other"},
    )
    selection = select(read_subscriptions(configs), CLIENT)
    assert (selection.metrics, selection.interval_ms) == (("a", "b", "c"), 1000)
    assert metrics_of(*configs, {"metrics": "*"}) == ("*",)


def test_client_without_subscription_pushes_nothing_at_the_default_interval() -> None:
    selection = select((), CLIENT)
    assert (selection.metrics, selection.interval_ms) == ((), 300_000)
    longer = select(read_subscriptions([{"interval.ms": "3600000"}]), CLIENT)
    assert longer.interval_ms == 300_000


def test_subscription_id_depends_on_metrics_interval_and_client() -> None:
    one = read_subscriptions([{"metrics": "a"}])
    ids = {
        select(one, CLIENT).subscription_id,
        select((), CLIENT).subscription_id,
        select(read_subscriptions([{"metrics": "a", "interval.ms": "5"}]), CLIENT).subscription_id,
        select(one, CLIENT._replace(client_instance_id="id-2")).subscription_id,
    }
    assert len(ids) == 4
    assert all(-(2**31) <= one_id < 2**31 for one_id in ids)


def test_invalid_config_is_ignored() -> None:
    assert read_subscriptions([{"interval.ms": "x"}, {"match": "client_id"}]) == ()


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
    monkeypatch.setattr(telemetry, "POINTS_MAX", 3)
    many = metrics(*(gauge("m" * 1000, double(4, 1.0)) for _ in range(5)))
    points = read_points(many)
    assert len(points) == 3
    assert len(points[0].name) == telemetry.TEXT_MAX
    attributes = b"".join(attribute(str(n), "v") for n in range(50))
    [point] = read_points(metrics(gauge("m", attributes)))
    assert len(point.attributes) == telemetry.ATTRIBUTES_MAX


def test_fields_are_bounded_in_every_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "FIELDS_MAX", 100)
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
    attributes = b"".join(attribute(str(n), "v") for n in range(telemetry.ATTRIBUTES_MAX))
    point = varint(2 << 3 | 1) + bytes(8) + varint(3 << 3 | 1) + bytes(8) + double(4, 1.0)
    each = gauge("m", point + attributes)
    assert len(read_points(metrics(*[each] * telemetry.POINTS_MAX))) == telemetry.POINTS_MAX


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


KNOWN_CLIENT = TelemetryProperties("id-1", "app", "java", "4.4.0", "10.0.0.1", "5000")
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
    selection = select(known.subscriptions, KNOWN_CLIENT)
    known.add(instance_id, KNOWN_CLIENT, known.subscriptions, selection, now_ms)


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
    monkeypatch.setattr(telemetry, "INSTANCES_MAX", 2)
    for number in range(3):
        ask(known, NOW + number, bytes([number]))
    assert [one.instance_id for one in known.all()] == [b"\x01", b"\x02"]
    ask(known, NOW + telemetry.EXPIRY_MS_MIN + 10, b"\x09")
    assert [one.instance_id for one in known.all()] == [b"\x09"]
