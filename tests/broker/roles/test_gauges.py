"""Which gauges quotas give: rates, bounds, throttles, and for how long."""

from __future__ import annotations

import pytest

from minibroker.broker.quotas.ledger import EXPIRES_MS, QuotaLedger
from minibroker.broker.quotas.manager import ClientQuotaManager, MutationQuota
from minibroker.broker.quotas.types import USER, Entity, QuotaTable, QuotaType, Tags
from minibroker.broker.roles import metadata_publisher as gauges_module
from minibroker.broker.roles.metadata_publisher import client_metric_gauges, read_gauges
from minibroker.broker.telemetry import ClientInstances
from tests.broker.telemetry.known_clients import NOW, known_clients

WHO = ("u v", "c")
TABLE = QuotaTable(
    {
        QuotaType.PRODUCE: {Entity("u%20v"): 1024.0},
        QuotaType.CONTROLLER_MUTATION: {Entity("u%20v"): 10.0},
    },
    USER,
)


def test_every_quota_type_has_gauges() -> None:
    ledger = QuotaLedger(11, 1000, shared=False)
    quotas = ClientQuotaManager(ledger)
    assert read_gauges(ledger, TABLE, 0) == {}
    quotas.set_table(TABLE)
    throttle = quotas.produced(WHO, 20480, 0)
    quotas.throttled(throttle, WHO, 0, 0)
    quotas.fetched(WHO, 1000, 0)
    quotas.worked(WHO, 500_000_000, 0)
    quotas.exempt(100_000_000, 0)
    MutationQuota(quotas, WHO, windows=11, window_ms=1000, strict=True).take(30, 0)
    assert read_gauges(ledger, TABLE, 0) == {
        ("minibroker_quota_byte_rate", ("Produce", "u%20v", "")): 2048.0,
        ("minibroker_quota_bound", ("Produce", "u%20v", "")): 1024.0,
        ("minibroker_quota_throttle_time_seconds", ("Produce", "u%20v", "")): 10_000.0,
        ("minibroker_quota_byte_rate", ("Fetch", "u%20v", "")): 100.0,
        ("minibroker_quota_request_time_percent", ("Request", "u%20v", "")): 5.0,
        ("minibroker_quota_exempt_request_time_percent", ()): 1.0,
        ("minibroker_quota_controller_mutation_rate", ("ControllerMutation", "u%20v", "")): 3.0,
        ("minibroker_quota_controller_tokens", ("ControllerMutation", "u%20v", "")): 80.0,
        ("minibroker_quota_bound", ("ControllerMutation", "u%20v", "")): 10.0,
    }
    assert read_gauges(ledger, TABLE, EXPIRES_MS + 1) == {}


def test_label_length_and_number_of_gauges_are_limited() -> None:
    ledger = QuotaLedger(11, 1000, shared=False)
    for n in range(1000):
        ledger.group(Tags("u" * 5000, f"{n}"), n).add(0, 1, n)
    gauges = read_gauges(ledger, QuotaTable(), 1000)
    assert all(len(label) <= 200 for _, labels in gauges for label in labels)
    assert len(gauges) <= 400


@pytest.fixture
def known() -> ClientInstances:
    return known_clients()


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
