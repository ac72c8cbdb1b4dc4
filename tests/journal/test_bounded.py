"""The journal keeps the newest entries within its limit, in order, and counts the others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minibroker.journal.bounded import ENTRY_BYTES, Journal
from minibroker.journal.filters import EntryFilter
from tests.journal.entries_of_tests import entry_of, request_entry


@given(st.lists(st.integers(0, 3000), max_size=60), st.integers(1, 20_000))
def test_journal_of_any_entries_keeps_the_newest_within_the_limit(
    sizes: list[int], bytes_max: int
) -> None:
    journal = Journal(bytes_max)
    for size in sizes:
        journal.append(entry_of("request", bytes(size)))
    kept = [entry.sequence for entry in journal]
    assert kept == list(range(journal.dropped + 1, len(sizes) + 1))
    assert journal.bytes == sum(ENTRY_BYTES + entry.frame_bytes for entry in journal)
    assert journal.bytes <= bytes_max or len(journal) == 1
    assert journal.last == len(sizes)


def test_append_returns_the_entry_with_its_sequence() -> None:
    journal = Journal()
    assert [journal.append(request_entry()).sequence for _ in range(3)] == [1, 2, 3]


@given(st.integers(0, 30), st.integers(0, 40), st.integers(0, 10), st.integers(1, 40))
def test_find_returns_the_oldest_entries_after_a_sequence(
    count: int, after: int, limit: int, kept: int
) -> None:
    journal = Journal(kept * ENTRY_BYTES)
    for _ in range(count):
        journal.append(entry_of("clock"))
    expected = [entry.sequence for entry in journal if entry.sequence > after][:limit]
    found = journal.find(EntryFilter(after=after), limit)
    assert [entry.sequence for entry in found] == expected


def test_clear_drops_all_entries_and_sequences_continue() -> None:
    journal = Journal()
    journal.append(entry_of("clock"))
    journal.clear()
    assert (len(journal), journal.bytes, journal.dropped) == (0, 0, 0)
    assert journal.append(entry_of("clock")).sequence == 2


def test_skip_counts_entries_that_were_lost() -> None:
    journal = Journal()
    journal.skip(3)
    assert (journal.dropped, journal.append(entry_of("clock")).sequence) == (3, 1)
