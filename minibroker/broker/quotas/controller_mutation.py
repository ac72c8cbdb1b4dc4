"""The controller mutation quota of one request: a token bucket, with a token for each partition.

Owns when a mutation is accepted and how long the client is throttled; the bucket is in the ledger's
counter. It must never read a clock or know a topic. Invariant: a rejected mutation takes no tokens.
Corresponds to Kafka's ``ControllerMutationQuotaManager`` (KIP-599).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from minibroker.broker.quotas.manager import ClientQuotaManager, QuotaCheck, QuotaUser
from minibroker.broker.quotas.rate import java_round
from minibroker.broker.quotas.types import CLIENT_QUOTA_TYPES, INT_MAX, QuotaType

_NUMBER: Final = CLIENT_QUOTA_TYPES.index(QuotaType.CONTROLLER_MUTATION)


class Mutated(NamedTuple):
    """Partitions that one request tried to change, those rejected, and its last check."""

    requested: int
    rejected: int
    strict: bool
    check: QuotaCheck | None
    throttle_ms: int


class MutationQuota:
    """The tokens that one request takes, one for each partition.

    While the bucket is overdrawn, a ``strict`` quota rejects mutations; otherwise the request is
    executed and the client throttled (KIP-599).
    """

    def __init__(
        self,
        quotas: ClientQuotaManager,
        client: QuotaUser,
        *,
        windows: int,
        window_ms: int,
        strict: bool,
    ) -> None:
        self._quotas = quotas
        self._client = client
        self._burst_s = windows * window_ms / 1000
        self._strict = strict
        self._throttle_ms = 0
        self._since_ms = 0
        self._requested = 0
        self._rejected = 0
        self._last_check: QuotaCheck | None = None

    def take(self, permits: int, now_ms: int) -> bool:
        """Take tokens for changes; return whether the changes are accepted."""
        self._requested += permits
        accepted = self._take(permits, now_ms)
        self._rejected += 0 if accepted else permits
        return accepted

    def _take(self, permits: int, now_ms: int) -> bool:
        kind = QuotaType.CONTROLLER_MUTATION
        if not self._quotas.bits[kind]:
            return True
        group, bound = self._quotas.share(kind, self._client, now_ms)
        if bound is None:
            group.add(_NUMBER, permits, now_ms)
            self._last_check = QuotaCheck(kind, group.tags, 0.0, None, 0, now_ms, group.ordinal)
            return True
        burst = bound.value * self._burst_s
        # A strict bucket is checked before tokens are taken, a permissive one afterwards.
        at_once = 0 if self._strict else permits
        left = group.tokens(_NUMBER, bound.value, burst, now_ms, at_once)
        if left < 0:
            self._throttle_ms = min(java_round(-left / bound.value * 1000), INT_MAX)
            self._since_ms = now_ms
            if not self._strict:
                group.add(_NUMBER, permits, now_ms)
            ordinal = group.ordinal
            self._last_check = QuotaCheck(
                kind, group.tags, left, bound, self._throttle_ms, now_ms, ordinal
            )
            return not self._strict
        if self._strict:
            left = group.tokens(_NUMBER, bound.value, burst, now_ms, permits)
        group.add(_NUMBER, permits, now_ms)
        self._last_check = QuotaCheck(kind, group.tags, left, bound, 0, now_ms, group.ordinal)
        return True

    def throttle_ms(self, now_ms: int) -> int:
        """Return the remaining throttle time of the client."""
        return max(0, self._throttle_ms - (now_ms - self._since_ms))

    def mutated(self, now_ms: int) -> Mutated:
        """Return what the request changed, and the resulting throttle time."""
        throttle_ms = self.throttle_ms(now_ms)
        return Mutated(self._requested, self._rejected, self._strict, self._last_check, throttle_ms)
