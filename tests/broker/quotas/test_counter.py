"""Values recorded in a counter: the oracle's figures, and consistent ones after any kill."""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Callable
from copy import deepcopy
from fcntl import LOCK_EX, LOCK_UN, lockf
from functools import partial
from itertools import count
from mmap import mmap
from random import Random
from struct import pack_into

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minibroker.broker.quotas.counter as module
from minibroker.broker.quotas.counter import (
    ALWAYS_MEASURED,
    GROUP_HEAD,
    LOCKED,
    MOST,
    PLACE,
    WORD,
    CounterGroup,
)
from minibroker.broker.quotas.entity import Tags
from minibroker.broker.quotas.ledger import QuotaLedger
from minibroker.broker.quotas.rate import NO_CAUSE, capacity
from tests.broker.quotas.forking import forked
from tests.broker.quotas.oracle import OracleGroup, OracleLedger

TAGS = Tags("u", "c")
KIND, NUMBER, OTHER = "Produce", 0, 2
ALL_MEASURED = (ALWAYS_MEASURED,) * 4


STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 10, 500, 999, 1000, 1001, 2500, 10_000, 11_000, 12_345, 70_000]),
        st.one_of(st.integers(-100, 10_000), st.floats(0, 100)),
        st.sampled_from(["record", "add", "throttled", "look", "tokens"]),
    ),
    max_size=60,
)


def step(group: CounterGroup | OracleGroup, what: str, value: float, now_ms: int) -> object:
    if what == "record":
        return group.record(NUMBER, value, now_ms)
    if what == "add":
        return group.add(NUMBER, value, now_ms)
    if what == "throttled":
        return group.throttled(NUMBER, max(0, int(value)), 0, NO_CAUSE, now_ms)
    return group.tokens(NUMBER, 10, 100, now_ms, value)


@given(STEPS, st.sampled_from([(1, 1000), (2, 1000), (11, 1000), (4, 30)]), st.booleans())
@settings(deadline=None)
def test_counter_matches_oracle(
    steps: list[tuple[int, float, str]], window: tuple[int, int], shared: bool
) -> None:
    ledger = QuotaLedger(*window, shared=shared)
    ours = ledger.group(TAGS, 5000)
    theirs = OracleLedger(*window).group(TAGS, 5000)
    now_ms, used = 5000, False
    for waited_ms, value, what in steps:
        now_ms += waited_ms
        if what == "look":
            found = ledger.entry(KIND, TAGS, now_ms)
            assert found is not None or not used
            if found is None:
                continue
            # Measuring an average purges its samples, which reading the ledger does not.
            average = deepcopy(theirs.counter(NUMBER).average).measure(now_ms)
            assert found.throttle_ms == average or math.isnan(average)
            continue
        assert step(ours, what, value, now_ms) == step(theirs, what, value, now_ms)
        used = True


@given(STEPS, st.booleans())
@settings(deadline=None)
def test_record_both_matches_oracle(steps: list[tuple[int, float, str]], shared: bool) -> None:
    ours = QuotaLedger(3, 1000, shared=shared).group(TAGS, 0)
    theirs = OracleLedger(3, 1000).group(TAGS, 0)
    now_ms = 0
    for waited_ms, value, what in steps:
        now_ms += waited_ms
        if what == "record":
            both = NUMBER, value, value + 1, ALL_MEASURED, now_ms
            assert ours.record_both(*both) == theirs.record_both(*both)
        elif what == "add":
            ours.add(OTHER, value, now_ms)
            theirs.add(OTHER, value, now_ms)
        elif what == "look":
            assert ours.record(NUMBER, value, now_ms) == theirs.record(NUMBER, value, now_ms)


BOUNDS = st.one_of(st.just(math.inf), st.sampled_from([0.0, 0.5, 10.0, 500.0, 1e4]))


@given(STEPS, BOUNDS, BOUNDS, st.sampled_from([(1, 1000), (3, 1000), (11, 1000), (4, 30)]))
@settings(deadline=None)
def test_record_without_rate_check_stays_within_quota(
    steps: list[tuple[int, float, str]], bound: float, other_bound: float, window: tuple[int, int]
) -> None:
    ours = QuotaLedger(*window, shared=False).group(TAGS, 0)
    theirs = OracleLedger(*window).group(TAGS, 0)
    enough, others_enough = capacity(bound, *window), capacity(other_bound, *window)
    now_ms = 0
    for waited_ms, value, what in steps:
        now_ms += waited_ms
        if what == "add":
            ours.add(NUMBER, value, now_ms)
            theirs.add(NUMBER, value, now_ms)
        elif what == "record":
            found = ours.record(NUMBER, value, now_ms, enough)
            exact = theirs.record(NUMBER, value, now_ms)
            assert found == exact or (found is None and exact is not None and exact[0] <= bound)
        else:
            both = ours.record_both(NUMBER, value, value, (enough, 0, others_enough), now_ms)
            rates = theirs.record_both(NUMBER, value, value, ALL_MEASURED, now_ms)
            assert rates is not None
            assert both == rates or (
                both is None and rates[0][0] <= bound and rates[1][0] <= other_bound
            )


