"""Quotas as they are shown: of every type, with where they are set, and without exempt time."""

from __future__ import annotations

from minibroker.control.quota_shapes import QuotaQuestion, QuotaThrottle
from minibroker.controller.quotas import quota_explained, quotas_view
from minibroker.quotas.entity import USER, Entity, QuotaTable, QuotaType
from minibroker.quotas.ledger import Ledger
from minibroker.quotas.manager import Quotas
from protocol.registry import ApiKey

WHO = ("u v", "c")


def test_uses_are_shown_with_their_quotas() -> None:
    ledger = Ledger(11, 1000, shared=False)
    quotas = Quotas(ledger)
    assert quotas_view(quotas, ledger, "mute", 0).uses == ()
    bounds = {QuotaType.PRODUCE: {Entity("u%20v"): 1024.0}}
    defaults = {QuotaType.FETCH: 100.0}
    quotas.set_table(QuotaTable(bounds, USER, defaults))
    quotas.throttled(quotas.produced(WHO, 20480, 0), WHO, ApiKey.PRODUCE, 0)
    quotas.fetched(WHO, 500, 1)
    quotas.exempt(100_000_000, 2)
    view = quotas_view(quotas, ledger, "mute", 2)
    assert (view.counting, view.mode, view.window_ms, view.samples) == (True, "mute", 1000, 11)
    assert (view.exempt_percent, view.uses_total) == (1.0, 2)
    fetch, produce = view.uses
    assert (fetch.type, fetch.user, fetch.client_id) == ("fetch", "", "c")
    assert (fetch.quota, fetch.path, fetch.throttle_ms) == (100, "quota.consumer.default", None)
    assert (produce.type, produce.user, produce.client_id) == ("produce", "u%20v", "")
    assert (produce.path, produce.throttle_ms) == ("/config/users/u%20v", 10_000)
    assert (produce.throttled_ago_ms, produce.last_throttle_ms) == (2, 10_000)
    assert (fetch.throttled_ago_ms, fetch.last_throttle_ms) == (None, None)
    assert view.throttles == (QuotaThrottle(1, 2, "produce", "u%20v", "", "Produce", 10_000),)


def test_a_quota_of_nothing_has_no_share() -> None:
    ledger = Ledger(11, 1000, shared=False)
    quotas = Quotas(ledger)
    quotas.set_table(QuotaTable(defaults={QuotaType.FETCH: 0.0}))
    quotas.fetched(WHO, 500, 1)
    (use,) = quotas_view(quotas, ledger, "mute", 2).uses
    assert (use.quota, use.share) == (0, None)


def test_who_was_never_seen_is_explained_too() -> None:
    ledger = Ledger(11, 1000, shared=False)
    told = quota_explained(Quotas(ledger), ledger, QuotaQuestion("u", "c", "request"), 0)
    assert (told.key, told.quota, told.path, told.samples) == ("request_percentage", None, None, ())
    assert len(told.levels) == 8
