"""Records of several processes become one order, within the memory of the journal."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.process.journal_counts import JournalCounts
from minibroker.lab.journal.entries import EntryKind, Loss, LossReason, lost_entries
from minibroker.lab.journal.filters import EntryFilter
from minibroker.lab.journal.merging import ENTRY_BYTES, STEP, Journal, JournalMerger
from minibroker.lab.journal.records import JournalBuffer
from minibroker.lab.observers.request_journal import restored, saved
from tests.lab.journal.entries_of_tests import entry_of, request_entry
from tests.lab.journal.records_of_tests import chunk, exchange, noted, request

ROLES = ("a", "b", "c")


def merger_of(journal: Journal) -> JournalMerger:
    return JournalMerger(journal, 0.0, JournalCounts(ROLES))


def texts(merger: JournalMerger) -> list[object]:
    return [entry.details["to"] for entry in merger.journal if entry.kind is not EntryKind.LOST]


def losses(merger: JournalMerger) -> list[tuple[int, str, int, object]]:
    return [
        (entry.sequence, entry.role, lost_entries(entry), entry.details["reason"])
        for entry in merger.journal
        if entry.kind is EntryKind.LOST
    ]


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=80))
def test_entries_of_any_processes_are_in_the_order_of_their_times(
    steps: list[tuple[int, bool]],
) -> None:
    counts = JournalCounts(ROLES)
    buffers = {role: JournalBuffer(at * 10**9, counts.word(role)) for at, role in enumerate(ROLES)}
    merger = JournalMerger(Journal(), 0.0, counts)
    now = 0
    for index, collects in steps:
        now += 1
        buffers[ROLES[index]].add(noted(now))
        if collects:
            until = now
            for later, (role, buffer) in enumerate(buffers.items()):
                merger.add(role, buffer.take(merger.received(role)))
                # This process records before the others have handed over theirs.
                buffer.add(noted(now + later + 1))
            now += len(buffers)
            merger.merge(until)
    for role, buffer in buffers.items():
        merger.add(role, buffer.take(merger.received(role)))
    merger.merge(now)
    assert texts(merger) == list(range(1, now + 1))
    assert [entry.sequence for entry in merger.journal] == list(range(1, now + 1))


def test_record_that_is_too_new_waits() -> None:
    merger = merger_of(Journal())
    merger.add("a", chunk(1, noted(5), noted(9)))
    merger.merge(7)
    assert texts(merger) == [5]
    merger.merge(9)
    assert texts(merger) == [5, 9]


def test_chunk_that_arrives_twice_counts_once() -> None:
    merger = merger_of(Journal())
    for _ in range(2):
        merger.add("a", chunk(7, noted(1), first=3, dropped=3))
    merger.merge(1)
    assert (texts(merger), merger.journal.dropped) == ([1], 3)
    assert losses(merger) == [(3, "a", 3, "process_memory")]
    assert (merger.received("a"), merger.received("b")) == (7, 0)


def test_response_in_an_exchange_is_ordered_by_its_own_time() -> None:
    merger = merger_of(Journal())
    merger.add("a", chunk(1, exchange(1, 3)))
    merger.add("b", chunk(1, noted(2)))
    merger.merge(3)
    assert [entry.kind.value for entry in merger.journal] == ["request", "clock", "response"]


def test_records_that_are_not_read_are_bounded_as_the_entries_that_they_will_be() -> None:
    merger = merger_of(Journal(10 * ENTRY_BYTES))
    for number in range(1, 31):
        merger.add("a", chunk(number, request(number), first=number - 1))
    merger.merge(30)
    assert 20 < merger.journal.dropped < 30
    assert merger.journal.dropped + len(merger.journal) == merger.journal.last == 30


def test_merge_that_is_given_up_is_completed_by_the_next() -> None:
    merger = merger_of(Journal())
    count = 3 * STEP
    merger.add("a", chunk(1, *map(noted, range(1, count, 2))))
    merger.add("b", chunk(1, *map(noted, range(2, count + 1, 2))))
    steps = merger.steps(count)
    while not len(merger.journal):
        next(steps)
    assert len(merger.journal) == STEP
    steps.close()
    merger.add("a", chunk(2, noted(count + 1), first=count // 2))
    merger.merge(count + 1)
    assert texts(merger) == list(range(1, count + 2))


def test_new_records_displace_old_entries() -> None:
    merger = merger_of(Journal(3 * ENTRY_BYTES))
    merger.add("a", chunk(1, noted(1), noted(2), noted(3)))
    merger.merge(3)
    merger.add("a", chunk(2, noted(4, "x" * 100), first=3))
    assert texts(merger) == [3]
    assert merger.journal.dropped == 2


def test_clear_drops_entries_and_records() -> None:
    merger = merger_of(Journal())
    merger.add("a", chunk(1, noted(1), noted(9)))
    merger.merge(1)
    merger.add("a", chunk(2, noted(2), first=2))
    merger.clear()
    merger.merge(100)
    assert (texts(merger), merger.journal.dropped, merger.journal.last) == ([], 0, 3)


def test_entries_that_a_killed_process_had_are_a_loss_before_those_of_the_next_one() -> None:
    counts = JournalCounts(ROLES)
    merger = JournalMerger(Journal(), 0.0, counts)
    killed = JournalBuffer(0, counts.word("a"))
    killed.add(noted(1))
    merger.add("a", killed.take())
    killed.expect(1)
    killed.add(noted(3))
    merger.add("b", chunk(1, noted(2), noted(6)))
    following = JournalBuffer(5, counts.word("a"))
    following.add(noted(7))
    merger.add("a", following.take())
    merger.merge(7)
    assert texts(merger) == [1, 2, 6, 7]
    assert losses(merger) == [(4, "a", 2, "process_ended")]
    assert [entry.sequence for entry in merger.journal] == [1, 2, 4, 5, 6]
    assert (merger.journal.dropped, merger.journal.last, counts.pending()) == (2, 6, {})


def test_loss_never_waits_because_some_of_its_entries_may_be_old() -> None:
    counts = JournalCounts(ROLES)
    merger = JournalMerger(Journal(), 0.0, counts)
    counts.word("a")[0] = 3
    merger.add("a", chunk(1, noted(90), first=3))
    counts.word("b")[0] = 2
    merger.lose("b")
    merger.lose("c")
    merger.merge(50)
    assert losses(merger) == [(3, "a", 3, "process_ended"), (5, "b", 2, "process_ended")]


def test_loss_begins_at_the_last_entry_of_its_process() -> None:
    merger = merger_of(Journal())
    merger.add("a", chunk(1, noted(1)))
    merger.add("a", replace(chunk(2, noted(3), first=5), since_ns=2))
    merger.merge(3)
    (loss,) = (entry for entry in merger.journal if entry.kind is EntryKind.LOST)
    assert loss.details["since_ms"] == loss.clock_ms == 1500.0


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 12), st.booleans()), max_size=40))
def test_every_entry_has_a_sequence_or_is_in_a_loss(
    steps: list[tuple[int, int, bool]],
) -> None:
    counts = JournalCounts(ROLES)
    merger = JournalMerger(Journal(12 * ENTRY_BYTES), 0.0, counts)
    buffers = {role: JournalBuffer(0, counts.word(role), 2000) for role in ROLES}
    now, seen = 0, 0
    for index, entries, merges in steps:
        role = ROLES[index]
        for _ in range(entries):
            now += 1
            buffers[role].add(noted(now), 500)
        if entries == 7:
            buffers[role] = JournalBuffer(now, counts.word(role), 2000)
        has_more = True
        while has_more:
            taken = buffers[role].take(merger.received(role))
            merger.add(role, taken)
            has_more = taken.has_more
        if merges:
            merger.merge(now)
            for entry in merger.journal.find(EntryFilter(after=seen)):
                lost = lost_entries(entry)
                assert entry.sequence == seen + (lost or 1), "a reader sees each gap"
                seen = entry.sequence
            assert seen == merger.journal.last
    merger.merge(now)
    journal = merger.journal
    assert journal.last == counts.total() == now
    assert len(journal) + journal.dropped == now
    assert sum(lost_entries(entry) or 1 for entry in journal) == now


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
