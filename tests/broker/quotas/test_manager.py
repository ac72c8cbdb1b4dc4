"""Requests are recorded and throttled by the quota manager."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, lockf
from functools import partial
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.broker.quotas.ledger import QuotaLedger
from minibroker.broker.quotas.manager import (
    EXEMPT,
    FETCH,
    PRODUCE,
    AnyLedger,
    ClientQuotaManager,
    DeferredRecord,
    MutationQuota,
    Throttle,
    ThrottleQueue,
    larger,
)
from minibroker.broker.quotas.rate import (
    ALWAYS_MEASURED,
    LOCKED,
    PROCESSES_MAX,
    CounterGroup,
    capacity,
    deferred_limit,
    deferred_request_max,
)
from minibroker.broker.quotas.types import (
    CLIENT_QUOTA_TYPES,
    DEFAULT,
    INT_MAX,
    Entity,
    QuotaTable,
    QuotaType,
    Tags,
)
from minibroker.broker.settings import NUM_NETWORK_THREADS, ConfigError, Settings
from tests.broker.quotas.conftest import MakeLedger, table
from tests.broker.quotas.forking import forked
from tests.broker.quotas.oracle import OracleLedger

P, F, R, M = CLIENT_QUOTA_TYPES[:4]
WHO = ("ANONYMOUS", "client1")
CLIENT = Entity(client="client1")
MS = 1_000_000


def test_no_quota_records_nothing() -> None:
    ledger = OracleLedger(11, 1000)
    quotas = ClientQuotaManager(ledger)
    assert not quotas.enabled
    assert quotas.produced(WHO, 10**9, 0) == Throttle(P, 0)
    assert quotas.worked(WHO, 10**12, 0) == Throttle(R, 0)
    quotas.record_later_time(WHO, 10**12, 0)
    quotas.exempt(10**12, 0)
    quotas.take_back_fetch(WHO, 5, 0)
    assert quotas.fetch_bytes_max(WHO, 0) == INT_MAX
    assert ledger.made == {}


def test_byte_rate_throttle_matches_kafka_test(quotas: ClientQuotaManager) -> None:
    quotas.set_table(table(P, (CLIENT, 500)))
    now_ms = 0
    for _ in range(10):
        assert quotas.produced(WHO, 400, now_ms).ms == 0
        now_ms += 1000
    now_ms += 500
    assert quotas.produced(WHO, 2300, now_ms)[:2] == (P, 2100)
    now_ms += 2100
    for _ in range(10):
        quotas.produced(WHO, 400, now_ms)
        now_ms += 1000
    assert quotas.produced(WHO, 0, now_ms).ms == 0


def test_request_time_throttle_matches_kafka_test(quotas: ClientQuotaManager) -> None:
    quotas.set_table(table(R, (CLIENT, 1)))
    now_ms = 0
    for _ in range(10):
        assert quotas.worked(WHO, 4 * MS, now_ms).ms == 0
        now_ms += 1000
    now_ms += 500
    assert quotas.worked(WHO, 67_100_000, now_ms)[:2] == (R, 210)
    now_ms += 210
    for _ in range(11):
        quotas.worked(WHO, 4 * MS, now_ms)
        now_ms += 1000
    assert quotas.worked(WHO, 0, now_ms).ms == 0
    assert quotas.worked(WHO, 500 * MS, now_ms).ms == 1000
    for _ in range(10):
        now_ms += 1000
        assert quotas.worked(WHO, 0, now_ms).ms == 1000
    now_ms += 1000
    assert quotas.worked(WHO, 0, now_ms).ms == 0


@pytest.mark.parametrize(
    ("size", "ms"), [(20480, 10_000), (11264, 1000), (10241, 1), (10240, 0), (2**62, INT_MAX)]
)
def test_byte_rate_throttle_time_has_no_cap(quotas: ClientQuotaManager, size: int, ms: int) -> None:
    quotas.set_table(table(F, (CLIENT, 1024)))
    assert quotas.fetched(WHO, size, 5000)[:2] == (F, ms)


def test_network_time_is_charged_to_next_request(quotas: ClientQuotaManager) -> None:
    quotas.set_table(table(R, (CLIENT, 1)))
    quotas.record_later_time(WHO, 500 * MS, 0)
    assert quotas.worked(WHO, 0, 0).ms == 1000


def test_unfetched_bytes_are_unrecorded(quotas: ClientQuotaManager) -> None:
    quotas.set_table(table(F, (CLIENT, 1024)))
    assert quotas.fetched(WHO, 20480, 0).ms > 0
    quotas.take_back_fetch(WHO, 20480, 0)
    assert quotas.fetched(WHO, 10240, 0).ms == 0


def test_fetch_size_is_limited_to_quota_of_window(make: MakeLedger) -> None:
    quotas = ClientQuotaManager(make(4, 1000))
    assert quotas.fetch_bytes_max(WHO, 0) == INT_MAX
    quotas.set_table(table(F, (CLIENT, 10)))
    assert quotas.fetch_bytes_max(WHO, 0) == 30
    assert quotas.fetch_bytes_max(("ANONYMOUS", "other"), 0) == INT_MAX
    quotas = ClientQuotaManager(make(1, 1000))
    quotas.set_table(table(F, (CLIENT, 10)))
    assert quotas.fetch_bytes_max(("ANONYMOUS", "other"), 0) == INT_MAX


@pytest.mark.parametrize("defaults", [None, 10])
@pytest.mark.parametrize(("size", "worked_ns"), [(200, 0), (0, 500 * MS), (200, 200 * MS), (9, 9)])
def test_recording_bytes_and_time_together_matches_separate_records(
    make: MakeLedger, size: int, worked_ns: int, defaults: float | None
) -> None:
    """Also where only bytes are counted at all, and where the two are of different groups."""
    bounds = {kind: {CLIENT: 1.0} for kind in (P, F)} | {R: {Entity("ANONYMOUS"): 1.0}}
    both = ClientQuotaManager(make(11, 1000)), ClientQuotaManager(make(11, 1000))
    for quotas in both:
        if defaults is None:
            quotas.set_table(QuotaTable(bounds, CLIENT.bit | Entity("u").bit))
        else:
            quotas.set_table(QuotaTable(defaults=dict.fromkeys((P, F), defaults)))
    at_once, apart = both
    for _ in range(3):
        time = apart.worked(WHO, worked_ns, 0)
        expected = larger(apart.produced(WHO, size, 0), time)
        assert at_once.record_bytes_and_time(PRODUCE, WHO, size, worked_ns, 0) == expected
        time = apart.worked(WHO, worked_ns, 0)
        expected = larger(apart.fetched(WHO, size, 0), time)
        assert at_once.record_bytes_and_time(FETCH, WHO, size, worked_ns, 0) == expected


def test_request_of_type_without_quota_allocates_no_counter() -> None:
    ledger = QuotaLedger(11, 1000, shared=False)
    quotas = ClientQuotaManager(ledger)
    quotas.set_table(table(F, defaults=1))
    assert quotas.record_bytes_and_time(PRODUCE, WHO, 10**9, 10**12, 0) is None
    assert not any(ledger.hashes)
    assert quotas.record_bytes_and_time(FETCH, WHO, 10**9, 10**12, 0) is not None
    assert any(ledger.hashes)


def test_exempt_request_time_is_summed_over_all_clients() -> None:
    ledger = OracleLedger(11, 1000)
    quotas = ClientQuotaManager(ledger)
    quotas.set_table(table(P, (CLIENT, 1)))
    quotas.exempt(20 * MS, 0)
    quotas.exempt(10 * MS, 0)
    assert ledger.made[EXEMPT, Tags("", "")].rate.total() == 3.0


def test_larger_throttle_wins_and_request_time_wins_a_tie() -> None:
    assert larger(Throttle(P, 0), Throttle(R, 0)) is None
    assert larger(Throttle(P, 5), Throttle(R, 4)) == Throttle(P, 5)
    assert larger(Throttle(P, 5), Throttle(R, 5)) == Throttle(R, 5)
    assert larger(Throttle(P, 0), Throttle(R, 5)) == Throttle(R, 5)


@pytest.mark.parametrize(
    "entity", [Entity(DEFAULT), Entity("ANONYMOUS"), Entity("ANONYMOUS", "client1")]
)
def test_quota_is_set_and_removed(quotas: ClientQuotaManager, entity: Entity) -> None:
    quotas.set_table(table(P, (entity, 10)))
    assert max(quotas.produced(WHO, 1000, now).ms for now in range(11)) > 0
    quotas.set_table(table(P))
    assert quotas.share(P, WHO, 20).bound is None
    assert quotas.produced(WHO, 1000, 20).ms == 0


@pytest.mark.parametrize("entity", [CLIENT, Entity("ANONYMOUS"), Entity("ANONYMOUS", "client1")])
def test_quota_change_applies_to_existing_counter(
    quotas: ClientQuotaManager, entity: Entity
) -> None:
    quotas.set_table(table(P, (entity, 2000)))
    assert max(quotas.produced(WHO, 2500, 0).ms for _ in range(11)) > 0
    quotas.set_table(table(P, (entity, 3000)))
    assert quotas.produced(WHO, 0, 0).ms == 0
    quotas.set_table(table(P, (entity, 500)))
    assert quotas.produced(WHO, 0, 0).ms > 0
    default = entity._replace(**dict.fromkeys(_names(entity), DEFAULT))
    quotas.set_table(table(P, (default, 4000)))
    assert max(quotas.produced(WHO, 1000, 0).ms for _ in range(11)) == 0


def _names(entity: Entity) -> list[str]:
    return [field for field, name in entity._asdict().items() if name]


def test_quota_at_other_level_uses_new_counter(quotas: ClientQuotaManager) -> None:
    quotas.set_table(table(P, (Entity("ANONYMOUS"), 100)))
    assert quotas.produced(WHO, 5000, 0).ms > 0
    both = Entity("ANONYMOUS", "client1")
    quotas.set_table(table(P, (Entity("ANONYMOUS"), 100), (both, 100)))
    assert quotas.share(P, WHO, 0).group.tags == Tags("ANONYMOUS", "client1")
    assert quotas.produced(WHO, 500, 0).ms == 0


def test_clients_of_user_share_counter_of_default_user_quota(quotas: ClientQuotaManager) -> None:
    quotas.set_table(table(P, (Entity(DEFAULT), 100)))
    assert quotas.produced(("u v", "a"), 900, 0).ms == 0
    assert quotas.produced(("u v", "b"), 900, 0).ms > 0
    assert quotas.produced(("other", "b"), 900, 0).ms == 0
    assert quotas.share(P, ("u v", "b"), 0).group.tags == Tags("u%20v", "")


def test_entity_kinds_ever_set_are_shared_by_all_processes(make: MakeLedger) -> None:
    ledger = make(11, 1000)
    ClientQuotaManager(ledger).set_table(table(P, (Entity("u", "c"), 100)))
    later = ClientQuotaManager(ledger)
    assert later.enabled
    assert later.share(P, WHO, 0).group.tags == Tags("ANONYMOUS", "client1")


def test_deprecated_default_enables_only_its_quota_type(quotas: ClientQuotaManager) -> None:
    quotas.set_table(table(P, defaults=10))
    assert quotas.produced(WHO, 200, 0).ms > 0
    assert quotas.produced(("u", ""), 10**9, 0).ms == 0
    assert quotas.bits[F] == quotas.bits[R] == 0


def test_number_of_cached_quota_states_is_limited(
    quotas: ClientQuotaManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibroker.broker.quotas.manager.QUOTA_STATES_MAX", 5)
    quotas.set_table(table(P, (Entity(client=DEFAULT), 100)))
    for n in range(50):
        quotas.produced(("u", f"c{n}"), 1, 0)
        assert len(quotas._states) <= 5
    assert quotas.produced(("u", "c0"), 5000, 0).ms > 0


def test_quota_type_numbers_are_stable() -> None:
    # They say where in shared memory the kinds that were ever set are kept.
    assert list(zip(count(), CLIENT_QUOTA_TYPES, strict=False)) == [(0, P), (1, F), (2, R), (3, M)]


def test_throttles_end_in_order_of_their_end_times() -> None:
    throttled: ThrottleQueue[str] = ThrottleQueue()
    for name, delay_ms in (("a", 10), ("b", 30), ("c", 30), ("d", 20)):
        throttled.hold(name, "Produce", delay_ms)
    assert throttled.size("Produce") == 4
    assert throttled.due(9) == []
    assert throttled.due(10) == ["a"]
    assert throttled.next_ms() == 20
    assert throttled.due(20) == ["d"]
    assert throttled.due(30) == ["b", "c"]
    assert (throttled.size("Produce"), throttled.next_ms()) == (0, None)


def test_throttle_queue_size_is_counted_by_quota_type() -> None:
    throttled: ThrottleQueue[int] = ThrottleQueue()
    assert throttled.hold(1, "Produce", 50)
    assert not throttled.hold(2, "Request", 60)
    assert throttled.hold(3, "Request", 40)
    assert [throttled.size(kind) for kind in ("Produce", "Request", "Fetch")] == [1, 2, 0]
    assert throttled.due(100) == [3, 1, 2]


@given(st.lists(st.integers(0, 100)), st.lists(st.integers(0, 30)))
def test_every_client_is_unthrottled_once_and_in_time(ends: list[int], waits: list[int]) -> None:
    throttled: ThrottleQueue[tuple[int, int]] = ThrottleQueue()
    for number, end_ms in enumerate(ends):
        throttled.hold((end_ms, number), "Fetch", end_ms)
    now_ms, gone = 0, list[int]()
    for wait_ms in [*waits, 100]:
        now_ms += wait_ms
        gone += [end_ms for end_ms, _ in throttled.due(now_ms)]
        assert sorted(gone) == gone == sorted(end for end in ends if end <= now_ms)


def test_disconnected_client_is_removed_from_throttle_queue() -> None:
    throttled: ThrottleQueue[int] = ThrottleQueue()
    throttled.hold(-1, "Produce", 5)
    for number in range(1000):
        throttled.hold(number, "Produce", 10**9)
        throttled.forget(number)
        throttled.forget(number)
    assert len(throttled._ends) == 1
    assert throttled.size("Produce") == 1
    assert throttled.due(10**10) == [-1]
    assert throttled.next_ms() is None
    throttled.hold(-1, "Produce", 7)
    assert throttled.due(7) == [-1]


MUTATION = QuotaType.CONTROLLER_MUTATION


def bucket(make: MakeLedger, *, strict: bool, windows: int = 10) -> Callable[[int, int], int]:
    """Takes permits at a time; the throttle, or -1 for a refusal without looking at it."""
    quotas = ClientQuotaManager(make(10, 1000))
    quotas.set_table(table(MUTATION, (Entity(DEFAULT), 10)))

    def take(permits: int, now_ms: int) -> int:
        quota = MutationQuota(quotas, WHO, windows=windows, window_ms=1000, strict=strict)
        allowed = quota.take(permits, now_ms)
        assert quota.throttle_ms(now_ms + 60_000) == 0
        throttle_ms = quota.throttle_ms(now_ms)
        assert allowed == (throttle_ms == 0 or not strict)
        return throttle_ms

    return take


def test_strict_token_bucket_rejects_once_overdrawn(make: MakeLedger) -> None:
    take = bucket(make, strict=True)
    assert [take(90, 1000), take(90, 1000), take(90, 1000)] == [0, 0, 8000]
    assert take(90, 6000) == 3000
    assert take(90, 9000) == 0


def test_permissive_token_bucket_delays_and_records_all(make: MakeLedger) -> None:
    take = bucket(make, strict=False)
    assert [take(90, 1000), take(90, 1000), take(90, 1000)] == [0, 8000, 17000]
    assert take(0, 6000) == 12000


def test_mutation_throttle_time_decreases_as_time_passes(make: MakeLedger) -> None:
    quotas = ClientQuotaManager(make(10, 1000))
    quotas.set_table(table(MUTATION, (CLIENT, 10)))
    quota = MutationQuota(quotas, WHO, windows=10, window_ms=1000, strict=False)
    for _ in range(2):
        quota.take(90, 0)
    assert [quota.throttle_ms(now_ms) for now_ms in (0, 3000, 9000)] == [8000, 5000, 0]


def test_mutations_without_quota_are_accepted(make: MakeLedger) -> None:
    quotas = ClientQuotaManager(make(10, 1000))
    quota = MutationQuota(quotas, WHO, windows=10, window_ms=1000, strict=True)
    assert all(quota.take(10**6, now) for now in range(10))
    quotas.set_table(table(MUTATION, (Entity(client="other"), 10)))
    assert all(quota.take(10**6, now) for now in range(10))
    assert quota.throttle_ms(0) == 0


# Deferred records ---------------------------------------------------------------------------------


TAGS = Tags("u", "c")
DEFERRED_CLIENT = ("ANONYMOUS", "c")
TIME = list(CLIENT_QUOTA_TYPES).index(QuotaType.REQUEST)
ALL_MEASURED = (ALWAYS_MEASURED,) * 4
PLENTY = (math.inf,) * 4


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
def deferring(request: pytest.FixtureRequest) -> ClientQuotaManager:
    """Of 100 bytes produced and 50 percent of time; 750 and 375 are to spare."""
    made = ClientQuotaManager(request.param(11, 1000))
    made.set_table(deferred_table())
    made.produced(DEFERRED_CLIENT, 0, 0)
    return made


def deferred_table() -> QuotaTable:
    entity = Entity(client="c")
    bounds = {
        QuotaType.PRODUCE: {entity: 100.0},
        QuotaType.REQUEST: {entity: 50.0},
    }
    return QuotaTable(bounds, entity.bit, {})


def defer(deferring: ClientQuotaManager) -> DeferredRecord:
    found = deferring.defer(PRODUCE, DEFERRED_CLIENT)
    assert found is not None
    return found


SMALL = int(deferred_request_max(capacity(100, 11, 1000)))
SMALL_NS = int(deferred_request_max(capacity(50, 11, 1000)) * 10 * MS)


def test_deferred_record_is_completed_once_with_later_request_time(
    deferring: ClientQuotaManager,
) -> None:
    given = defer(deferring)
    assert given.start(SMALL, SMALL_NS, 0)
    assert given.complete(late_ns=5000 * MS - SMALL_NS)
    assert not given.complete()
    deferring.complete_deferred()
    # A thousand is what ten windows may hold.
    assert deferring.produced(DEFERRED_CLIENT, 1000 - SMALL, 0).ms == 0
    assert deferring.produced(DEFERRED_CLIENT, 1, 0).ms == 10
    assert deferring.worked(DEFERRED_CLIENT, 0, 0).ms == 0
    assert deferring.worked(DEFERRED_CLIENT, 10 * MS, 0).ms == 20


def test_deferred_record_can_be_completed_early(deferring: ClientQuotaManager) -> None:
    assert defer(deferring).start(SMALL, 0, 0)
    deferring.complete_deferred()
    assert deferring.deferred is None
    assert deferring.produced(DEFERRED_CLIENT, 1001 - SMALL, 0).ms == 10


def test_large_request_is_not_deferred(deferring: ClientQuotaManager) -> None:
    assert not defer(deferring).start(SMALL + 1, 0, 0)
    assert not defer(deferring).start(0, SMALL_NS + 1000, 0)
    assert deferring.deferred is None


def test_record_is_not_deferred_near_byte_quota(deferring: ClientQuotaManager) -> None:
    deferring.produced(DEFERRED_CLIENT, 749, 0)
    assert defer(deferring).start(0, 0, 0)
    deferring.complete_deferred()
    deferring.produced(DEFERRED_CLIENT, 2, 0)
    assert not defer(deferring).start(0, 0, 0)
    assert deferring.record_bytes_and_time(PRODUCE, DEFERRED_CLIENT, 0, 0, 0) is None
    # This process knows how near it is; until that changes, no record is deferred.
    assert deferring.defer(PRODUCE, DEFERRED_CLIENT) is None
    assert deferring.record_bytes_and_time(PRODUCE, DEFERRED_CLIENT, 0, 0, 12_000) is None
    assert defer(deferring).start(0, 0, 12_000)


def test_record_is_not_deferred_near_request_time_quota(deferring: ClientQuotaManager) -> None:
    deferring.worked(DEFERRED_CLIENT, 3760 * MS, 0)
    assert not defer(deferring).start(0, 0, 0)
    deferring.record_bytes_and_time(PRODUCE, DEFERRED_CLIENT, 0, 0, 0)
    assert deferring.defer(PRODUCE, DEFERRED_CLIENT) is None


def test_record_is_not_deferred_after_quota_change(
    deferring: ClientQuotaManager,
) -> None:
    old = defer(deferring)
    deferring.set_table(deferred_table())
    assert not old.start(0, 0, 0)
    assert (
        deferring.defer(PRODUCE, DEFERRED_CLIENT) is None
    )  # The state of this client is not cached yet.
    deferring.produced(DEFERRED_CLIENT, 0, 0)
    assert defer(deferring).start(0, 0, 0)


def test_record_is_not_deferred_without_quota_or_common_counter_group() -> None:
    quotas = ClientQuotaManager(OracleLedger(11, 1000))
    assert quotas.defer(PRODUCE, DEFERRED_CLIENT) is None
    # A default of the settings counts for its type alone.
    quotas.set_table(QuotaTable(defaults={QuotaType.PRODUCE: 100.0}))
    quotas.produced(DEFERRED_CLIENT, 0, 0)
    assert quotas.defer(PRODUCE, DEFERRED_CLIENT) is None
    # Bytes count for the user with all its clients, time for each client.
    bounds = {
        QuotaType.PRODUCE: {Entity("ANONYMOUS"): 100.0},
        QuotaType.REQUEST: {Entity(client="c"): 50.0},
    }
    both = Entity("ANONYMOUS").bit | Entity(client="c").bit
    quotas.set_table(QuotaTable(bounds, both, {}))
    quotas.produced(DEFERRED_CLIENT, 0, 0)
    assert quotas.defer(PRODUCE, DEFERRED_CLIENT) is None
