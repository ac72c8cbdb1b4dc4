"""Rates formatted in the unit of their quota."""

from __future__ import annotations

import pytest

from minibroker.pipeline.quota_units import LEVELS, NAMES, QUOTAS, UNITS, amount


@pytest.mark.parametrize(
    ("quota", "rate", "text"),
    [
        ("producer_byte_rate", 1_200_000, "1.2 MB/s"),
        ("consumer_byte_rate", 12, "12 B/s"),
        ("request_percentage", 12, "12 %"),
        ("controller_mutation_rate", 3, "3 partitions/s"),
        ("connection_creation_rate", 3, "3 connections/s"),
    ],
)
def test_rate_is_printed_in_unit_of_its_quota(quota: str, rate: float, text: str) -> None:
    assert amount(quota, rate) == text
    assert quota in QUOTAS


def test_levels_use_exactly_the_known_names() -> None:
    assert {name for names in LEVELS.values() for name in names} == set(NAMES)
    assert set(UNITS) <= set(QUOTAS)
