"""Which gauges quotas give: rates, bounds, throttles, and for how long."""

from __future__ import annotations

from minibroker.broker.metrics.quota_gauges import read_gauges
from minibroker.broker.quotas.entity import USER, Entity, QuotaTable, Tags
from minibroker.broker.quotas.ledger import EXPIRES_MS, QuotaLedger
from minibroker.broker.quotas.manager import ClientQuotaManager, MutationQuota
from minibroker.broker.quotas.types import QuotaType

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
