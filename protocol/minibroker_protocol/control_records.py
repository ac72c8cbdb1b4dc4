"""Transaction markers: the control batches that end a transaction on a partition.

Owns the layout of a control record's key and value. It must never know producers' states or
offsets. Invariant: a control batch of another kind, of a later version or with damaged records is
never mistaken for a marker. Kafka's ``ControlRecordType`` and ``EndTransactionMarker`` (KIP-98).
"""

from __future__ import annotations

from struct import Struct, error
from typing import Final, NamedTuple

from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import (
    Buffer,
    Record,
    build_batch,
    iter_records,
    parse_batch_header,
)

_KEY: Final = Struct(">hh")
_VALUE: Final = Struct(">hi")
_VERSION: Final = 0
_ABORT: Final = 0
_COMMIT: Final = 1


class EndTransactionMarker(NamedTuple):
    """Outcome of a transaction, and the epoch of the coordinator that decided it."""

    committed: bool
    coordinator_epoch: int


def build_marker(
    producer_id: int, producer_epoch: int, marker: EndTransactionMarker, timestamp_ms: int
) -> bytes:
    """Build the control batch of a marker."""
    key = _KEY.pack(_VERSION, _COMMIT if marker.committed else _ABORT)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return build_batch(
        [Record(timestamp=timestamp_ms, key=key, value=value)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def parse_marker(batch: Buffer) -> EndTransactionMarker | None:
    """Return the marker in a batch, or None if it contains none.

    Raises DecodeError if the batch is a control batch that cannot be read.
    """
    header = parse_batch_header(batch)
    if not (header.is_control and header.record_count):
        return None
    record = next(iter_records(batch))
    try:
        _, kind = _KEY.unpack_from(record.key or b"")
        if kind not in (_ABORT, _COMMIT):
            return None
        _, coordinator_epoch = _VALUE.unpack_from(record.value or b"")
    except error as cause:
        raise DecodeError(f"a control record is too short: {cause}", 0) from cause
    return EndTransactionMarker(kind == _COMMIT, coordinator_epoch)
