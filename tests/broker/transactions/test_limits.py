"""Limits that are read from the broker's settings."""

from __future__ import annotations

from minibroker.broker.settings import Settings
from minibroker.broker.transactions.limits import TransactionLimits


def test_limits_are_kafkas_defaults() -> None:
    assert TransactionLimits.from_settings(Settings.from_sources()) == TransactionLimits()


def test_intervals_are_converted_to_seconds() -> None:
    settings = Settings.from_sources(
        pairs=[
            "transaction.abort.timed.out.transaction.cleanup.interval.ms=500",
            "transaction.remove.expired.transaction.cleanup.interval.ms=1500",
        ]
    )
    limits = TransactionLimits.from_settings(settings)
    assert (limits.abort_interval_s, limits.expiry_interval_s) == (0.5, 1.5)
