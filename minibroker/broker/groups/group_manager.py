"""All groups that one I/O worker coordinates, of every type, and the offsets logs that store them.

Owns the table of group types, the set of groups with one deadline for each, and writes each change
to an offsets log before it is acknowledged. It must never know waiting requests, a clock, why a
group has a deadline, or a rule of one type. Invariants: replaying the offsets logs gives the
current groups, except for rebalances in progress and members that have not received an assignment;
a group is due at or before its earliest deadline, and the memory is bounded by the number of
groups, however often their deadlines move. Kafka's counterparts are ``GroupMetadataManager`` (3.x),
which also loads and cleans up, ``Group.GroupType`` and ``SystemTimer``.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar
from uuid import UUID

from minibroker.broker.groups.classic_group import ClassicGroup
from minibroker.broker.groups.consumer_group import ConsumerGroup
from minibroker.broker.groups.consumer_records import CONSUMER, ConsumerGroupRecord
from minibroker.broker.groups.conversion import (
    ConversionRejected,
    consumer_group_problem,
    consumer_group_records,
)
from minibroker.broker.groups.events import GroupRecord, Moment
from minibroker.broker.groups.group import (
    EXTRA_TIMERS_MAX,
    GROUPS_MAX,
    OFFSETS_PER_GROUP_MAX,
    TIMERS_PER_GROUP_MAX,
    Group,
    GroupLimits,
)
from minibroker.broker.groups.offsets import CommittedOffset, PendingOffsets
from minibroker.broker.groups.records import CLASSIC, Entry, GroupEntry, OffsetEntry
from minibroker.broker.groups.share_group import ShareGroup
from minibroker.broker.groups.share_records import SHARE
from minibroker.broker.groups.state_log import (
    OffsetsLog,
    OffsetsTransaction,
    StateLogs,
    StoredGroup,
    apply_entries,
    commit_error,
    group_error,
)
from minibroker.broker.groups.streams_group import StreamsGroup
from minibroker.broker.groups.streams_records import STREAMS
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.metadata.image import OFFSETS_TOPIC, Image
from minibroker_protocol.errors import ErrorCode

_logger = logging.getLogger(__name__)

GroupT = TypeVar("GroupT", bound=Group)

GROUP_TYPES: Final[dict[str, type[Group]]] = {
    CLASSIC: ClassicGroup,
    CONSUMER: ConsumerGroup,
    SHARE: ShareGroup,
    STREAMS: StreamsGroup,
}
"""The group types that this coordinator supports, by Kafka's name."""


