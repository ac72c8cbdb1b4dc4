"""Assertions hold exactly if the entries show it."""

from __future__ import annotations

from dataclasses import replace

from minibroker.lab.journal.assertions import did_not_happen_before, happened, happened_in_order
from minibroker.lab.journal.entries import EntryKind, JournalEntry, Loss, LossReason
from minibroker.lab.journal.filters import EntryFilter
from tests.lab.journal.entries_of_tests import entry_of

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


LOSS = Loss("worker-0", 4, LossReason.PROCESS_ENDED, 30.0).entry(10, 45.0)
WITH_LOSS = [*ENTRIES, LOSS]


def test_did_not_happen_over_a_loss_is_unknown() -> None:
    result = did_not_happen_before(WITH_LOSS, of("clock"))
    assert not result.holds
    assert result.text == "4 entries up to 10 were lost, so it is unknown whether one matched"
    assert result.entries == (LOSS,)
    assert not did_not_happen_before(WITH_LOSS, of("clock"), 31.0).holds


def test_did_not_happen_holds_where_no_lost_entry_could_have_matched() -> None:
    assert did_not_happen_before(WITH_LOSS, of("clock"), 30.0).holds, "before the loss"
    assert did_not_happen_before(WITH_LOSS, replace(of("clock"), after=10)).holds, "after it"
    assert did_not_happen_before(WITH_LOSS, replace(of("clock"), role="worker-1")).holds
    assert not did_not_happen_before(WITH_LOSS, replace(of("clock"), role="worker-0")).holds
    text = did_not_happen_before(WITH_LOSS, replace(of("clock"), after=8)).text
    assert text.startswith("2 entries up to 10")


def test_loss_itself_can_be_asserted() -> None:
    assert happened(WITH_LOSS, of("lost")).holds
    assert did_not_happen_before(ENTRIES, of("lost")).holds
    assert did_not_happen_before(WITH_LOSS, of("lost")).text == "entry 10 matches"


def test_happened_over_a_loss_needs_an_entry_and_names_the_loss() -> None:
    for result in (happened(WITH_LOSS, of("clock")), happened_in_order(WITH_LOSS, [of("clock")])):
        assert not result.holds
        assert result.text.endswith("; 4 entries were lost, which may have matched")


def test_did_not_happen_is_unknown_while_a_process_has_entries() -> None:
    pending = {"worker-1": 3}
    result = did_not_happen_before(ENTRIES, of("clock"), pending=pending)
    assert not result.holds
    assert result.text.startswith("worker-1 does not respond and has 3 entries")
    elsewhere = replace(of("clock"), role="worker-0")
    assert did_not_happen_before(ENTRIES, elsewhere, pending=pending).holds
