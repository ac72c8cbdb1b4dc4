"""Rates and throttle times: Kafka's own figures, and a slow plain re-statement of the rules."""

from __future__ import annotations

import heapq
import inspect
import math
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from fcntl import LOCK_EX, LOCK_UN, lockf
from functools import partial
from itertools import count, cycle, pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minibroker.broker.quotas.rate as module
from minibroker.broker.quotas.ledger import QuotaLedger
from minibroker.broker.quotas.rate import (
    ALWAYS_MEASURED,
    GROUP_HEAD,
    LOCKED,
    MOST,
    NO_CAUSE,
    PLACE,
    WORD,
    Average,
    CounterGroup,
    Rate,
    capacity,
    java_round,
    throttle_ms,
)
from minibroker.broker.quotas.types import LONG_MAX, Tags
from tests.broker.quotas.forking import forked
from tests.broker.quotas.oracle import OracleGroup, OracleLedger

NO_CAP_MS = LONG_MAX
STEPS = st.lists(st.tuples(st.integers(0, 4000), st.integers(-3, 2000), st.booleans()), max_size=60)


class Plain:
    """The rules as documented, with a list of all samples ever."""

    def __init__(self, samples: int, window_ms: int) -> None:
        self.samples, self.window_ms = samples, window_ms
        self.all: list[list[int]] = []  # start, last event, sum; the newest is the last

    def _kept(self) -> list[list[int]]:
        return self.all[-(self.samples + 1) :]

    def record(self, value: int, now: int) -> None:
        if not self.all or now - self.all[-1][0] >= self.window_ms:
            # A purged sample keeps its place in the ring, so it is one of the kept ones still.
            self.all.append([now, now, 0])
        self.all[-1][2] += value
        self.all[-1][1] = now

    def rate(self, now: int) -> float:
        for sample in self._kept():
            if now - sample[1] >= self.samples * self.window_ms:
                sample[:] = [now, now, 0]
        begin = min((sample[0] for sample in self._kept()), default=now)
        elapsed = now - begin
        while elapsed // self.window_ms < self.samples - 1:
            elapsed += self.window_ms
        return sum(sample[2] for sample in self._kept()) / (max(elapsed, 1) / 1000)


@given(STEPS, st.integers(1, 11), st.integers(1, 2000))
def test_rate_matches_plain_model(
    steps: list[tuple[int, int, bool]], samples: int, window_ms: int
) -> None:
    rate, plain, now = Rate(samples, window_ms), Plain(samples, window_ms), 0
    for pause, value, measured in steps:
        now += pause
        rate.record(value, now)
        plain.record(value, now)
        if measured:
            assert rate.measure(now) == pytest.approx(plain.rate(now))
    assert rate.measure(now + 1) == pytest.approx(plain.rate(now + 1))


@given(STEPS, st.integers(1, 11), st.integers(1, 2000))
def test_rate_window_has_minimum_length(
    steps: list[tuple[int, int, bool]], samples: int, window_ms: int
) -> None:
    rate, now = Rate(samples, window_ms), 0
    for pause, value, _ in steps:
        now += pause
        rate.record(value, now)
        assert rate.span_ms(now) >= max(1, (samples - 1) * window_ms)


@pytest.mark.parametrize(
    ("samples", "window_s", "expected"),
    [(1, 1, 50.05), (1, 11, 4.5459), (11, 1, 4.5459), (11, 11, 0.41322)],
)
def test_rate_just_before_end_of_window_counts_its_only_event(
    samples: int, window_s: int, expected: float
) -> None:
    rate = Rate(samples, window_s * 1000)
    rate.record(50, 0)
    assert rate.measure(samples * window_s * 1000 - 1) == pytest.approx(expected, rel=1e-4)


def test_extra_sample_counts_until_its_last_event_expires() -> None:
    rate = Rate(11, 1000)
    rate.record(1, 0)
    for now in (999, *range(1000, 12_000, 1000)):
        rate.record(1, now)
    # The first sample's last event is 10,001 ms old, so it counts, as the twelfth.
    assert rate.measure(11_000) == pytest.approx(13 / 11)
    assert rate.measure(11_998) == pytest.approx(13 / 11.998)
    assert rate.measure(11_999) == pytest.approx(11 / 10.999)


