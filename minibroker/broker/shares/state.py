"""The stored state of a share partition, and its records in ``__share_group_state``.

Owns the schemas of snapshots and updates, in Kafka's format, and how an update changes a state. It
must never know logs or workers. Keys and values start with their version (int16): 0 for a
snapshot, 1 for an update. Invariants: the batches of a state are in the order of their offsets,
do not overlap, and end at or after the start offset; records that are acquired are never stored.
Kafka's ``ShareGroupOffset``, ``PersisterStateBatchCombiner`` and ``ShareCoordinatorRecordHelpers``.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from minibroker.broker.groups.records import VERSION_BYTES, read_versioned, versioned
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import (
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UUID,
    Uuid,
    uuid_from_text,
    uuid_text,
)

UNKNOWN_OFFSET: Final = -1
"""The start offset before the first fetch of the group has decided it."""

UNCOUNTED: Final = -1
"""The number of completed deliveries in a state of a broker that did not count them."""


class RecordState(enum.IntEnum):
    """The state of a record for a group; the value is that of Kafka's records."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    """The record is written to the dead-letter queue of the group, and archived then."""
    ARCHIVED = 4

    @property
    def is_terminal(self) -> bool:
        """Whether the record is never delivered again."""
        return self is RecordState.ACKNOWLEDGED or self is RecordState.ARCHIVED


class ShareKey(NamedTuple):
    """A partition as a share group has it."""

    group_id: str
    topic_id: Uuid
    partition: int

    @property
    def text(self) -> str:
        """The key by which Kafka finds the coordinator of the state."""
        return f"{self.group_id}:{uuid_text(self.topic_id)}:{self.partition}"


def is_share_key(text: str) -> bool:
    """Whether a text is the key of a share partition: group, topic id and partition."""
    *groups, topic_id, partition = ("", "", *text.split(":"))
    try:
        uuid_from_text(topic_id)
        int(partition)
    except ValueError:
        return False
    return bool(":".join(groups).strip(": "))


class StateBatch(NamedTuple):
    """Consecutive records with the same state and delivery count."""

    first: int
    last: int
    state: int
    deliveries: int
    """The delivery count of each."""


class ShareState(NamedTuple):
    """The state of a share partition. Times are epoch milliseconds."""

    snapshot_epoch: int = 0
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = UNKNOWN_OFFSET
    complete_count: int = 0
    """Records from the start offset on that are never delivered again."""
    create_ms: int = 0
    write_ms: int = 0
    batches: tuple[StateBatch, ...] = ()


