"""Rates formatted in the unit of their quota."""

from __future__ import annotations

import pyarrow as pa
import pytest

from minibroker.pipeline.activity_table import TEXTS
from minibroker.pipeline.quota_amounts import LEVELS, NAMES, QUOTAS, UNITS, Events, amount
from tests.pipeline import reference_counts
from tests.pipeline.sample_events import arrow, fetched, many, produced, request

# Quotas and levels -------------------------------------------------------------------------------


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


# Amounts of events -------------------------------------------------------------------------------


def as_files_have_it(table: pa.Table) -> pa.Table:
    for at, name in enumerate(table.column_names):
        if name in TEXTS:
            table = table.set_column(at, name, table[name].dictionary_encode())
    return table


EVENTS = [
    *many(400, seed=3),
    produced(1, "u", "c", 10, exempt=True),
    produced(1, "u", "c", 5, sample=0.4),
    fetched(1, "u", "", 10, throttle_ms=3),
    request(1, "", "c", checked_ns=None, late_ns=None),
    request(1, "u", "c", mutations=3, mutations_refused=None),
]


@pytest.mark.parametrize("dictionaries", [False, True])
def test_counted_columns_match_events_counted_by_hand(dictionaries: bool) -> None:
    table = arrow(EVENTS)
    events = Events(as_files_have_it(table) if dictionaries else table)
    every = list(events.counted())
    for row, event in enumerate(EVENTS):
        found = []
        for each in every:
            if each.where[row]:
                figures = [
                    None if column is None or column[row] != column[row] else column[row]
                    for column in (each.measured, each.bound)
                ]
                level = -1 if each.level is None else each.level[row]
                name = None if level < 0 else list(LEVELS)[level]
                found.append((each.quota, each.amount[row], each.throttled_ms[row], name, *figures))
        assert found == list(reference_counts.counts(event)), event


def test_sampled_amount_is_scaled_up_rounding_half_up() -> None:
    events = [produced(0, "u", "c", 5, sample=share) for share in (1.0, 0.4, 0.3)]
    assert Events(arrow(events)).for_all(Events(arrow(events)).ints("request_bytes")).tolist() == [
        5, 13, 17
    ]  # fmt: skip