def test_byte_rate_throttle_time_matches_kafka_to_the_millisecond() -> None:
    rate, now = Rate(11, 1000), 0
    for _ in range(10):
        rate.record(400, now)
        assert rate.throttle_ms(500, now, NO_CAP_MS) == 0
        now += 1000
    now += 500
    rate.record(2300, now)
    assert rate.throttle_ms(500, now, NO_CAP_MS) == 2100
    now += 2100
    for _ in range(10):
        rate.record(400, now)
        now += 1000
    rate.record(0, now)
    assert rate.throttle_ms(500, now, NO_CAP_MS) == 0


def test_request_time_throttle_is_capped_at_one_window() -> None:
    rate, now = Rate(11, 1000), 0
    for _ in range(10):
        rate.record(0.4, now)
        assert rate.throttle_ms(1, now, 1000) == 0
        now += 1000
    now += 500
    rate.record(6.71, now)
    assert rate.throttle_ms(1, now, 1000) == 210
    now += 210
    for _ in range(11):
        rate.record(0.4, now)
        now += 1000
    rate.record(0, now)
    assert rate.throttle_ms(1, now, 1000) == 0
    rate.record(50, now)
    assert rate.throttle_ms(1, now, 1000) == 1000
    for _ in range(10):
        now += 1000
        rate.record(0, now)
        assert rate.throttle_ms(1, now, 1000) == 1000
    now += 1000
    assert rate.throttle_ms(1, now, 1000) == 0


@pytest.mark.parametrize(
    ("sent", "expected"), [(20480, 10_000), (11264, 1000), (10241, 1), (10240, 0)]
)
def test_new_rate_admits_ten_seconds_of_quota_at_once(sent: int, expected: int) -> None:
    rate = Rate(11, 1000)
    rate.record(sent, 0)
    assert rate.throttle_ms(1024, 0, NO_CAP_MS) == expected


def test_rate_of_five_admits_fifty_and_delays_next_by_200_ms() -> None:
    rate = Rate(11, 1000)
    found = []
    for _ in range(51):
        rate.record(1, 0)
        found.append(rate.throttle_ms(5, 0, 1000))
    assert found == [0] * 50 + [200]


@pytest.mark.parametrize(
    ("observed", "bound", "samples", "cap", "expected"),
    [
        (100, 50, 3, None, 2000),
        (55, 50, 2, 500, 100),
        (100, 50, 10, 500, 500),
        (50, 50, 3, None, 0),
        (40, 50, 3, None, -400),
    ],
)
def test_throttle_time_follows_kafka_formula(
    observed: float, bound: float, samples: int, cap: int | None, expected: int
) -> None:
    span_ms = Rate(samples, 1000).span_ms(5)  # nothing was recorded
    found = throttle_ms(observed, bound, span_ms)
    assert (found if cap is None else min(found, cap)) == expected


def test_zero_quota_throttles_for_the_cap() -> None:
    rate = Rate(11, 1000)
    assert rate.throttle_ms(0, 0, 1000) == 0
    rate.record(1, 0)
    assert rate.throttle_ms(0, 0, 1000) == 1000
    assert throttle_ms(1, 0, 1000) == LONG_MAX


