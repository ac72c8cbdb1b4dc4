"""The journal keeps the newest entries within its limit, in order, and counts the others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minibroker.lab.journal.bounded import ENTRY_BYTES, Journal
from minibroker.lab.journal.entries import EntryKind, Loss, LossReason, lost_entries
from minibroker.lab.journal.filters import EntryFilter
from minibroker.lab.journal.saving import restored, saved
from tests.lab.journal.entries_of_tests import entry_of, request_entry


@given(st.lists(st.integers(0, 3000), max_size=60), st.integers(1, 20_000))
def test_journal_of_any_entries_keeps_the_newest_within_the_limit(
    sizes: list[int], bytes_max: int
) -> None:
    journal = Journal(bytes_max)
    for size in sizes:
        journal.append(entry_of("request", bytes(size)))
    kept = [entry.sequence for entry in journal if entry.kind is not EntryKind.LOST]
    assert kept == list(range(journal.dropped + 1, len(sizes) + 1))
    assert journal.bytes == len(journal) * ENTRY_BYTES + sum(each.frame_bytes for each in journal)
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


def loss(entries: int, role: str = "a") -> Loss:
    return Loss(role, entries, LossReason.PROCESS_ENDED, 1.0)


def test_losses_have_sequences_and_adjacent_ones_are_one() -> None:
    journal = Journal()
    journal.append(entry_of("clock", clock_ms=5.0))
    for _ in range(2):
        journal.lose(loss(3))
    journal.lose(loss(1, "b"))
    assert journal.append(entry_of("clock")).sequence == 9
    assert [(each.sequence, lost_entries(each), each.role) for each in journal][1:3] == [
        (7, 6, "a"),
        (8, 1, "b"),
    ]
    assert (len(journal), journal.dropped, journal.last) == (2, 7, 9)
    assert [each.clock_ms for each in journal][1] == 5.0


def test_dropped_entries_are_a_loss_before_the_others() -> None:
    journal = Journal(2 * ENTRY_BYTES)
    for number in range(5):
        journal.append(entry_of("clock", clock_ms=float(number)))
    first = next(iter(journal))
    assert (first.kind, first.sequence, first.role) == (EntryKind.LOST, 3, "")
    assert first.details == {"entries": 3, "reason": "journal_memory", "since_ms": 0.0}


def test_reader_sees_of_a_loss_what_is_after_its_last_entry() -> None:
    journal = Journal(2 * ENTRY_BYTES)
    journal.lose(loss(10))
    for _ in range(4):
        journal.append(entry_of("clock"))
    assert (journal.dropped, journal.last) == (12, 14)
    for after in range(16):
        found = journal.find(EntryFilter(after=after))
        assert sum(lost_entries(each) or 1 for each in found) == max(14 - after, 0)


def test_loss_is_found_if_one_of_its_entries_could_match() -> None:
    journal = Journal()
    journal.lose(loss(2))
    request = frozenset({EntryKind.REQUEST})
    assert journal.find(EntryFilter(kinds=request, topic="t"))
    assert journal.find(EntryFilter(role="a", client_id="c"))
    assert not journal.find(EntryFilter(role="b"))
    assert not journal.find(EntryFilter(kinds=request, after=2))
    assert journal.find(EntryFilter(kinds=frozenset({EntryKind.LOST})))


def test_restored_journal_continues_with_the_same_entries() -> None:
    journal = Journal(3 * ENTRY_BYTES)
    for _ in range(3):
        journal.append(entry_of("request", b"abc"))
    journal.lose(loss(7))
    journal.append(entry_of("clock"))
    found = Journal(1 << 20)
    found.restore(restored(saved(journal)))
    assert list(found) == list(journal)
    assert (found.last, found.dropped, len(found)) == (11, journal.dropped, len(journal))
