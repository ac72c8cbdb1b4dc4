"""Quotas in force: those of the image, over the defaults; the table is rebuilt only if needed."""

from __future__ import annotations

from minibroker.broker.metadata.effective_quotas import EffectiveQuotas
from minibroker.broker.metadata.image import ConfigChanged, Image, apply
from minibroker.broker.quotas.entity import Entity
from minibroker.broker.quotas.ledger import QuotaLedger
from minibroker.broker.quotas.types import QuotaType
from minibroker.broker.settings import Settings


def make(*pairs: str) -> EffectiveQuotas:
    return EffectiveQuotas(Settings.from_sources(pairs=pairs), QuotaLedger(11, 1000, shared=False))


def test_quotas_follow_the_image() -> None:
    in_force = make()
    in_force.follow(Image())
    assert in_force.quotas.table.kinds == 0
    image = apply(Image(), ConfigChanged("users", "u", {"producer_byte_rate": "5"}))
    in_force.follow(image)
    assert in_force.quotas.enabled
    before = in_force.quotas.table
    assert before.bound(QuotaType.PRODUCE, Entity("u")) == 5
    image = apply(image, ConfigChanged("topics", "t", {"retention.ms": "5"}))
    in_force.follow(image)
    assert in_force.quotas.table is before
    in_force.follow(apply(image, ConfigChanged("users", "u", {})))
    assert in_force.quotas.table.bound(QuotaType.PRODUCE, Entity("u")) is None
    assert in_force.quotas.enabled  # quotas existed: the sharing groups stay the same


def test_default_quotas_apply_with_empty_image() -> None:
    in_force = make("quota.consumer.default=7")
    in_force.follow(Image())
    assert in_force.quotas.table.defaults == {QuotaType.FETCH: 7.0}
    assert in_force.quotas.enabled