@pytest.mark.parametrize(("samples", "window_ms"), [(1, 1000), (2, 30), (11, 1000)])
@pytest.mark.parametrize("bound", [0.0, 0.3, 1e6])
def test_capacity_stays_just_within_the_quota(bound: float, samples: int, window_ms: int) -> None:
    enough = capacity(bound, samples, window_ms)
    for waited_ms in range(0, 2 * samples * window_ms, max(window_ms // 7, 1)):
        rate = Rate(samples, window_ms)
        rate.record(0, 0)
        rate.record(enough, waited_ms)
        assert rate.measure(waited_ms) <= bound
    rate = Rate(samples, window_ms)
    rate.record(enough * 1.00001 + 1e-12, 0)
    assert rate.measure(0) > bound


@pytest.mark.parametrize(("value", "expected"), [(0.5, 1), (1.5, 2), (2.5, 3), (-0.5, 0), (2.4, 2)])
def test_java_round_rounds_halves_up(value: float, expected: int) -> None:
    assert java_round(value) == expected


def test_average_drops_expired_samples() -> None:
    average = Average()
    assert math.isnan(average.measure(0))
    average.record(100, 0)
    average.record(200, 1)
    assert average.measure(1000) == 150
    assert math.isnan(average.measure(60_001))


def test_average_covers_last_samples_only() -> None:
    times = [0, 30_000, 60_000, 90_000]
    average = Average()
    for now in times:
        average.record(now, now)
    assert all(later - earlier == 30_000 for earlier, later in pairwise(times))
    assert average.measure(90_000) == 75_000


def gets(
    bound: float,
    size: int,
    late_ms: Sequence[int],
    *,
    fetches: bool = False,
    grows: bool = True,
) -> float:
    """Return the share of its quota that a client gets in a minute.

    It sends or fetches requests of one size, and is late by the given times each time that a
    throttle has ended. The quota grows as long as it is an average over, and the result is an
    average over half a minute after that, as for real clients. A throttled fetch is given back and
    repeated.
    """
    rate, now, late = Rate(11, 1000), 0, cycle(late_ms)
    came: list[int] = []
    while now < 60_000:
        share = min(11, now // 1000 + 1) / 11 if grows else 1
        rate.record(size, now)
        held_ms = rate.throttle_ms(bound * share, now, NO_CAP_MS)
        if fetches and held_ms:
            rate.record(-size, now)
        else:
            came.append(now)
        now += held_ms + next(late) if held_ms else 1
    starts = range(16_000, 27_000, 100)
    passed = size * sum(start <= at < start + 33_000 for start in starts for at in came)
    return passed / 33 / len(starts) / bound


def test_client_that_is_never_late_gets_its_whole_quota() -> None:
    assert gets(154_000, 38_500, [1]) == pytest.approx(1, abs=0.001)


def test_late_client_loses_part_of_its_quota() -> None:
    # The delays of real clients in a minute are of this size: their timers, and other programs.
    assert gets(154_000, 10_100, [20]) == pytest.approx(0.997, abs=0.001)
    assert gets(154_000, 10_100, [0, 0, 0, 200]) == pytest.approx(0.988, abs=0.001)


@pytest.mark.parametrize(("size", "lost"), [(10_100, 0.003), (70_000, 0.020), (140_000, 0.041)])
def test_fetching_client_loses_about_one_response_in_ten_seconds(size: int, lost: float) -> None:
    assert lost == pytest.approx(size / 308_000 / 10, abs=0.005)
    assert 1 - gets(308_000, size, [1], fetches=True) == pytest.approx(lost, abs=0.001)


def test_initial_burst_reduces_throughput_of_following_minute() -> None:
    assert gets(154_000, 10_100, [1], grows=False) == pytest.approx(0.990, abs=0.001)


def shared(bound: float, cost: float, together: int, late_ms: int, *, early_ms: int = 0) -> float:
    """Return the share of a request quota that clients get who share it, each throttled separately.

    The broker works for one at a time, and each requests again this late after its throttle or
    response; half of the cost is known only after the response, and is not checked. They may start
    a while before the quota starts to grow.
    """
    rate, free_ms = Rate(11, 1000), 0
    took_ms = math.ceil(cost * 10)
    turns = [(number, number) for number in range(together)]
    came: list[int] = []
    while turns:
        due_ms, number = heapq.heappop(turns)
        now = max(due_ms, free_ms)
        into_ms = now - early_ms
        if into_ms >= 60_000:
            continue
        rate.record(cost / 2, now)
        share = min(11, max(into_ms, 0) // 1000 + 1) / 11
        held_ms = rate.throttle_ms(bound * share, now, 1000)
        free_ms = now + took_ms
        rate.record(cost / 2, free_ms)
        came.append(into_ms)
        heapq.heappush(turns, (max(now + held_ms, free_ms) + late_ms, number))
    starts = range(16_000, 27_000, 100)
    worked = cost * sum(start <= at < start + 33_000 for start in starts for at in came)
    return worked / 33 / len(starts) / bound


@pytest.mark.parametrize(
    ("cost", "together", "late_ms", "expected"),
    [
        (0.1, 1, 1, 1.0006),
        (0.1, 1, 10, 0.9996),
        (0.1, 2, 10, 1.0011),
        (0.1, 3, 10, 1.0023),
        (0.2, 3, 10, 1.0059),
        (0.2, 4, 10, 1.0086),
    ],
)
def test_clients_sharing_request_time_quota_get_it_within_one_percent(
    cost: float, together: int, late_ms: int, expected: float
) -> None:
    # A client over the quota gets its throttle time, and others are served meanwhile.
    assert shared(6.6, cost, together, late_ms) == pytest.approx(expected, abs=0.0005)


@pytest.mark.parametrize(("together", "expected"), [(1, 0.583), (2, 0.999), (3, 1.001)])
def test_single_late_client_does_not_use_its_whole_request_time_quota(
    together: int, expected: float
) -> None:
    # It is 66 requests per second, and a client that is 25 ms late makes 39 at most.
    assert shared(6.6, 0.1, together, 25) == pytest.approx(expected, abs=0.001)


@pytest.mark.parametrize(("early_ms", "expected"), [(0, 1.0017), (2000, 0.9948), (4000, 0.9919)])
def test_clients_starting_before_quota_increase_get_less_in_first_minute(
    early_ms: int, expected: float
) -> None:
    # They use the available quota at once, and are throttled for the rest of those seconds.
    assert shared(4.0, 0.06, 2, 3, early_ms=early_ms) == pytest.approx(expected, abs=0.0005)


TAGS = Tags("u", "c")
KIND, NUMBER, OTHER = "Produce", 0, 2
ALL_MEASURED = (ALWAYS_MEASURED,) * 4


COUNTED = st.lists(
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


@given(COUNTED, st.sampled_from([(1, 1000), (2, 1000), (11, 1000), (4, 30)]), st.booleans())
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


@given(COUNTED, st.booleans())
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


@given(COUNTED, BOUNDS, BOUNDS, st.sampled_from([(1, 1000), (3, 1000), (11, 1000), (4, 30)]))
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

    monkeypatch.setattr("minibroker.broker.quotas.rate.lockf", lock)
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
def test_sample_torn_while_started_is_started_again(room: str, least: int) -> None:
    for stop in count():
        ledger = QuotaLedger(3, 1000, shared=False)
        ours, theirs = ledger.group(TAGS, 0), OracleLedger(3, 1000).group(TAGS, 0)
        for now_ms in (0, 1100, 2200, 3300):
            assert ours.record(NUMBER, 5, now_ms) == theirs.record(NUMBER, 5, now_ms)
            if room == ADDED:
                ours.add(NUMBER, 1, now_ms + 990)
                theirs.add(NUMBER, 1, now_ms + 990)
        if not was_torn(ledger, stop, partial(ours.add, NUMBER, 5, 4400)):
            break
        assert ours.record(NUMBER, 5, 4400) == theirs.record(NUMBER, 5, 4400)
        assert ours.record(NUMBER, 5, 8000) == theirs.record(NUMBER, 5, 8000)
    assert stop >= least


@given(COUNTED, st.one_of(st.integers(-100, 10_000), st.floats(0, 100)), st.integers(0, 1500))
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
        now_ms += waited_ms
        torn = was_torn(ledger, stop, partial(group.record, NUMBER, value, now_ms))
        most = ledger.doubles[group.base // WORD + GROUP_HEAD + PLACE * NUMBER + MOST]
        entry = ledger.entry(KIND, TAGS, now_ms)
        held = sum(max(each.total, 0.0) for each in entry.samples) if entry else 0.0
        # A killed process may not have recorded its value.
        assert held <= most + (max(value, 0.0) if torn else 0.0) + 1e-6
        if not torn:
            return


def test_words_are_not_cleared_before_they_are_written() -> None:
    # CPython's pack_into does that, so a kill between the two loses the word.
    assert "pack_into" not in re.findall(
        r"\.(\w+)", inspect.getsource(module).partition('"""\n\n')[2]
    )


def was_torn(ledger: QuotaLedger, stores: int, work: Callable[[], object]) -> bool:
    """Do some work as a process that is killed before its n-th store, if there are so many."""
    left = count(stores, -1)
    doubles, integers = (TornWords(view, left) for view in (ledger.doubles, ledger.integers))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "doubles", doubles)
        patch.setattr(ledger, "integers", integers)
        try:
            work()
        except KeyboardInterrupt:
            return True
    return False


class TornWords:
    """Words of a process that ends before it stores one of them."""

    def __init__(self, words: memoryview[Any], left: Iterator[int]) -> None:
        self._words = words
        self._left = left

    def __getitem__(self, at: int) -> Any:
        return self._words[at]

    def __setitem__(self, at: int, word: float) -> None:
        if next(self._left) == 0:
            raise KeyboardInterrupt
        self._words[at] = word
