"""What is recorded in a counter: the figures of the oracle, and whoever is killed, whole ones."""

from __future__ import annotations

import math
import os
import signal
from fcntl import LOCK_EX, LOCK_UN, lockf
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.quotas.counter import AT, CHECK, HEAD, Counter
from minibroker.quotas.entity import Tags
from minibroker.quotas.ledger import Ledger
from tests.quotas.forking import forked
from tests.quotas.oracle import OracleCounter, OracleLedger

TAGS = Tags("u", "c")
KIND = "Produce"


STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 10, 500, 999, 1000, 1001, 2500, 10_000, 11_000, 12_345, 70_000]),
        st.one_of(st.integers(-100, 10_000), st.floats(0, 100)),
        st.sampled_from(["record", "add", "throttled", "look", "tokens"]),
    ),
    max_size=60,
)


def step(counter: Counter | OracleCounter, what: str, value: float, now_ms: int) -> object:
    if what == "record":
        return counter.record(value, now_ms)
    if what == "add":
        return counter.add(value, now_ms)
    if what == "throttled":
        return counter.throttled(max(0, int(value)), 0, now_ms)
    return counter.tokens(10, 100, now_ms, value)


@given(STEPS, st.sampled_from([(1, 1000), (2, 1000), (11, 1000), (4, 30)]), st.booleans())
@settings(deadline=None)
def test_its_figures_are_those_of_the_oracle(
    steps: list[tuple[int, float, str]], window: tuple[int, int], shared: bool
) -> None:
    ledger = Ledger(*window, shared=shared)
    ours = ledger.counter(KIND, TAGS, 5000)
    theirs = OracleLedger(*window).counter(KIND, TAGS, 5000)
    now_ms, used = 5000, False
    for waited_ms, value, what in steps:
        now_ms += waited_ms
        if what == "look":
            found = ledger.entry(KIND, TAGS, now_ms)
            assert found is not None or not used
            if found is None:
                continue
            average = theirs.average.measure(now_ms)
            assert found.throttle_ms == average or math.isnan(average)
            continue
        assert step(ours, what, value, now_ms) == step(theirs, what, value, now_ms)
        used = True


@given(STEPS, st.booleans(), st.booleans())
@settings(deadline=None)
def test_two_counters_recorded_at_once_have_the_figures_of_two(
    steps: list[tuple[int, float, str]], together: bool, shared: bool
) -> None:
    ledger, oracle = Ledger(3, 1000, shared=shared), OracleLedger(3, 1000)
    ours, theirs = ledger.counters(TAGS, 0), oracle.counters(TAGS, 0)
    other = ledger.counters(TAGS if together else Tags("", "c"), 0)[2]
    if together:
        other = ours[2]
    now_ms = 0
    for waited_ms, value, what in steps:
        now_ms += waited_ms
        if what == "record":
            found = ours[0].record_with(value, other, value + 1, now_ms)
            assert found == theirs[0].record_with(value, theirs[2], value + 1, now_ms)
        elif what == "add":
            other.add(value, now_ms)
            theirs[2].add(value, now_ms)
        elif what == "look":
            assert ours[0].record(value, now_ms) == theirs[0].record(value, now_ms)


def test_counters_of_a_group_take_one_lock_for_two_values(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(3, 1000, shared=True)
    ours, others = ledger.counters(TAGS, 0), ledger.counters(Tags("", "c"), 0)
    locked = []

    def lock(descriptor: int, what: int, length: int, at: int) -> None:
        locked.append((what, at))
        lockf(descriptor, what, length, at)

    monkeypatch.setattr("minibroker.quotas.counter.lockf", lock)
    ours[0].record_with(1, ours[2], 1, 0)
    (_, slot), _ = locked
    assert locked == [(LOCK_EX, slot), (LOCK_UN, slot)]
    locked.clear()
    ours[0].record_with(1, others[2], 1, 0)
    assert len(locked) == 4


def for_ever(ledger: Ledger, done: int) -> None:
    """Counts aloud what it has recorded: one byte after each record."""
    groups = [ledger.counters(Tags("", str(n)), 1000) for n in range(3)]
    now_ms = 1000
    while True:
        for counter, other, *_ in groups:
            now_ms += 7
            counter.record_with(1, other, 1, now_ms)
            counter.throttled(1, 0, now_ms)
            os.write(done, b".")


KILLS = 60


def test_who_is_killed_leaves_every_counter_whole_and_no_lock() -> None:
    # One window that lasts, so that all that was ever recorded can be counted.
    ledger = Ledger(2, 10**9, shared=True)
    random = Random(1)
    told = 0
    for _ in range(KILLS):
        heard, said = os.pipe()
        pid = forked(partial(for_ever, ledger, said))
        os.close(said)
        alive_until = told + random.randrange(1, 300)
        while told < alive_until:
            told += len(os.read(heard, 1))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while chunk := os.read(heard, 65536):
            told += len(chunk)
        os.close(heard)
        for group in (ledger.counters(Tags("", str(n)), 1000) for n in range(3)):
            for counter in group:
                rate, span_ms = counter.record(0, 1000)
                assert math.isfinite(rate)
                assert span_ms > 0
    entries = list(ledger.entries(1000, 1000))
    for kind in (KIND, "Fetch"):
        found = (entry.usage for entry in entries if entry.kind == kind)
        total = sum(usage.rate * usage.span_ms / 1000 for usage in found)
        assert told <= round(total) <= told + KILLS


def test_a_sample_torn_while_it_began_is_begun_again() -> None:
    ledger = Ledger(3, 1000, shared=False)
    ours, theirs = ledger.counter(KIND, TAGS, 0), OracleCounter(3, 1000)
    for now_ms in (0, 1100, 2200, 3300, 4400):
        assert ours.record(5, now_ms) == theirs.record(5, now_ms)
    at = ours.place
    current = int(ledger.doubles[at + AT])
    for stop in range(1, 4):
        # As far as a process comes in beginning the next sample before it is killed.
        ledger.doubles[at + CHECK] = 0
        following = at + HEAD + (current + 1) % ledger.ring
        for n, word in list(enumerate((0.0, 5500.0, 5500.0)))[:stop]:
            ledger.doubles[following + n * ledger.ring] = word
    assert ours.record(5, 5500) == theirs.record(5, 5500)
    assert ours.record(5, 9000) == theirs.record(5, 9000)