class StateUpdate(NamedTuple):
    """A change of a state. Its batches replace what the state has of their offsets."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    complete_count: int
    batches: tuple[StateBatch, ...]

    def apply(self, state: ShareState) -> ShareState:
        """The state after the update."""
        start = state.start_offset if self.start_offset == UNKNOWN_OFFSET else self.start_offset
        leader_epoch = state.leader_epoch if self.leader_epoch == -1 else self.leader_epoch
        return state._replace(
            leader_epoch=leader_epoch,
            start_offset=start,
            complete_count=self.complete_count,
            batches=merged(state.batches, self.batches, start),
        )


def merged(
    batches: Sequence[StateBatch], changes: Iterable[StateBatch], start: int
) -> tuple[StateBatch, ...]:
    """Batches after changes, without those before the start.

    Where batches overlap, the one with the greater delivery count is in force, and with equal
    counts the one with the greater state.
    """
    found = list(batches)
    for change in changes:
        if change.last >= change.first:
            _merge(found, change)
    return tuple(
        batch if batch.first >= start else batch._replace(first=start)
        for batch in found
        if batch.last >= start
    )


def _merge(batches: list[StateBatch], change: StateBatch) -> None:
    low = bisect_left(batches, change.first, key=lambda batch: batch.last)
    high = low
    while high < len(batches) and batches[high].first <= change.last:
        high += 1
    pieces: list[StateBatch] = []
    at = change.first
    for old in batches[low:high]:
        if old.first < change.first:
            _append(pieces, old._replace(last=change.first - 1))
        first, last = max(old.first, change.first), min(old.last, change.last)
        if at < first:
            _append(pieces, change._replace(first=at, last=first - 1))
        winner = change if (change.deliveries, change.state) >= (old.deliveries, old.state) else old
        _append(pieces, winner._replace(first=first, last=last))
        at = last + 1
        if old.last > change.last:
            _append(pieces, old._replace(first=change.last + 1))
    if at <= change.last:
        _append(pieces, change._replace(first=at))
    if low > 0 and pieces and _joins(batches[low - 1], pieces[0]):
        low -= 1
        pieces[0] = pieces[0]._replace(first=batches[low].first)
    if high < len(batches) and _joins(pieces[-1], batches[high]):
        pieces[-1] = pieces[-1]._replace(last=batches[high].last)
        high += 1
    batches[low:high] = pieces


def _append(pieces: list[StateBatch], piece: StateBatch) -> None:
    if pieces and _joins(pieces[-1], piece):
        pieces[-1] = pieces[-1]._replace(last=piece.last)
    else:
        pieces.append(piece)


def _joins(before: StateBatch, after: StateBatch) -> bool:
    return before.last + 1 == after.first and before[2:] == after[2:]


# Records ------------------------------------------------------------------------------------------

SNAPSHOT: Final = 0
UPDATE: Final = 1


class ShareStateKey(Message, versions="0-1"):
    """Key of a snapshot (version 0) or an update (version 1)."""

    group_id: str = field(STRING)
    topic_id: Uuid = field(UUID)
    partition: int = field(INT32)


class StoredStateBatch(Struct):
    """A batch of a state."""

    first_offset: int = field(INT64)
    last_offset: int = field(INT64)
    delivery_state: int = field(INT8)
    delivery_count: int = field(INT16)


class ShareSnapshotValue(Message, versions="0", flexible="0+"):
    """A whole state."""

    snapshot_epoch: int = field(INT32)
    state_epoch: int = field(INT32)
    leader_epoch: int = field(INT32)
    start_offset: int = field(INT64)
    delivery_complete_count: int = field(INT32, tagged="0+", tag=0, default=UNCOUNTED)
    create_timestamp: int = field(INT64)
    write_timestamp: int = field(INT64)
    state_batches: list[StoredStateBatch] = field(array(StoredStateBatch))


class ShareUpdateValue(Message, versions="0", flexible="0+"):
    """A change of a state."""

    snapshot_epoch: int = field(INT32)
    leader_epoch: int = field(INT32)
    start_offset: int = field(INT64)
    delivery_complete_count: int = field(INT32, tagged="0+", tag=0, default=UNCOUNTED)
    state_batches: list[StoredStateBatch] = field(array(StoredStateBatch))


class ShareEntry(NamedTuple):
    """A record: a snapshot, an update, or None for a state that was deleted."""

    key: ShareKey
    value: ShareState | StateUpdate | None

    def encode(self) -> tuple[bytes, bytes | None]:
        """The key and the value of the record."""
        is_update = isinstance(self.value, StateUpdate)
        key = versioned(ShareStateKey(**self.key._asdict()), UPDATE if is_update else SNAPSHOT)
        return key, None if self.value is None else versioned(_stored(self.value), 0)


def decode_share_entry(key: bytes, value: bytes | None) -> ShareEntry | None:
    """Decode a record; None if it is of another kind.

    Raises ``DecodeError`` or ``UnsupportedVersion``.
    """
    kind = int.from_bytes(key[:VERSION_BYTES], "big", signed=True)
    if kind not in (SNAPSHOT, UPDATE):
        return None
    stored = read_versioned(ShareStateKey, key)
    share_key = ShareKey(stored.group_id, stored.topic_id, stored.partition)
    if value is None:
        return ShareEntry(share_key, None) if kind == SNAPSHOT else None
    if kind == SNAPSHOT:
        found = read_versioned(ShareSnapshotValue, value)
        state = ShareState(
            found.snapshot_epoch,
            found.state_epoch,
            found.leader_epoch,
            found.start_offset,
            found.delivery_complete_count,
            found.create_timestamp,
            found.write_timestamp,
            merged((), _batches(found.state_batches), found.start_offset),
        )
        return ShareEntry(share_key, state)
    update = read_versioned(ShareUpdateValue, value)
    return ShareEntry(
        share_key,
        StateUpdate(
            update.snapshot_epoch,
            update.leader_epoch,
            update.start_offset,
            update.delivery_complete_count,
            _batches(update.state_batches),
        ),
    )


def _batches(stored: Iterable[StoredStateBatch]) -> tuple[StateBatch, ...]:
    return tuple(
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in stored
    )


def _stored(value: ShareState | StateUpdate) -> Message:
    batches = [
        StoredStateBatch(
            first_offset=each.first,
            last_offset=each.last,
            delivery_state=int(each.state),
            delivery_count=each.deliveries,
        )
        for each in value.batches
    ]
    if isinstance(value, StateUpdate):
        return ShareUpdateValue(
            snapshot_epoch=value.snapshot_epoch,
            leader_epoch=value.leader_epoch,
            start_offset=value.start_offset,
            delivery_complete_count=value.complete_count,
            state_batches=batches,
        )
    return ShareSnapshotValue(
        snapshot_epoch=value.snapshot_epoch,
        state_epoch=value.state_epoch,
        leader_epoch=value.leader_epoch,
        start_offset=value.start_offset,
        delivery_complete_count=value.complete_count,
        create_timestamp=value.create_ms,
        write_timestamp=value.write_ms,
        state_batches=batches,
    )
