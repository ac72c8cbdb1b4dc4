"""Probes count what the broker does, and leave it as it was."""

from __future__ import annotations

from collections import Counter

from minibroker.broker.log.batch_filter import CleanedTransactions
from tests.simulation.sometimes import (
    ABORTED_CLEANED,
    MARKER_CLEANED,
    PATHS,
    PROBES,
    counted,
    never_taken,
    table,
)


def test_probe_counts_calls_with_the_expected_result_only_within() -> None:
    functions = [probe.owner.__dict__[probe.name] for probe in PROBES]
    counts: Counter[str] = Counter()
    with counted(counts):
        cleaned = CleanedTransactions()
        assert not cleaned.is_aborted(1, 0)
        assert not cleaned.is_dispensable(1, 1, committed=True)
        assert cleaned.is_dispensable(2, 2, committed=True)
    assert [probe.owner.__dict__[probe.name] for probe in PROBES] == functions
    CleanedTransactions().is_dispensable(2, 2, committed=True)
    assert counts == {MARKER_CLEANED: 1}


def test_paths_that_no_seed_took_are_listed() -> None:
    counts = dict.fromkeys(PATHS, 3)
    assert never_taken(counts) == []
    counts[ABORTED_CLEANED] = 0
    assert never_taken(counts) == [ABORTED_CLEANED]


def test_table_shows_each_path_and_other_counts() -> None:
    shown = table({ABORTED_CLEANED: 7, "other": 2}).splitlines()
    assert len(shown) == len(PATHS) + 1
    assert "        7  aborted records cleaned" in shown
    assert shown[-1] == "        2  other"
