"""The token bucket of controller mutations, strict and permissive."""

from __future__ import annotations

from collections.abc import Callable

from minibroker.broker.quotas.controller_mutation import MutationQuota
from minibroker.broker.quotas.entity import DEFAULT, Entity
from minibroker.broker.quotas.manager import (
    ClientQuotaManager,
)
from minibroker.broker.quotas.types import QuotaType
from tests.broker.quotas.conftest import MakeLedger, table

M = QuotaType.CONTROLLER_MUTATION
WHO = ("ANONYMOUS", "client1")
CLIENT = Entity(client="client1")


def bucket(make: MakeLedger, *, strict: bool, windows: int = 10) -> Callable[[int, int], int]:
    """Takes permits at a time; the throttle, or -1 for a refusal without looking at it."""
    quotas = ClientQuotaManager(make(10, 1000))
    quotas.set_table(table(M, (Entity(DEFAULT), 10)))

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
    quotas.set_table(table(M, (CLIENT, 10)))
    quota = MutationQuota(quotas, WHO, windows=10, window_ms=1000, strict=False)
    for _ in range(2):
        quota.take(90, 0)
    assert [quota.throttle_ms(now_ms) for now_ms in (0, 3000, 9000)] == [8000, 5000, 0]


def test_mutations_without_quota_are_accepted(make: MakeLedger) -> None:
    quotas = ClientQuotaManager(make(10, 1000))
    quota = MutationQuota(quotas, WHO, windows=10, window_ms=1000, strict=True)
    assert all(quota.take(10**6, now) for now in range(10))
    quotas.set_table(table(M, (Entity(client="other"), 10)))
    assert all(quota.take(10**6, now) for now in range(10))
    assert quota.throttle_ms(0) == 0