def test_samples_are_summed_only_if_quota_may_be_exceeded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = QuotaLedger(3, 1000, shared=False)
    group, totals, looks = ledger.group(TAGS, 0), ledger.totals, []

    def looking(at: int) -> tuple[float, ...]:
        looks.append(at)
        return totals(at)

    monkeypatch.setattr(ledger, "totals", looking)
    assert group.record(NUMBER, 60, 0, 100) is None
    assert group.record(NUMBER, -50, 0, 100) is None
    assert group.record(NUMBER, 60, 0, 100) is None
    assert looks == []
    assert group.record(NUMBER, 31, 0, 100) == (50.5, 2000)
    assert len(looks) == 1
    for second in range(1, 5):
        assert group.record(NUMBER, 1, 1000 * second, 110) is None
    assert len(looks) == 1
    # The first sample has expired, which is detected when the rate is computed.
    assert group.record(NUMBER, 1, 4000, 100) == (2.0, 2000)
    assert group.record(NUMBER, 1, 4000, 100) is None
    assert len(looks) == 2
    group.add(NUMBER, -4, 4000)
    group.add(NUMBER, 1, 5000)
    # The others hold 2, and what was removed from one of them may expire before they do.
    assert group.record(NUMBER, 1, 5000, 3.5) == (1.0, 2000)


def test_record_both_takes_one_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    group = QuotaLedger(3, 1000, shared=True).group(TAGS, 0)
    locked = []

    def lock(descriptor: int, what: int, length: int, at: int) -> None:
        locked.append((what, at, length))
        lockf(descriptor, what, length, at)

    monkeypatch.setattr("minibroker.broker.quotas.counter.lockf", lock)
    group.record_both(NUMBER, 1, 1, ALL_MEASURED, 0)
    assert locked == [(LOCK_EX, group.base, LOCKED), (LOCK_UN, group.base, LOCKED)]


def test_record_ordinals_increase_even_if_clock_goes_back() -> None:
    ledger = QuotaLedger(3, 1000, shared=True)
    group, again = ledger.group(TAGS, 0), ledger.group(TAGS, 0)
    others = ledger.group(Tags("", "c"), 0)
    found = []
    for each, number, now_ms in (
        (group, NUMBER, 1005),
        (again, OTHER, 1003),
        (group, OTHER, 1006),
        (others, NUMBER, 1004),
    ):
        each.record(number, 1, now_ms)
        found.append(each.ordinal)
    assert found == [1_005_000, 1_005_001, 1_006_000, 1_004_000]
    group.record_both(NUMBER, 1, 1, ALL_MEASURED, 1006)
    assert group.ordinal == 1_006_001


def count_aloud(ledger: QuotaLedger, done: int) -> None:
    group = ledger.group(TAGS, 1000)
    for _ in range(NUMBERED):
        group.add(NUMBER, 1, 1000)
        os.write(done, group.ordinal.to_bytes(8, "big"))
    os._exit(0)


NUMBERED = 300


def test_record_ordinals_are_unique_across_processes() -> None:
    ledger = QuotaLedger(2, 10**9, shared=True)
    heard, said = os.pipe()
    pids = [forked(partial(count_aloud, ledger, said)) for _ in range(3)]
    os.close(said)
    with os.fdopen(heard, "rb") as pipe:
        raw = pipe.read()
    for pid in pids:
        os.waitpid(pid, 0)
    numbers = [int.from_bytes(raw[at : at + 8], "big") for at in range(0, len(raw), 8)]
    assert len(set(numbers)) == len(numbers) == 3 * NUMBERED
    assert max(numbers) == 1_000_000 + len(numbers) - 1


def for_ever(ledger: QuotaLedger, done: int) -> None:
    """Record forever, and report each record by one byte."""
    groups = [ledger.group(Tags("", str(n)), 1000) for n in range(3)]
    now_ms = 1000
    while True:
        for group in groups:
            now_ms += 7
            group.record_both(NUMBER, 1, 1, ALL_MEASURED, now_ms)
            group.throttled(NUMBER, 1, 0, NO_CAUSE, now_ms)
            os.write(done, b".")


