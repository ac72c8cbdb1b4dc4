"""Requests are recorded and throttled by the quota manager."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.quotas.entity import DEFAULT, Entity, QuotaTable, Tags
from minibroker.broker.quotas.ledger import QuotaLedger
from minibroker.broker.quotas.manager import (
    EXEMPT,
    FETCH,
    PRODUCE,
    ClientQuotaManager,
    MutationQuota,
    Throttle,
    ThrottleQueue,
    larger,
)
from minibroker.broker.quotas.types import CLIENT_QUOTA_TYPES, INT_MAX, QuotaType
from tests.broker.quotas.conftest import MakeLedger, table
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
