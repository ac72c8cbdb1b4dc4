"""The result of an append to a log.

Owns the shape of the result, also that of a batch that was appended before. It must never know logs
or files. Invariant: the producer of a duplicate gets the offsets of the first append. Kafka's
``LogAppendInfo``.
"""

from __future__ import annotations

from typing import NamedTuple

from minibroker.broker.log.producers import BatchMetadata


class Appended(NamedTuple):
    """Result of an append. ``log_append_time_ms`` is -1 if the topic keeps create times."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool


def appended_before(batch: BatchMetadata, log_start_offset: int) -> Appended:
    """Return the result of a duplicate: offsets of the earlier append, and its batch's largest
    timestamp, as in Kafka.
    """
    return Appended(
        batch.first_offset, batch.last_offset, batch.timestamp, log_start_offset, duplicate=True
    )