KILLS = 60


def test_killed_process_leaves_consistent_counters_and_no_lock() -> None:
    # One window that lasts, so that all that was ever recorded can be counted.
    ledger = QuotaLedger(2, 10**9, shared=True)
    random = Random(1)
    acknowledged = 0
    for _ in range(KILLS):
        heard, said = os.pipe()
        pid = forked(partial(for_ever, ledger, said))
        os.close(said)
        alive_until = acknowledged + random.randrange(1, 300)
        while acknowledged < alive_until:
            acknowledged += len(os.read(heard, 1))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while chunk := os.read(heard, 65536):
            acknowledged += len(chunk)
        os.close(heard)
        for group in (ledger.group(Tags("", str(n)), 1000) for n in range(3)):
            for number in range(4):
                rate_and_span = group.record(number, 0, 1000)
                assert rate_and_span is not None
                rate, span_ms = rate_and_span
                assert math.isfinite(rate)
                assert span_ms > 0
    entries = list(ledger.entries(1000, 1000))
    for kind in (KIND, "Request"):
        found = (entry.usage for entry in entries if entry.kind == kind)
        total = sum(usage.rate * usage.span_ms / 1000 for usage in found)
        assert acknowledged <= round(total) <= acknowledged + KILLS


RECORDED, ADDED = "its room is empty", "another one is in its room"


@pytest.mark.parametrize(("room", "least"), [(RECORDED, 5), (ADDED, 7)])
def test_sample_torn_while_started_is_started_again(
    room: str, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stop in count():
        ledger = QuotaLedger(3, 1000, shared=False)
        ours, theirs = ledger.group(TAGS, 0), OracleLedger(3, 1000).group(TAGS, 0)
        for now_ms in (0, 1100, 2200, 3300):
            assert ours.record(NUMBER, 5, now_ms) == theirs.record(NUMBER, 5, now_ms)
            if room == ADDED:
                ours.add(NUMBER, 1, now_ms + 990)
                theirs.add(NUMBER, 1, now_ms + 990)
        if not was_torn(monkeypatch, stop, partial(ours.add, NUMBER, 5, 4400)):
            break
        assert ours.record(NUMBER, 5, 4400) == theirs.record(NUMBER, 5, 4400)
        assert ours.record(NUMBER, 5, 8000) == theirs.record(NUMBER, 5, 8000)
    assert stop >= least


@given(STEPS, st.one_of(st.integers(-100, 10_000), st.floats(0, 100)), st.integers(0, 1500))
@settings(deadline=None)
def test_upper_limit_of_samples_holds_after_every_store(
    steps: list[tuple[int, float, str]], value: float, waited_ms: int
) -> None:
    for stop in count():
        ledger = QuotaLedger(3, 1000, shared=False)
        group, now_ms = ledger.group(TAGS, 0), 0
        for each_ms, each, what in steps:
            now_ms += each_ms
            step(group, "add" if what == "look" else what, each, now_ms)
        with pytest.MonkeyPatch.context() as patch:
            now_ms += waited_ms
            torn = was_torn(patch, stop, partial(group.record, NUMBER, value, now_ms))
        most = ledger.doubles[group.base // WORD + GROUP_HEAD + PLACE * NUMBER + MOST]
        entry = ledger.entry(KIND, TAGS, now_ms)
        held = sum(max(each.total, 0.0) for each in entry.samples) if entry else 0.0
        # A killed process may not have recorded its value.
        assert held <= most + (max(value, 0.0) if torn else 0.0) + 1e-6
        if not torn:
            return


def was_torn(patch: pytest.MonkeyPatch, stores: int, work: Callable[[], object]) -> bool:
    """Do some work as a process that is killed before its n-th store, if there are so many."""
    with patch.context() as patched:
        Torn(stores).patch(patched)
        try:
            work()
        except KeyboardInterrupt:
            return True
    return False


class Torn:
    """Ends a process before one of the words that it stores."""

    def __init__(self, stores: int) -> None:
        self._stores = stores

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        for name in (each for each in vars(module) if each.startswith("put_")):
            put = getattr(module, name)
            patch.setattr(module, name, partial(self._store, put.__self__.format))

    def _store(self, layout: str, memory: mmap, at: int, *words: float) -> None:
        kinds = "".join(kind * int(many or 1) for many, kind in re.findall(r"(\d*)(\w)", layout))
        for n, word in enumerate(words):
            if self._stores == 0:
                raise KeyboardInterrupt
            self._stores -= 1
            pack_into(kinds[n], memory, at + 8 * n, word)
