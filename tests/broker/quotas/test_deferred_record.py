"""Deferred records: no order of processes makes a difference."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, lockf
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.broker.quotas.counter import ALWAYS_MEASURED, LOCKED, CounterGroup
from minibroker.broker.quotas.entity import Entity, QuotaTable, Tags
from minibroker.broker.quotas.ledger import QuotaLedger
from minibroker.broker.quotas.manager import (
    FETCH,
    PRODUCE,
    AnyLedger,
    ClientQuotaManager,
    DeferredRecord,
)
from minibroker.broker.quotas.rate import (
    PROCESSES_MAX,
    capacity,
    deferred_limit,
    deferred_request_max,
)
from minibroker.broker.quotas.types import CLIENT_QUOTA_TYPES, QuotaType
from minibroker.broker.settings import ConfigError, Settings
from minibroker.broker.settings.definitions import NUM_NETWORK_THREADS
from tests.broker.quotas.forking import forked
from tests.broker.quotas.oracle import OracleLedger

TAGS = Tags("u", "c")
WHO = ("ANONYMOUS", "c")
TIME = list(CLIENT_QUOTA_TYPES).index(QuotaType.REQUEST)
ALL_MEASURED = (ALWAYS_MEASURED,) * 4
PLENTY = (math.inf,) * 4
MS = 1_000_000


def limits(bounds: tuple[float, ...], make: Callable[[float], float]) -> tuple[float, ...]:
    return tuple(make(capacity(bound, 3, 1000)) for bound in bounds)


WAITS = st.sampled_from([0, 0, 0, 1, 400, 1000, 2500, 9000])
SHARES = st.tuples(WAITS, st.floats(0, 1), st.floats(0, 1), st.booleans())


@given(st.lists(SHARES, max_size=150), st.floats(1e-3, 1e9), st.floats(1e-3, 1e9))
@settings(deadline=None)
def test_deferred_records_stay_within_quota_when_recorded(
    asked: list[tuple[int, float, float, bool]], bound: float, bound_of_time: float
) -> None:
    bounds = bound, math.inf, bound_of_time, math.inf
    ours = QuotaLedger(3, 1000, shared=False).group(TAGS, 0)
    theirs = OracleLedger(3, 1000).group(TAGS, 0)
    spared, small_ones = limits(bounds, deferred_limit), limits(bounds, deferred_request_max)
    now_ms = 0
    deferred: list[tuple[float, float, int]] = []

    def keep_all() -> None:
        for value, percent, then_ms in deferred:
            ours.record_deferred(PRODUCE, value, percent, then_ms)
            rates = theirs.record_both(PRODUCE, value, percent, ALL_MEASURED, then_ms)
            assert rates is not None
            assert rates[0][0] <= bound
            assert rates[1][0] <= bound_of_time
        deferred.clear()

    for waited_ms, share, share_of_time, at_once in asked:
        if not at_once or len(deferred) == PROCESSES_MAX:
            keep_all()
            now_ms += waited_ms
            # A process that may not defer records when no record is deferred.
            value, percent = share * bound, share_of_time * bound_of_time
            ours.record_both(PRODUCE, value, percent, ALL_MEASURED, now_ms)
            theirs.record_both(PRODUCE, value, percent, ALL_MEASURED, now_ms)
        elif ours.defer(PRODUCE, spared):
            value, percent = share * small_ones[PRODUCE], share_of_time * small_ones[TIME]
            deferred.append((value, percent, now_ms))
    keep_all()


def test_deferred_records_of_all_processes_just_fill_capacity() -> None:
    bounds = (100.0,) * 4
    group = QuotaLedger(3, 1000, shared=False).group(TAGS, 0)
    spared, small_ones = limits(bounds, deferred_limit), limits(bounds, deferred_request_max)
    group.record_both(PRODUCE, spared[PRODUCE], spared[TIME], ALL_MEASURED, 0)
    assert all(group.defer(PRODUCE, spared) for _ in range(PROCESSES_MAX))
    for _ in range(PROCESSES_MAX):
        group.record_deferred(PRODUCE, small_ones[PRODUCE], small_ones[TIME], 0)
    rates = group.record_both(PRODUCE, 0, 0, ALL_MEASURED, 0)
    assert rates is not None
    assert [rate for rate, _ in rates] == pytest.approx([100, 100])
    assert all(rate <= 100 for rate, _ in rates)


def test_network_threads_beyond_deferred_record_limit_are_rejected() -> None:
    most = Settings.from_sources(pairs=[f"{NUM_NETWORK_THREADS.name}={PROCESSES_MAX}"])
    assert most[NUM_NETWORK_THREADS] == PROCESSES_MAX
    with pytest.raises(ConfigError):
        Settings.from_sources(pairs=[f"{NUM_NETWORK_THREADS.name}={PROCESSES_MAX + 1}"])


def answer_of(work: Callable[[], bool]) -> bool:
    """What another process finds."""
    heard, said = os.pipe()
    pid = forked(lambda: os.write(said, bytes([work()])))
    os.waitpid(pid, 0)
    os.close(said)
    with os.fdopen(heard, "rb") as pipe:
        return bool(pipe.read(1)[0])


def is_free(ledger: QuotaLedger, group: CounterGroup) -> bool:
    """Whether this process could record or look now, without waiting."""
    try:
        lockf(ledger.lock_fd, LOCK_EX | LOCK_NB, LOCKED, group.base)
    except BlockingIOError:
        return False
    lockf(ledger.lock_fd, LOCK_UN, LOCKED, group.base)
    return True


def test_deferred_record_blocks_records_but_not_deferrals_of_others() -> None:
    ledger = QuotaLedger(3, 1000, shared=True)
    group = ledger.group(TAGS, 0)

    def others_way() -> bool:
        may = group.defer(PRODUCE, PLENTY)
        group.record_deferred(PRODUCE, 1, 1, 0)
        return may

    assert group.defer(PRODUCE, PLENTY)
    assert answer_of(others_way)
    assert not answer_of(partial(is_free, ledger, group))
    group.record_deferred(PRODUCE, 5, 5, 0)
    assert answer_of(partial(is_free, ledger, group))
    assert group.record_both(PRODUCE, 0, 0, ALL_MEASURED, 0) == ((3.0, 2000), (3.0, 2000))


def test_deferred_record_of_the_only_recorder_locks_its_group() -> None:
    ledger = QuotaLedger(3, 1000, shared=True, recorders=1)
    group = ledger.group(TAGS, 0)
    assert group.defer(PRODUCE, PLENTY)
    assert not answer_of(partial(is_free, ledger, group))
    group.record_deferred(PRODUCE, 5, 7, 0)
    assert answer_of(partial(is_free, ledger, group))
    assert not group.defer(PRODUCE, (0.0,) * 4)
    assert answer_of(partial(is_free, ledger, group))
    assert group.record_both(PRODUCE, 0, 0, ALL_MEASURED, 0) == ((2.5, 2000), (3.5, 2000))


def promise_and_keep(group: CounterGroup) -> None:
    for _ in range(KEPT):
        group.defer(PRODUCE, PLENTY)
        group.record_deferred(PRODUCE, 1, 2, 1000)


KEPT, PROCESSES = 2000, 3


def test_deferred_records_of_all_processes_are_counted() -> None:
    group = QuotaLedger(2, 10**9, shared=True).group(TAGS, 0)
    pids = [forked(partial(promise_and_keep, group)) for _ in range(PROCESSES)]
    for pid in pids:
        os.waitpid(pid, 0)
    rates = group.record_both(PRODUCE, 0, 0, ALL_MEASURED, 1000)
    assert rates is not None
    totals = [round(rate * span_ms / 1000) for rate, span_ms in rates]
    assert totals == [KEPT * PROCESSES, 2 * KEPT * PROCESSES]


def test_reading_or_allocating_slot_waits_for_deferred_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = QuotaLedger(3, 1000, shared=True)
    lengths: list[int] = []

    def lock(descriptor: int, what: int, length: int, at: int) -> None:
        if at >= ledger.base(0):
            lengths.append(length)
        lockf(descriptor, what, length, at)

    monkeypatch.setattr("minibroker.broker.quotas.ledger.lockf", lock)
    ledger.group(TAGS, 0)
    assert lengths == [LOCKED] * 2
    ledger.entry("Produce", TAGS, 0)
    assert lengths == [LOCKED] * 4


@pytest.mark.parametrize("number", [PRODUCE, FETCH])
def test_rejected_deferral_leaves_no_lock(number: int) -> None:
    ledger = QuotaLedger(3, 1000, shared=True)
    group = ledger.group(TAGS, 0)
    for full in (number, TIME):
        group.record(full, 10, 0)
        spared = [20.0] * 4
        assert group.defer(number, spared)
        group.record_deferred(number, 0, 0, 0)
        spared[full] = 9.0
        assert not group.defer(number, spared)
        assert answer_of(partial(is_free, ledger, group))


@pytest.mark.parametrize("recorders", [1, 2])
def test_process_killed_with_deferred_record_blocks_no_other(recorders: int) -> None:
    ledger = QuotaLedger(3, 1000, shared=True, recorders=recorders)
    group = ledger.group(TAGS, 0)

    def promise_and_die() -> None:
        group.defer(PRODUCE, PLENTY)
        os.kill(os.getpid(), signal.SIGKILL)

    _, status = os.waitpid(forked(promise_and_die), 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert group.record(PRODUCE, 4, 0) == (2.0, 2000)


def make_own(samples: int, window_ms: int) -> AnyLedger:
    return QuotaLedger(samples, window_ms, shared=False)


@pytest.fixture(params=[OracleLedger, make_own], ids=["oracle", "own"])
def quotas(request: pytest.FixtureRequest) -> ClientQuotaManager:
    """Of 100 bytes produced and 50 percent of time; 750 and 375 are to spare."""
    made = ClientQuotaManager(request.param(11, 1000))
    made.set_table(table())
    made.produced(WHO, 0, 0)
    return made


def table() -> QuotaTable:
    entity = Entity(client="c")
    bounds = {
        QuotaType.PRODUCE: {entity: 100.0},
        QuotaType.REQUEST: {entity: 50.0},
    }
    return QuotaTable(bounds, entity.bit, {})


def defer(quotas: ClientQuotaManager) -> DeferredRecord:
    found = quotas.defer(PRODUCE, WHO)
    assert found is not None
    return found


SMALL = int(deferred_request_max(capacity(100, 11, 1000)))
SMALL_NS = int(deferred_request_max(capacity(50, 11, 1000)) * 10 * MS)


def test_deferred_record_is_completed_once_with_later_request_time(
    quotas: ClientQuotaManager,
) -> None:
    given = defer(quotas)
    assert given.start(SMALL, SMALL_NS, 0)
    assert given.complete(late_ns=5000 * MS - SMALL_NS)
    assert not given.complete()
    quotas.complete_deferred()
    # A thousand is what ten windows may hold.
    assert quotas.produced(WHO, 1000 - SMALL, 0).ms == 0
    assert quotas.produced(WHO, 1, 0).ms == 10
    assert quotas.worked(WHO, 0, 0).ms == 0
    assert quotas.worked(WHO, 10 * MS, 0).ms == 20


def test_deferred_record_can_be_completed_early(quotas: ClientQuotaManager) -> None:
    assert defer(quotas).start(SMALL, 0, 0)
    quotas.complete_deferred()
    assert quotas.deferred is None
    assert quotas.produced(WHO, 1001 - SMALL, 0).ms == 10


def test_large_request_is_not_deferred(quotas: ClientQuotaManager) -> None:
    assert not defer(quotas).start(SMALL + 1, 0, 0)
    assert not defer(quotas).start(0, SMALL_NS + 1000, 0)
    assert quotas.deferred is None


def test_record_is_not_deferred_near_byte_quota(quotas: ClientQuotaManager) -> None:
    quotas.produced(WHO, 749, 0)
    assert defer(quotas).start(0, 0, 0)
    quotas.complete_deferred()
    quotas.produced(WHO, 2, 0)
    assert not defer(quotas).start(0, 0, 0)
    assert quotas.record_bytes_and_time(PRODUCE, WHO, 0, 0, 0) is None
    # This process knows how near it is; until that changes, no record is deferred.
    assert quotas.defer(PRODUCE, WHO) is None
    assert quotas.record_bytes_and_time(PRODUCE, WHO, 0, 0, 12_000) is None
    assert defer(quotas).start(0, 0, 12_000)


def test_record_is_not_deferred_near_request_time_quota(quotas: ClientQuotaManager) -> None:
    quotas.worked(WHO, 3760 * MS, 0)
    assert not defer(quotas).start(0, 0, 0)
    quotas.record_bytes_and_time(PRODUCE, WHO, 0, 0, 0)
    assert quotas.defer(PRODUCE, WHO) is None


def test_record_is_not_deferred_after_quota_change(
    quotas: ClientQuotaManager,
) -> None:
    old = defer(quotas)
    quotas.set_table(table())
    assert not old.start(0, 0, 0)
    assert quotas.defer(PRODUCE, WHO) is None  # The state of this client is not cached yet.
    quotas.produced(WHO, 0, 0)
    assert defer(quotas).start(0, 0, 0)


def test_record_is_not_deferred_without_quota_or_common_counter_group() -> None:
    quotas = ClientQuotaManager(OracleLedger(11, 1000))
    assert quotas.defer(PRODUCE, WHO) is None
    # A default of the settings counts for its type alone.
    quotas.set_table(QuotaTable(defaults={QuotaType.PRODUCE: 100.0}))
    quotas.produced(WHO, 0, 0)
    assert quotas.defer(PRODUCE, WHO) is None
    # Bytes count for the user with all its clients, time for each client.
    bounds = {
        QuotaType.PRODUCE: {Entity("ANONYMOUS"): 100.0},
        QuotaType.REQUEST: {Entity(client="c"): 50.0},
    }
    both = Entity("ANONYMOUS").bit | Entity(client="c").bit
    quotas.set_table(QuotaTable(bounds, both, {}))
    quotas.produced(WHO, 0, 0)
    assert quotas.defer(PRODUCE, WHO) is None
