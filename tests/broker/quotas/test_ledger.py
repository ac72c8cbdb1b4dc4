"""The shared ledger has the figures of its oracle if processes record in it and are killed."""

from __future__ import annotations

import math
import os
from functools import partial
from random import Random

import pytest

from minibroker.broker.quotas import ledger as module
from minibroker.broker.quotas.ledger import (
    EXPIRES_MS,
    RECENT_THROTTLES_MAX,
    THROTTLE_WORDS,
    QuotaLedger,
    RecentThrottle,
    RecentThrottles,
)
from minibroker.broker.quotas.rate import DIGEST, NO_CAUSE, WORD, Cause
from minibroker.broker.quotas.types import Tags
from tests.broker.quotas.forking import forked
from tests.broker.quotas.oracle import OracleCounter


def words() -> memoryview[int]:
    return memoryview(bytearray(8 * THROTTLE_WORDS)).cast("Q")


def test_recent_throttles_are_listed_newest_first() -> None:
    lately = RecentThrottles(words())
    assert lately.newest_first() == []
    for n in range(1, RECENT_THROTTLES_MAX + 3):
        lately.record(2**64 - n, 1, 10 * n, Cause(n / 3, n, 0.1), n)
    found = lately.newest_first()
    assert [each.number for each in found] == list(range(RECENT_THROTTLES_MAX + 2, 2, -1))
    assert found[-1] == RecentThrottle(3, 3, 2**64 - 3, 1, 30, Cause(1.0, 3, 0.1))


def test_torn_entry_is_skipped_and_overwritten() -> None:
    memory = words()
    lately = RecentThrottles(memory)
    for n in range(1, RECENT_THROTTLES_MAX + 2):
        lately.record(n, 0, 5, NO_CAUSE, n)
    before = lately.newest_first()
    # A process killed during a write leaves a torn entry in the next place.
    memory[1 + (RECENT_THROTTLES_MAX + 2) % RECENT_THROTTLES_MAX * 8] = 0
    assert lately.newest_first() == before[:-1]
    lately.record(7, 0, 5, NO_CAUSE, 9)
    found = lately.newest_first()
    assert found[0] == RecentThrottle(RECENT_THROTTLES_MAX + 2, 9, 7, 0, 5, NO_CAUSE)
    assert found[1:] == before[:-1]


TAGS = Tags("u", "c")
KIND, NUMBER, FETCH = "Produce", 0, 1


def small(samples: int = 3, window_ms: int = 1000, *, shared: bool = False) -> QuotaLedger:
    return QuotaLedger(samples, window_ms, shared=shared)


def test_reading_entry_shows_rate_and_changes_nothing() -> None:
    ledger = small()
    ours, theirs = ledger.group(TAGS, 0), OracleCounter(3, 1000)
    for now_ms in (0, 400, 1500, 2600):
        assert ours.record(NUMBER, 30, now_ms) == theirs.record(30, now_ms)
    for later_ms in (2600, 3100, 4500, 5500, 9000):
        entry = ledger.entry(KIND, TAGS, later_ms)
        assert entry is not None
        assert entry.usage.rate <= 60
    assert ledger.entry(KIND, TAGS, 2600) == next(ledger.entries(2600, 1000))
    entry = next(ledger.entries(2600, 1000))
    assert (entry.kind, entry.tags, entry.used) == (KIND, TAGS, True)
    assert entry.samples == ((0, 60.0), (1500, 30.0), (2600, 30.0))
    assert entry.usage == theirs.record(0, 2600)
    assert math.isnan(entry.throttle_ms)
    assert ours.record(NUMBER, 30, 9000) == theirs.record(30, 9000)


def test_counters_are_separate_for_each_type_and_tags() -> None:
    ledger = small()
    many = [
        (ledger.group(Tags(user, client), 0), number)
        for number in (NUMBER, FETCH)
        for user in ("", "u")
        for client in ("", "u", "c" * 5000, "c" * 5000 + "d")
    ]
    for value, (group, number) in enumerate(many):
        group.add(number, value, 0)
    assert sorted(entry.samples[0].total for entry in ledger.entries(0, 1000)) == list(
        range(len(many))
    )
    assert ledger.entry("Fetch", Tags("nobody", ""), 0) is None


def test_entries_are_sorted_by_most_recent_use() -> None:
    ledger = small()
    for n in (3, 1, 2):
        ledger.group(Tags("", str(n)), 0).add(NUMBER, 1, n)
    assert [entry.tags.client for entry in ledger.entries(5, 2)] == ["3", "2"]
    assert ledger.used() == 3


def test_counter_expires_an_hour_after_its_last_record() -> None:
    ledger = small()
    group = ledger.group(TAGS, 0)
    group.add(NUMBER, 1, 0)
    assert ledger.entry(KIND, TAGS, EXPIRES_MS) is not None
    assert ledger.entry(KIND, TAGS, EXPIRES_MS + 1) is None
    group.throttled(NUMBER, 7, 0, NO_CAUSE, EXPIRES_MS)
    entry = ledger.entry(KIND, TAGS, EXPIRES_MS + 1)
    assert entry is not None
    assert (entry.used, entry.throttle_ms) == (False, 7.0)
    group.add(NUMBER, 1, EXPIRES_MS + 5)
    entry = ledger.entry(KIND, TAGS, EXPIRES_MS + 5)
    assert entry is not None
    assert entry.used


