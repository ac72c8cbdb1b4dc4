"""Limits of the transaction coordinator, each with its name, unit and reason.

Limits that are Kafka settings are read from the broker's settings; the others are constants here.
No other module of this package may define a limit. Invariant: every collection that a client can
make grow has one. In Kafka, these are in ``TransactionStateManagerConfig``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from minibroker.broker.settings import (
    TRANSACTION_ABORT_TIMED_OUT_TRANSACTION_CLEANUP_INTERVAL_MS,
    TRANSACTION_MAX_TIMEOUT_MS,
    TRANSACTION_REMOVE_EXPIRED_TRANSACTION_CLEANUP_INTERVAL_MS,
    TRANSACTIONAL_ID_EXPIRATION_MS,
    Settings,
)

TRANSACTIONAL_IDS_MAX: Final = 100_000
"""Transactional ids that one I/O worker coordinates."""

MARKERS_PER_REQUEST_MAX: Final = 500
"""Transactions whose markers are sent in one request; further ones wait for the next."""

MARKER_RETRY_S: Final = 0.1
"""Pause before a marker is sent again, or the end of a transaction is written again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLimits:
    """Settings of the transaction coordinator."""

    timeout_ms_max: int = 15 * 60_000
    id_expiration_ms: int = 7 * 24 * 3_600_000
    abort_interval_s: float = 10.0
    expiry_interval_s: float = 3600.0

    @classmethod
    def from_settings(cls, settings: Settings) -> TransactionLimits:
        abort_ms = settings[TRANSACTION_ABORT_TIMED_OUT_TRANSACTION_CLEANUP_INTERVAL_MS]
        expiry_ms = settings[TRANSACTION_REMOVE_EXPIRED_TRANSACTION_CLEANUP_INTERVAL_MS]
        return cls(
            timeout_ms_max=settings[TRANSACTION_MAX_TIMEOUT_MS],
            id_expiration_ms=settings[TRANSACTIONAL_ID_EXPIRATION_MS],
            abort_interval_s=abort_ms / 1000,
            expiry_interval_s=expiry_ms / 1000,
        )
