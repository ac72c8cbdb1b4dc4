"""Assertions hold exactly if the entries show it."""

from __future__ import annotations

from minibroker.journal.assertions import did_not_happen_before, happened, happened_in_order
from minibroker.journal.entries import EntryKind, JournalEntry
from minibroker.journal.filters import EntryFilter
from tests.journal.entries_of_tests import entry_of

KINDS = ("connection_opened", "request", "fault", "response", "request", "connection_closed")
ENTRIES = [
    entry_of(kind, sequence=number, clock_ms=number * 10.0) for number, kind in enumerate(KINDS, 1)
]


def of(kind: str) -> EntryFilter:
    return EntryFilter(kinds=frozenset({EntryKind(kind)}))


def sequences(entries: tuple[JournalEntry, ...]) -> list[int]:
    return [entry.sequence for entry in entries]


def test_happened_with_enough_entries_holds() -> None:
    result = happened(ENTRIES, of("request"), times=2)
    assert result.holds
    assert sequences(result.entries) == [2, 5]


def test_happened_with_too_few_entries_says_how_many() -> None:
    result = happened(ENTRIES, of("request"), times=3)
    assert not result.holds
    assert result.text == "2 entries match, at least 3 are wanted"


def test_happened_in_order_of_the_order_holds() -> None:
    result = happened_in_order(ENTRIES, [of("request"), of("response"), of("request")])
    assert result.holds
    assert sequences(result.entries) == [2, 4, 5]


def test_happened_in_order_of_another_order_names_the_missing_step() -> None:
    result = happened_in_order(ENTRIES, [of("response"), of("fault")])
    assert not result.holds
    assert result.text == "step 2 of 2 did not happen after entry 4"
    assert happened_in_order(ENTRIES, [of("clock")]).text == "step 1 of 1 did not happen at all"


def test_happened_in_order_needs_an_entry_for_each_step() -> None:
    assert not happened_in_order(ENTRIES, [of("fault"), of("fault")]).holds


def test_did_not_happen_before_the_time_of_an_entry_holds() -> None:
    assert did_not_happen_before(ENTRIES, of("fault"), 30.0).holds
    assert did_not_happen_before(ENTRIES, of("clock")).holds


def test_did_not_happen_before_a_later_time_names_the_entry() -> None:
    result = did_not_happen_before(ENTRIES, of("fault"), 30.5)
    assert not result.holds
    assert result.text == "entry 3 matches 0.5 ms too early"
    assert did_not_happen_before(ENTRIES, of("fault")).text == "entry 3 matches"


def test_did_not_happen_with_dropped_entries_is_unknown() -> None:
    result = did_not_happen_before(ENTRIES, of("clock"), dropped=2)
    assert not result.holds
    assert "2 older entries were dropped" in result.text