class GroupManager(StateLogs[OffsetsLog]):
    """Groups by id. Every change that must survive a restart is made by a method of this class.

    ``open_partition`` returns a partition of ``__consumer_offsets``. It is called once per
    partition, on first use. ``random_bits`` returns the given number of random bits.
    """

    def __init__(
        self,
        limits: GroupLimits,
        *,
        partitions: int,
        open_partition: Callable[[int], Partition],
        random_bits: Callable[[int], int],
    ) -> None:
        super().__init__(OFFSETS_TOPIC, partitions, lambda at: OffsetsLog(open_partition(at)))
        self.limits = limits
        self.groups: dict[str, Group] = {}
        self.timers = GroupTimers()
        self._random_bits = random_bits
        self._stored: dict[str, StoredGroup] = {}
        self._pending: defaultdict[int, PendingOffsets] = defaultdict(PendingOffsets)

    def _make_id(self) -> str:
        return str(UUID(int=self._random_bits(128), version=4))

    # ------------------------------------------------------- loading, creating and deleting

    def load(self, partitions: Iterable[int], time: Moment) -> list[Group]:
        """Load the groups of the partitions. The caller must pass ``Restored`` to each of them.

        A partition whose log cannot be opened remains in ``unloaded``.
        """
        loaded = []
        for partition, offsets_log in self.open_logs(partitions):
            pending = self._pending[partition] = PendingOffsets()
            for group_id, stored in apply_entries(offsets_log.replay(), pending).items():
                loaded.append(self._restore(group_id, stored, time))
        return loaded

    def _restore(self, group_id: str, stored: StoredGroup, time: Moment) -> Group:
        group_type = GROUP_TYPES[stored.group_type]
        if not stored.records:
            group = group_type(group_id, self.limits, self._make_id, time)
        else:
            records = tuple(stored.records.values())
            group = group_type.restore(group_id, records, self.limits, self._make_id, time)
            self._stored[group_id] = stored
        group.offsets = stored.offsets
        self.groups[group_id] = group
        return group

    def find(self, group_id: str, kind: type[GroupT]) -> GroupT | None:
        """The group, or None if it does not exist or is of another type."""
        group = self.groups.get(group_id)
        return group if isinstance(group, kind) else None

    def with_prefix(self, prefix: str) -> list[Group]:
        """The groups whose ids have a prefix."""
        return [group for group in self.groups.values() if group.group_id.startswith(prefix)]

    def create(self, group_id: str, time: Moment, group_type: str = CLASSIC) -> Group | None:
        """Create an empty group; None if there are too many. It is stored on its first change."""
        if not self._has_room_for(group_id):
            return None
        group = self.groups[group_id] = GROUP_TYPES[group_type](
            group_id, self.limits, self._make_id, time
        )
        return group

    def _has_room_for(self, group_id: str) -> bool:
        if len(self.groups) < GROUPS_MAX or group_id in self.groups:
            return True
        _logger.warning(
            "group %r is rejected: this worker coordinates the maximum of %d groups",
            group_id,
            GROUPS_MAX,
        )
        return False

    def consumer_group(self, group_id: str, image: Image, time: Moment) -> ConsumerGroup | None:
        """The consumer group that a first member makes, or None if there are too many groups.

        It is new, or a classic group becomes it, and it is not among the groups yet.
        Its first write contains the records that make it. Raises ConversionRejected.
        """
        existing = self.groups.get(group_id)
        if existing is not None and not isinstance(existing, ClassicGroup):
            raise ConversionRejected(f"Group {group_id} is not a consumer group.")
        if not self._has_room_for(group_id):
            return None
        records: list[GroupRecord] = []
        if existing is not None and existing.is_idle:
            records = [GroupEntry(group_id, None)]
        elif existing is not None:
            problem = consumer_group_problem(existing)
            if problem:
                raise ConversionRejected(problem)
            records = consumer_group_records(existing, image)
        own = [each for each in records if isinstance(each, ConsumerGroupRecord)]
        group = ConsumerGroup.restore(group_id, own, self.limits, self._make_id, time)
        group.unwritten = tuple(records)
        if existing is not None:
            group.offsets = existing.offsets
        return group

    def streams_group(self, group_id: str, time: Moment) -> StreamsGroup | None:
        """The streams group that a first member makes, or None if there are too many groups.

        It is new, or takes the place of a classic group without members, whose offsets it has. It
        is not among the groups yet.
        """
        if not self._has_room_for(group_id):
            return None
        group = StreamsGroup(group_id, self.limits, self._make_id, time)
        existing = self.groups.get(group_id)
        if existing is not None:
            group.unwritten = (GroupEntry(group_id, None),)
            group.offsets = existing.offsets
        return group

    def clear_group(self, group: ConsumerGroup | StreamsGroup, time: Moment) -> ErrorCode:
        """Replace a group without members by a classic group, which has its offsets."""
        error = self.store(group, group.data.tombstones(), time.wall_ms)
        if error is ErrorCode.NONE:
            classic = ClassicGroup(group.group_id, self.limits, self._make_id, time)
            classic.offsets = group.offsets
            self.groups[group.group_id] = classic
        return error

    def delete(self, group: Group, now_ms: int) -> ErrorCode:
        """Delete a group and its offsets. On an error, the group remains."""
        entries = list(self._stored_group(group).tombstones(group.group_id))
        pending = list(self.pending_of(group.group_id).of_group(group.group_id))
        entries += [
            OffsetEntry(group.group_id, *each, None)
            for each in pending
            if group.offsets.get(*each) is None
        ]
        error = self._write(group, entries, now_ms)
        if error is ErrorCode.NONE:
            self._discard_pending(group, pending)
            self.groups.pop(group.group_id, None)
            self.timers.forget(group.group_id)
            self._stored.pop(group.group_id, None)
        return group_error(error)

    def remove_all(self, *, clear: bool) -> None:
        """Remove all groups and release the logs, which are cleared or kept."""
        self.groups.clear()
        self.timers.clear()
        self._stored.clear()
        self._pending.clear()
        self.release_logs(clear=clear)

    # ----------------------------------------------------------------------------- changes

    def store(self, group: Group, records: Sequence[GroupRecord], now_ms: int) -> ErrorCode:
        """Write records of the group; return the error for its members."""
        error = self._write(group, records, now_ms)
        if error is ErrorCode.NONE:
            stored = self._stored.setdefault(group.group_id, StoredGroup())
            for record in records:
                stored.apply(record)
        return group_error(error)

    def commit(
        self, group: Group, offsets: Mapping[tuple[str, int], CommittedOffset], now_ms: int
    ) -> dict[tuple[str, int], ErrorCode]:
        """Write all offsets in one batch, or none; return an error for each."""
        if not self._has_room(group, offsets):
            return dict.fromkeys(offsets, ErrorCode.POLICY_VIOLATION)
        entries = [OffsetEntry(group.group_id, *key, value) for key, value in offsets.items()]
        error = commit_error(self._write(group, entries, now_ms))
        if error is ErrorCode.NONE:
            pending = self.pending_of(group.group_id)
            for (topic, partition), committed in offsets.items():
                group.offsets.put(topic, partition, committed)
                pending.committed((group.group_id, topic, partition))
        return dict.fromkeys(offsets, error)

    def commit_pending(
        self,
        group: Group,
        offsets: Mapping[tuple[str, int], CommittedOffset],
        transaction: OffsetsTransaction,
        now_ms: int,
    ) -> dict[tuple[str, int], ErrorCode]:
        """Write offsets that are in force when the transaction commits; an error for each."""
        if not self._has_room(group, offsets):
            return dict.fromkeys(offsets, ErrorCode.POLICY_VIOLATION)
        entries = [OffsetEntry(group.group_id, *key, value) for key, value in offsets.items()]
        error = commit_error(self._write(group, entries, now_ms, transaction))
        if error is ErrorCode.NONE:
            pending = self.pending_of(group.group_id)
            for key, committed in offsets.items():
                pending.add(transaction.producer_id, (group.group_id, *key), committed)
        return dict.fromkeys(offsets, error)

    def end_transaction(
        self, partition: int, producer_id: int, time: Moment, *, committed: bool
    ) -> None:
        """Put the pending offsets of a producer in force, or remove them; the marker is written."""
        pending = self._pending[partition]
        if not committed:
            pending.abort(producer_id)
            return
        for (group_id, topic, index), offset in pending.commit(producer_id):
            group = self.groups.get(group_id) or self.create(group_id, time)
            if group is not None:
                group.offsets.put(topic, index, offset)

    def pending_of(self, group_id: str) -> PendingOffsets:
        """The pending offsets of the group's partition."""
        return self._pending[self.partition_of(group_id)]

    def _discard_pending(self, group: Group, keys: Iterable[tuple[str, int]]) -> None:
        pending = self.pending_of(group.group_id)
        for key in keys:
            pending.discard((group.group_id, *key))

    def _has_room(self, group: Group, offsets: Collection[tuple[str, int]]) -> bool:
        pending = self.pending_of(group.group_id)
        count = len(group.offsets) + pending.count(group.group_id)
        if count + len(offsets) <= OFFSETS_PER_GROUP_MAX:
            return True
        if count + sum(group.offsets.get(*key) is None for key in offsets) <= OFFSETS_PER_GROUP_MAX:
            return True
        _logger.warning(
            "group %r may not have more than %d offsets", group.group_id, OFFSETS_PER_GROUP_MAX
        )
        return False

    def delete_offsets(
        self, group: Group, keys: Iterable[tuple[str, int]], now_ms: int
    ) -> ErrorCode:
        """Delete the offsets that exist."""
        pending = self.pending_of(group.group_id)
        existing = [
            key
            for key in keys
            if group.offsets.get(*key) is not None or pending.is_pending((group.group_id, *key))
        ]
        entries = [OffsetEntry(group.group_id, *key, None) for key in existing]
        error = commit_error(self._write(group, entries, now_ms))
        if error is ErrorCode.NONE:
            for topic, partition in existing:
                group.offsets.remove(topic, partition)
            self._discard_pending(group, existing)
        return error

    def expire(self, group: Group, now_ms: int) -> bool:
        """Delete the expired offsets of a group; False if the group itself can be deleted."""
        pending = self.pending_of(group.group_id)
        expired = [
            key
            for key in group.expired_offsets(now_ms)
            if not pending.is_pending((group.group_id, *key))
        ]
        if expired:
            self.delete_offsets(group, expired, now_ms)
            _logger.info("group %r: %d offsets have expired", group.group_id, len(expired))
        has_offsets = len(group.offsets) > 0 or pending.has_group(group.group_id)
        return not group.is_idle or has_offsets

    # ------------------------------------------------------------------------------ writing

    def _write(
        self,
        group: Group,
        entries: Sequence[Entry],
        now_ms: int,
        transaction: OffsetsTransaction | None = None,
    ) -> ErrorCode:
        if not entries:
            return ErrorCode.NONE
        try:
            offsets_log = self.log_of(group.group_id)
            if transaction is None:
                offsets_log.write(entries, now_ms=now_ms)
            else:
                offsets_log.write_pending(entries, transaction, now_ms=now_ms)
        except LogError as error:
            _logger.warning("group %r could not be written: %s", group.group_id, error)
            return error.code
        except Exception:
            # Without an error code, the members would wait for this generation until a timeout.
            _logger.exception("group %r could not be written", group.group_id)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return ErrorCode.NONE

    def _stored_group(self, group: Group) -> StoredGroup:
        """The group as the offsets log must store it, without a rebalance in progress."""
        stored = self._stored.get(group.group_id) or StoredGroup()
        stored.offsets = group.offsets
        return stored


