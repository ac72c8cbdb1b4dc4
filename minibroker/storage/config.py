"""The settings of a log: sizes, times and validation.

Owns the shape only: the settings' names, defaults and scopes are the business of
``minibroker.config``, which this must never import, so that a log can be tested with two lines.
Its invariant: immutable; a changed topic config is a new object. Echoes Kafka's ``LogConfig``.

The seam for ``cleanup.policy=compact``: the flag makes keys mandatory, as in Kafka, and switches
nothing else. A cleaner would rewrite sealed segments only, so recovery may go on demanding gapless
offsets of the segments that it scans, and reads already step over a gap to the next batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.compression import Compression
from protocol.records import TimestampType

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
    """The codec batches are stored in; None keeps the producer's."""
    delete: bool = True
    """Whether cleanup.policy has ``delete``; without it only deleted records free space."""
    compact: bool = False
    producer_id_expiration_ms: int = 24 * 3600 * 1000
