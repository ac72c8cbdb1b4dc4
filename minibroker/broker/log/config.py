"""The settings of a log: sizes, times and validation.

Owns the values of one log. Names, defaults and scopes of the settings belong to
``minibroker.broker.settings``, which this must never import, so that a log can be tested with two
lines. Invariant: immutable; a changed topic config is a new object. Echoes Kafka's ``LogConfig``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from minibroker_protocol.compression import Compression
from minibroker_protocol.records import TimestampType

UNBOUNDED: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Each field is a topic config of Kafka with a similar name; bytes, ms, and -1 for no limit."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 3600 * 1000
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 * 1024 * 1024
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    file_delete_delay_ms: int = 60_000
    max_message_bytes: int = 1_048_588
    flush_messages: int = UNBOUNDED
    flush_ms: int = UNBOUNDED
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    timestamp_before_max_ms: int = UNBOUNDED
    timestamp_after_max_ms: int = 3_600_000
    compression: Compression | None = None
    """The codec of stored batches; None keeps the producer's."""
    delete: bool = True
    """Whether cleanup.policy has ``delete``; without it only DeleteRecords frees space."""
    compact: bool = False
    """Whether cleanup.policy has ``compact``: keys are mandatory, and the log is cleaned."""
    delete_retention_ms: int = 24 * 3600 * 1000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = UNBOUNDED
    min_cleanable_dirty_ratio: float = 0.5
    producer_id_expiration_ms: int = 24 * 3600 * 1000
    unknown_producer_error: int = 0
    """Error for a batch of an unknown producer in the middle of its sequence; 0 accepts it."""