class GroupTimers:
    """The next deadline of each group. A timer that fires too early is harmless."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, str]] = []
        self._scheduled: dict[str, float] = {}

    def __len__(self) -> int:
        """Number of entries, with those that were replaced."""
        return len(self._entries)

    @property
    def next(self) -> float:
        """A time before which no group is due; infinite without groups."""
        return self._entries[0][0] if self._entries else math.inf

    def schedule(self, group_id: str, deadline: float | None) -> bool:
        """Note a deadline; return whether it is the next one of all groups."""
        scheduled = self._scheduled.get(group_id)
        if deadline is None or (scheduled is not None and scheduled <= deadline):
            return False
        self._scheduled[group_id] = deadline
        heapq.heappush(self._entries, (deadline, group_id))
        if len(self._entries) > TIMERS_PER_GROUP_MAX * len(self._scheduled) + EXTRA_TIMERS_MAX:
            self._entries = [(at, each) for each, at in self._scheduled.items()]
            heapq.heapify(self._entries)
        return self._entries[0][0] == deadline

    def take_due(self, now: float) -> str | None:
        """Remove and return a group that is due; None if there is none."""
        while self._entries and self._entries[0][0] <= now:
            deadline, group_id = heapq.heappop(self._entries)
            if self._scheduled.get(group_id) == deadline:  # Not replaced by another one.
                del self._scheduled[group_id]
                return group_id
        return None

    def forget(self, group_id: str) -> None:
        """Remove the deadline of a group."""
        self._scheduled.pop(group_id, None)

    def clear(self) -> None:
        """Remove all deadlines."""
        self._entries.clear()
        self._scheduled.clear()