def test_full_set_evicts_least_recently_used_counter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "GROUPS_MAX", 64)
    ledger = small()
    assert ledger.slots == 64
    groups = [ledger.group(Tags("", str(n)), n) for n in range(64)]
    for n, group in enumerate(groups):
        group.add(NUMBER, 1, 1000 + n)
    groups[0].add(NUMBER, 1, 2000)
    ledger.group(Tags("", "new"), 3000).add(NUMBER, 1, 3000)
    assert ledger.entry(KIND, Tags("", "1"), 3000) is None
    assert ledger.entry(KIND, Tags("", "0"), 3000) is not None
    # Its user does not know yet that it was evicted, and must not write to another's: it starts
    # again.
    assert groups[1].record(NUMBER, 8, 3000) == OracleCounter(3, 1000).record(8, 3000)
    entry = ledger.entry(KIND, Tags("", "new"), 3000)
    assert entry is not None
    assert entry.samples == ((3000, 1.0),)


def test_slot_of_process_killed_during_allocation_is_reused() -> None:
    ledger = small()
    group, theirs = ledger.group(TAGS, 0), OracleCounter(3, 1000)
    group.add(NUMBER, 9, 0)
    ledger.integers[group.base // WORD + DIGEST] = 0  # the first store
    assert ledger.entry(KIND, TAGS, 0) is None
    assert list(ledger.entries(0, 9)) == []
    assert ledger.group(TAGS, 0).record(NUMBER, 4, 0) == theirs.record(4, 0)
    assert group.record(NUMBER, 4, 0) == theirs.record(4, 0)
    assert ledger.used() == 1


@pytest.mark.parametrize("window", [(11, 1000), (1000, 1000), (100_000, 1)])
def test_ledger_memory_is_limited_for_any_window(window: tuple[int, int]) -> None:
    ledger = QuotaLedger(*window, shared=False)
    assert ledger.slots >= module.WAYS
    assert ledger.slots * ledger.words * 8 <= max(module.BYTES_MAX, 64 * ledger.words * 8)
    ledger.group(TAGS, 0).add(NUMBER, 1, 0)


def test_entity_kinds_ever_set_accumulate() -> None:
    ledger = small(shared=True)
    assert ledger.note_set(1, 2) == 2
    assert ledger.note_set(1, 4) == 6
    assert ledger.note_set(1, 0) == ledger.ever_set(1) == 6
    assert ledger.ever_set(0) == 0


EACH = 3000
PROCESSES = 4


def hammer(ledger: QuotaLedger, names: int, seed: int) -> None:
    random = Random(seed)
    groups = [ledger.group(Tags("", str(n)), 1000) for n in range(names)]
    for _ in range(EACH):
        random.choice(groups).add(NUMBER, 1, 1000)


def test_concurrent_records_of_processes_are_all_counted() -> None:
    ledger = small(shared=True)
    # Each makes the counters for itself, so insertion is concurrent, too.
    for pid in [forked(partial(hammer, ledger, 50, n)) for n in range(PROCESSES)]:
        os.waitpid(pid, 0)
    entries = list(ledger.entries(1000, 1000))
    assert len(entries) == 50
    assert sum(entry.samples[0].total for entry in entries) == PROCESSES * EACH


def test_recent_throttles_have_names_until_counter_is_evicted() -> None:
    ledger = small(shared=True)
    one, other = ledger.group(TAGS, 0), ledger.group(Tags("", "c"), 0)
    one.throttled(NUMBER, 70, 0, Cause(2.5, 10_000, 2.0), 5)
    other.throttled(FETCH, 80, 1, NO_CAUSE, 6)
    assert [
        (at.number, at.kind, at.tags, at.api_key, at.last) for at in ledger.recent_throttles()
    ] == [
        (2, "Fetch", Tags("", "c"), 1, (6, 80)),
        (1, KIND, TAGS, 0, (5, 70)),
    ]
    assert [at.cause for at in ledger.recent_throttles()] == [NO_CAUSE, Cause(2.5, 10_000, 2.0)]
    ledger.hashes[ledger.hashes.tolist().index(one.digest)] = 0
    assert [at.number for at in ledger.recent_throttles()] == [2]


def test_entry_has_last_throttle() -> None:
    ledger = small()
    group = ledger.group(TAGS, 0)
    assert list(ledger.entries(0, 1)) == []
    group.add(NUMBER, 1, 0)
    (entry,) = ledger.entries(0, 1)
    assert entry.last is None
    group.throttled(NUMBER, 70, 0, NO_CAUSE, 5)
    group.throttled(NUMBER, 30, 0, NO_CAUSE, 9)
    (entry,) = ledger.entries(10, 1)
    assert entry.last == (9, 30)
