"""The group coordinator of an I/O worker: waiting requests, the timer and writes.

Owns the waiting requests, the timer, and the order of writing before answering. The rules are in
the group types, storage and deadlines in ``group_manager``. It must never make decisions about a
group itself. Invariant: a request is answered once, and only after the changes that it acknowledges
are in an offsets log; the answer to a cancelled request is discarded. Kafka's counterpart is
``GroupCoordinatorService``, but without its threads and purgatories.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from random import Random
from typing import Any, TypeVar

import trio

from minibroker.broker.groups.classic_group import ClassicGroup
from minibroker.broker.groups.consumer_group import ConsumerGroup
from minibroker.broker.groups.consumer_member import JOIN_EPOCH
from minibroker.broker.groups.conversion import ConversionRejected
from minibroker.broker.groups.description import (
    ConsumerGroupDescription,
    GroupDescription,
    GroupOverview,
    ShareGroupDescription,
    StreamsGroupDescription,
    describe,
    describe_consumer_group,
    describe_share_group,
    describe_streams_group,
    overview,
)
from minibroker.broker.groups.events import (
    NO_WAITER,
    ActionTaken,
    CommitRequested,
    CommitResult,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    Decision,
    Event,
    GroupAction,
    GroupAnswer,
    GroupReplaced,
    HeartbeatReceived,
    HeartbeatResult,
    HoldRebalance,
    JoinRequested,
    JoinResult,
    LeaveRequested,
    LeaveResult,
    LogLine,
    Moment,
    Persist,
    Persisted,
    RebalanceReleased,
    Removed,
    Restored,
    Result,
    ShareHeartbeat,
    ShareHeartbeatResult,
    SharesChanged,
    StreamsHeartbeat,
    StreamsHeartbeatResult,
    SyncRequested,
    SyncResult,
    TimePassed,
    TopologyDescribed,
    Waiter,
)
from minibroker.broker.groups.group import (
    LOG_LINE_CHARACTERS_MAX,
    EpochGroup,
    Group,
    GroupLimits,
)
from minibroker.broker.groups.group_manager import GroupManager
from minibroker.broker.groups.hooks import NO_HOLD_POINTS, HoldPoints, OnState
from minibroker.broker.groups.offsets import CommittedOffset, OffsetTable
from minibroker.broker.groups.share_group import ShareGroup
from minibroker.broker.groups.share_records import SHARE
from minibroker.broker.groups.state_log import OffsetsTransaction
from minibroker.broker.groups.states import StateTransition
from minibroker.broker.groups.streams_group import StreamsGroup
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.metadata.image import OFFSETS_TOPIC, Image
from minibroker_protocol.errors import ErrorCode

_logger = logging.getLogger(__name__)

_NO_METADATA = Image()

Heartbeat = ConsumerHeartbeat | ShareHeartbeat | StreamsHeartbeat
G = TypeVar("G", bound=EpochGroup[Any])
ResultT = TypeVar("ResultT", bound=Result)
HeartbeatT = TypeVar("HeartbeatT", ConsumerHeartbeatResult, StreamsHeartbeatResult)


class GroupService:
    """Groups of one I/O worker. Call ``load`` first, then start ``run``.

    ``now`` returns monotonic seconds of the trio clock, ``wall_ms`` epoch milliseconds.
    ``open_partition`` opens a partition of ``__consumer_offsets`` on first use. ``image`` returns
    the current cluster metadata.
    """

    def __init__(
        self,
        limits: GroupLimits,
        *,
        partitions: int,
        open_partition: Callable[[int], Partition],
        now: Callable[[], float],
        wall_ms: Callable[[], int],
        random: Random,
        hold_points: HoldPoints = NO_HOLD_POINTS,
        image: Callable[[], Image] = lambda: _NO_METADATA,
    ) -> None:
        self.limits = limits
        self.on_state: OnState | None = None
        self.rebalances: Counter[str] = Counter()
        """Generations and group epochs that began here, by the type of the group."""
        self._manager = GroupManager(
            limits,
            partitions=partitions,
            open_partition=open_partition,
            random_bits=random.getrandbits,
        )
        self._now = now
        self._wall_ms = wall_ms
        self._hold_points = hold_points
        self._image = image
        self._waiter = 0
        self._parked: dict[Waiter, trio.Event] = {}
        self._answers: dict[Waiter, Result] = {}
        self.creating_states: dict[str, trio.Event] = {}
        """Share groups whose partitions are being given states."""
        self._cleanup_at = now() + limits.retention_check_interval_s
        self._wakeup = trio.Event()
        self.can_store = True
        """Whether the storage accepts writes. If not, joins get COORDINATOR_LOAD_IN_PROGRESS, after
        which clients wait: members of a generation that cannot be stored would rejoin in a loop.
        """

    # ------------------------------------------------------------------- loading and unloading

    def load(self, partitions: Iterable[int]) -> int:
        """Load the groups of the partitions; return the number of groups.

        A partition whose log cannot be opened remains in ``unloaded``. ``load`` it again later.
        """
        groups = self._manager.load(partitions, self._moment())
        for group in groups:
            self._handle_event(group, Restored())
        return len(groups)

    @property
    def unloaded(self) -> Mapping[int, str]:
        """Partitions that could not be loaded, each with the error. Until they are loaded, requests
        for their groups are answered with COORDINATOR_LOAD_IN_PROGRESS.
        """
        return self._manager.unloaded

    def has(self, group_id: str) -> bool:
        """Whether the group exists here."""
        return group_id in self._manager.groups

    def missing_group_error(self, group_id: str) -> ErrorCode:
        """The error for a group that was not found."""
        if self._manager.is_loaded(group_id):
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    async def run(self) -> None:
        """Run the timers of all groups until cancelled."""
        while True:
            with trio.move_on_at(min(self._manager.timers.next, self._cleanup_at)):
                await self._wakeup.wait()
            self._wakeup = trio.Event()
            self._run_due()

    def reset(self, *, keep_logs: bool = False) -> int:
        """Remove all groups and release the logs, cleared or kept; return the number of groups.

        Waiting requests are answered with NOT_COORDINATOR, so clients look up their coordinator.
        """
        groups = list(self._manager.groups.values())
        for group in groups:
            self._handle_event(group, Removed())
        self._manager.remove_all(clear=not keep_logs)
        return len(groups)

    # ------------------------------------------------------------------------ member requests

    def join(self, group_id: str, event: JoinRequested) -> JoinResult | Awaitable[JoinResult]:
        """Join the group. Returns an awaitable if the member must wait for the next generation.

        This and the following methods set the waiter of the event.
        """
        error = self.limits.join_error(group_id, event)
        loaded = self._manager.is_loaded(group_id)
        if error is ErrorCode.NONE and not (loaded and self.can_store):
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        group = self._manager.groups.get(group_id)
        if error is ErrorCode.NONE and group is None:
            if event.member_id != "":
                error = ErrorCode.UNKNOWN_MEMBER_ID
            else:
                group = self._manager.create(group_id, self._moment())
                error = ErrorCode.POLICY_VIOLATION if group is None else error
        elif (
            error is ErrorCode.NONE
            and isinstance(group, (ConsumerGroup, StreamsGroup))
            and group.is_idle
        ):
            error = self._manager.clear_group(group, self._moment())
            group = self._manager.groups[group_id]
        elif error is ErrorCode.NONE and group is not None and not group.takes_classic_requests:
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if error is not ErrorCode.NONE or group is None:
            return JoinResult(error=error, member_id=event.member_id)
        return self._request(group, event, JoinResult)

    def sync(self, group_id: str, event: SyncRequested) -> SyncResult | Awaitable[SyncResult]:
        """The member's assignment, or an awaitable that waits for it."""
        group, error = self._find(group_id)
        if group is None:
            return SyncResult(error=error)
        return self._request(group, event, SyncResult)

    def heartbeat(self, group_id: str, event: HeartbeatReceived) -> HeartbeatResult:
        """Handle a heartbeat. There is no error while the group is not loaded, as in Kafka."""
        group, error = self._find(group_id)
        if group is None:
            loading = error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return HeartbeatResult(ErrorCode.NONE if loading else error)
        return self._request_immediate(group, event, HeartbeatResult)

    def leave(self, group_id: str, event: LeaveRequested) -> LeaveResult:
        group, error = self._find(group_id)
        if group is None and error is ErrorCode.UNKNOWN_MEMBER_ID:
            return LeaveResult(ErrorCode.NONE, tuple((member, error) for member in event.members))
        if group is None:
            return LeaveResult(error)
        return self._request_immediate(group, event, LeaveResult)

    def consumer_heartbeat(
        self, group_id: str, event: ConsumerHeartbeat
    ) -> ConsumerHeartbeatResult:
        """Handle a heartbeat of a consumer group, which a joining member may create or convert."""
        joins = event.member_epoch == JOIN_EPOCH
        if not self._manager.is_loaded(group_id) or (joins and not self.can_store):
            return ConsumerHeartbeatResult(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        existing = self._manager.groups.get(group_id)
        if existing is not None and (isinstance(existing, ConsumerGroup) or not joins):
            return self._request_immediate(existing, event, ConsumerHeartbeatResult)
        if not joins:
            leaves = event.member_epoch < JOIN_EPOCH
            text = f"{'Group' if leaves else 'Consumer group'} {group_id} not found."
            return ConsumerHeartbeatResult(ErrorCode.GROUP_ID_NOT_FOUND, text)
        try:
            group = self._manager.consumer_group(group_id, self._image(), self._moment())
        except ConversionRejected as rejected:
            return ConsumerHeartbeatResult(ErrorCode.GROUP_ID_NOT_FOUND, str(rejected))
        if group is None:
            return ConsumerHeartbeatResult(ErrorCode.POLICY_VIOLATION)
        return self._begin(group, event, ConsumerHeartbeatResult)

    def describe_topology(self, group_id: str, event: TopologyDescribed) -> ActionTaken:
        """Keep the description of the topology of a streams group."""
        group = self._manager.groups.get(group_id)
        if group is not None:
            return self._request_immediate(group, event, ActionTaken)
        error = self.missing_group_error(group_id)
        return ActionTaken(error, f"Group {group_id} not found.")

    def streams_heartbeat(self, group_id: str, event: StreamsHeartbeat) -> StreamsHeartbeatResult:
        """Handle a heartbeat of a streams group, which a joining member may create."""
        joins = event.member_epoch == JOIN_EPOCH
        if not self._manager.is_loaded(group_id) or (joins and not self.can_store):
            return StreamsHeartbeatResult(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        existing = self._manager.groups.get(group_id)
        is_replaced = joins and isinstance(existing, ClassicGroup) and existing.is_idle
        if existing is not None and not is_replaced:
            return self._request_immediate(existing, event, StreamsHeartbeatResult)
        if not joins:
            leaves = event.member_epoch < JOIN_EPOCH
            text = f"{'Group' if leaves else 'Streams group'} {group_id} not found."
            return StreamsHeartbeatResult(ErrorCode.GROUP_ID_NOT_FOUND, text)
        group = self._manager.streams_group(group_id, self._moment())
        if group is None:
            return StreamsHeartbeatResult(ErrorCode.POLICY_VIOLATION)
        return self._begin(group, event, StreamsHeartbeatResult)

    def _begin(
        self,
        group: ConsumerGroup | StreamsGroup,
        event: ConsumerHeartbeat | StreamsHeartbeat,
        kind: type[HeartbeatT],
    ) -> HeartbeatT:
        """Let a first member join a group, which takes the place of any other if it may."""
        existing = self._manager.groups.get(group.group_id)
        self._handle_event(group, event, reports=False)
        result = self._answers.pop(NO_WAITER)
        assert isinstance(result, kind)
        if result.error is ErrorCode.NONE:
            self._manager.groups[group.group_id] = group
            if existing is not None:
                self._handle_event(existing, Removed(ErrorCode.REBALANCE_IN_PROGRESS))
            report_transitions(self.on_state, group, None)
            self._handle_event(group, Restored())
        return result

    def share_heartbeat(self, group_id: str, event: ShareHeartbeat) -> ShareHeartbeatResult:
        """Handle a heartbeat of a share group, which a joining member may create."""
        joins = event.member_epoch == JOIN_EPOCH
        if not self._manager.is_loaded(group_id) or (joins and not self.can_store):
            return ShareHeartbeatResult(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        group = self._manager.groups.get(group_id)
        if group is None and not joins:
            leaves = event.member_epoch < JOIN_EPOCH
            text = f"{'Group' if leaves else 'Share group'} {group_id} not found."
            return ShareHeartbeatResult(ErrorCode.GROUP_ID_NOT_FOUND, text)
        if group is None:
            group = self._manager.create(group_id, self._moment(), SHARE)
            if group is None:
                return ShareHeartbeatResult(ErrorCode.POLICY_VIOLATION)
        return self._request_immediate(group, event, ShareHeartbeatResult)

    def extend_session(
        self, group_id: str, group_type: type[G], event: Heartbeat
    ) -> tuple[G, Callable[[], bool]] | None:
        """Extend the session of a member whose heartbeat has no other effect.

        Return its group, and a function for the next time that the member sends this heartbeat:
        while the image is the same, it does the same in less time, or returns False and does
        nothing if the heartbeat would have another effect or answer. For any other heartbeat
        nothing is done, and None is returned.
        """
        group = self._manager.find(group_id, group_type)
        if group is None:
            return None
        group.image, group.time = self._image(), self._moment()
        if not group.only_extends_session(event):
            return None
        self._extend_session(group, event.member_id)
        member = group.data.members[event.member_id]
        return group, partial(self._extend_again, group_id, group_type, member, event)

    def _extend_again(
        self, group_id: str, group_type: type[EpochGroup[Any]], member: Any, event: Heartbeat
    ) -> bool:
        """Extend a session if nothing is due; the member never changes, so the rest is known."""
        group = self._manager.find(group_id, group_type)
        if group is None or group.data.members.get(event.member_id) is not member:
            return False
        group.image, group.time = self._image(), self._moment()
        if not group.expects_only(member, event):
            return False
        self._extend_session(group, event.member_id)
        return True

    def _extend_session(self, group: EpochGroup[Any], member_id: str) -> None:
        group.extend_session(member_id)
        if self._manager.timers.schedule(group.group_id, group.next_deadline):
            self._wakeup.set()

    def share_group(self, group_id: str, *, creates: bool = False) -> ShareGroup | ErrorCode:
        """A share group, to be read, or the error; an administrator may create it."""
        group = self._manager.groups.get(group_id)
        if group is None and creates and self._manager.is_loaded(group_id):
            group = self._manager.create(group_id, self._moment(), SHARE)
            if group is None:
                return ErrorCode.POLICY_VIOLATION
        if group is None:
            return self.missing_group_error(group_id)
        if not isinstance(group, ShareGroup):
            return ErrorCode.GROUP_ID_NOT_FOUND
        group.image = self._image()
        return group

    def change_shares(self, group: ShareGroup, event: SharesChanged) -> ErrorCode:
        """Note a change of the partitions that have a state for a share group."""
        return self._request_immediate(group, event, ActionTaken).error

    def _find(self, group_id: str) -> tuple[Group | None, ErrorCode]:
        if not group_id:
            return None, ErrorCode.INVALID_GROUP_ID
        if not self._manager.is_loaded(group_id):
            return None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        group = self._manager.groups.get(group_id)
        if group is not None and not group.takes_classic_requests:
            group = None
        return group, ErrorCode.UNKNOWN_MEMBER_ID

    # ------------------------------------------------------------------------------- offsets

    def commit(
        self,
        group_id: str,
        event: CommitRequested,
        offsets: Mapping[tuple[str, int], CommittedOffset],
    ) -> dict[tuple[str, int], ErrorCode]:
        """Commit offsets by topic and partition; return an error for each.

        All errors are GROUP_ID_NOT_FOUND if a member commits to a group that does not exist. A
        commit without group management (a negative generation) creates the group.
        """
        accepted = self._with_valid_metadata(offsets)
        group = self._validate_commit(group_id, event, accepted)
        if isinstance(group, ErrorCode):
            return dict.fromkeys(offsets, group)
        errors = dict.fromkeys(offsets, ErrorCode.OFFSET_METADATA_TOO_LARGE)
        return errors | self._manager.commit(group, accepted, self._wall_ms())

    def commit_pending(
        self,
        group_id: str,
        event: CommitRequested,
        offsets: Mapping[tuple[str, int], CommittedOffset],
        transaction: OffsetsTransaction,
    ) -> dict[tuple[str, int], ErrorCode]:
        """Commit offsets in a transaction, like ``commit``; they are in force when it commits."""
        accepted = self._with_valid_metadata(offsets)
        group = self._validate_commit(group_id, event, accepted)
        if isinstance(group, ErrorCode):
            return dict.fromkeys(offsets, group)
        errors = dict.fromkeys(offsets, ErrorCode.OFFSET_METADATA_TOO_LARGE)
        committed = self._manager.commit_pending(group, accepted, transaction, self._wall_ms())
        return errors | committed

    def _validate_commit(
        self, group_id: str, event: CommitRequested, offsets: Collection[tuple[str, int]]
    ) -> Group | ErrorCode:
        """The group, created if the client is in no group, or the error of the commit."""
        group = self._manager.groups.get(group_id)
        if group is None and (event.generation >= 0 or not self._manager.is_loaded(group_id)):
            return self.missing_group_error(group_id)
        group = group or self._manager.create(group_id, self._moment())
        if group is None:
            return ErrorCode.POLICY_VIOLATION
        if not isinstance(group, ClassicGroup):
            event = event._replace(partitions=tuple(offsets))
        error = self._request_immediate(group, event, CommitResult).error
        return group if error is ErrorCode.NONE else error

    def accepts(self, metadata: str) -> bool:
        """Whether metadata of a committed offset is not too large."""
        return len(metadata) <= self.limits.offset_metadata_bytes_max

    def _with_valid_metadata(
        self, offsets: Mapping[tuple[str, int], CommittedOffset]
    ) -> dict[tuple[str, int], CommittedOffset]:
        return {key: value for key, value in offsets.items() if self.accepts(value.metadata)}

    def pending_offsets(self, group_id: str) -> frozenset[tuple[str, int]]:
        """Topic and partition of the offsets that open transactions commit."""
        return frozenset(self._manager.pending_of(group_id).of_group(group_id))

    def complete_transaction(
        self,
        partition: int,
        producer_id: int,
        *,
        committed: bool,
        append: Callable[[], None],
    ) -> None:
        """Append the marker of a transaction to a partition of ``__consumer_offsets``.

        The producer's pending offsets are then in force, or removed. Raises LogError
        NOT_LEADER_OR_FOLLOWER if the groups of the partition are not loaded.
        """
        if partition in self._manager.unloaded:
            raise LogError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"the groups of {OFFSETS_TOPIC}-{partition} are not loaded",
            )
        append()
        self._manager.end_transaction(partition, producer_id, self._moment(), committed=committed)

    def committed(
        self, group_id: str, member_id: str | None = None, member_epoch: int = -1
    ) -> OffsetTable | ErrorCode:
        """A group's offsets, read-only, or the error. A group that does not exist has none."""
        group = self._manager.groups.get(group_id)
        if group is None:
            loaded = self._manager.is_loaded(group_id)
            return OffsetTable() if loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        error = group.validate_offset_fetch(member_id, member_epoch)
        return group.offsets if error is ErrorCode.NONE else error

    def delete_offsets(
        self, group_id: str, keys: Iterable[tuple[str, int]]
    ) -> tuple[ErrorCode, dict[tuple[str, int], ErrorCode]]:
        """Delete offsets of topics that no member consumes. Returns the group's error, and an
        error for each offset.
        """
        group = self._manager.groups.get(group_id)
        if not group_id or group is None:
            error = self.missing_group_error(group_id) if group_id else ErrorCode.INVALID_GROUP_ID
            return error, {}
        error = group.validate_offset_delete()
        if error is not ErrorCode.NONE:
            return error, {}
        errors = {
            key: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            if group.is_subscribed(key[0])
            else ErrorCode.NONE
            for key in keys
        }
        deletable = [key for key, error in errors.items() if error is ErrorCode.NONE]
        error = self._manager.delete_offsets(group, deletable, self._wall_ms())
        return ErrorCode.NONE, errors | dict.fromkeys(deletable, error)

    def on_topics_deleted(self, names: Iterable[str]) -> None:
        """Delete the offsets of deleted topics."""
        deleted = frozenset(names)
        for group in self._manager.groups.values():
            keys = {(topic, partition) for topic, partition, _ in group.offsets if topic in deleted}
            pending = self.pending_offsets(group.group_id)
            keys |= {each for each in pending if each[0] in deleted}
            self._manager.delete_offsets(group, keys, self._wall_ms())

    # ------------------------------------------------------------------------- administration

    def all_offsets(self) -> Iterator[tuple[str, str, int, CommittedOffset]]:
        """Yield every committed offset with its group, topic and partition."""
        for group in self._manager.groups.values():
            for topic, partition, committed in group.offsets:
                yield group.group_id, topic, partition, committed

    def list_groups(self) -> list[GroupOverview]:
        return [overview(group) for group in self._manager.groups.values()]

    def describe(self, group_id: str, *, full: bool = False) -> GroupDescription | None:
        """Describe a classic group with its members; None if there is none with this id."""
        group = self._manager.find(group_id, ClassicGroup)
        return None if group is None else describe(group, full=full)

    def describe_consumer_group(self, group_id: str) -> ConsumerGroupDescription | None:
        """Describe a consumer group with its members; None if there is none with this id."""
        group = self._manager.find(group_id, ConsumerGroup)
        if group is None:
            return None
        group.image = self._image()
        return describe_consumer_group(group)

    def describe_share_group(self, group_id: str) -> ShareGroupDescription | None:
        """Describe a share group with its members; None if there is none with this id."""
        group = self._manager.find(group_id, ShareGroup)
        if group is None:
            return None
        group.image = self._image()
        return describe_share_group(group)

    def describe_streams_group(self, group_id: str) -> StreamsGroupDescription | None:
        """Describe a streams group with its members; None if there is none with this id."""
        group = self._manager.find(group_id, StreamsGroup)
        if group is None:
            return None
        group.image = self._image()
        return describe_streams_group(group)

    def delete_group(self, group_id: str) -> ErrorCode:
        """Delete a group that has no members, with its offsets."""
        group = self._manager.groups.get(group_id)
        if group is None:
            return self.missing_group_error(group_id)
        error = group.validate_delete()
        return self._drop(group) if error is ErrorCode.NONE else error

    def act(self, group_id: str, event: GroupAction) -> ActionTaken:
        """Change a group as a test requests."""
        group = self._manager.groups.get(group_id)
        if group is None:
            error = self.missing_group_error(group_id)
            return ActionTaken(error, f"there is no group {group_id!r} with members")
        return self._request_immediate(group, event, ActionTaken)

    def drop_groups(self, prefix: str) -> None:
        """Delete the groups whose ids have a prefix, even with members."""
        for group in self._manager.with_prefix(prefix):
            self._drop(group)

    # ---------------------------------------------------------------------- events and answers

    def _moment(self) -> Moment:
        return Moment(self._now(), self._wall_ms())

    def _request(
        self, group: Group, event: JoinRequested | SyncRequested, kind: type[ResultT]
    ) -> ResultT | Awaitable[ResultT]:
        waiter = self._next_waiter()
        ready = self._parked[waiter] = trio.Event()
        self._handle_event(group, event._replace(waiter=waiter))
        if not ready.is_set():
            return self._wait(waiter, ready, kind)
        return self._take_answer(waiter, kind)

    async def _wait(self, waiter: Waiter, ready: trio.Event, kind: type[ResultT]) -> ResultT:
        try:
            await ready.wait()
        except trio.Cancelled:
            del self._parked[waiter]
            self._answers.pop(waiter, None)
            raise
        return self._take_answer(waiter, kind)

    def _request_immediate(
        self,
        group: Group,
        event: HeartbeatReceived
        | ConsumerHeartbeat
        | ShareHeartbeat
        | SharesChanged
        | StreamsHeartbeat
        | TopologyDescribed
        | CommitRequested
        | LeaveRequested
        | GroupAction,
        kind: type[ResultT],
    ) -> ResultT:
        """Pass an event to the group that it answers immediately."""
        self._handle_event(group, event)
        result = self._answers.pop(NO_WAITER)
        assert isinstance(result, kind)
        return result

    def _take_answer(self, waiter: Waiter, kind: type[ResultT]) -> ResultT:
        del self._parked[waiter]
        result = self._answers.pop(waiter)
        assert isinstance(result, kind)
        return result

    def _next_waiter(self) -> Waiter:
        self._waiter += 1
        return self._waiter

    def _handle_event(self, group: Group, event: Event, *, reports: bool = True) -> None:
        """Pass an event to a group and carry out its decisions."""
        since = group.past_transitions[-1] if group.past_transitions else None
        epoch = group.epoch
        next_event: Event | None = event
        group.image = self._image()
        group.holds_rebalances = self._hold_points.may_hold(group.hold_point, group.group_id)
        while next_event is not None:
            decisions = group.handle(next_event, self._moment())
            next_event = None
            for decision in decisions:
                next_event = self._execute(group, decision)
        if group.epoch > epoch:
            self.rebalances[group.type] += group.epoch - epoch
        if reports:
            report_transitions(self.on_state, group, since)
        if self._manager.timers.schedule(group.group_id, group.next_deadline):
            self._wakeup.set()

    def _execute(self, group: Group, decision: Decision) -> Event | None:
        if isinstance(decision, GroupAnswer):
            ready = self._parked.get(decision.waiter)
            if decision.waiter == NO_WAITER:
                self._answers[NO_WAITER] = decision.result
            elif ready is not None:
                self._answers[decision.waiter] = decision.result
                ready.set()
        elif isinstance(decision, Persist):
            return Persisted(self._manager.store(group, decision.records, self._wall_ms()))
        elif isinstance(decision, GroupReplaced):
            self._manager.groups[group.group_id] = decision.group
            self._handle_event(group, Removed())
            self._handle_event(decision.group, decision.event)
        elif isinstance(decision, LogLine):
            text = decision.text[:LOG_LINE_CHARACTERS_MAX]
            _logger.info("%s", text if text.isprintable() else repr(text))
        elif isinstance(decision, HoldRebalance):
            release = partial(self._release, group, decision.member_id)
            self._hold_points.hold(group.hold_point, group.group_id, release)
        return None

    def _release(self, group: Group, member_id: str) -> None:
        """Let the rebalance of a group or member continue that was held."""
        if self._manager.groups.get(group.group_id) is group:
            self._handle_event(group, RebalanceReleased(member_id))

    # ------------------------------------------------------------------------------- time

    def _run_due(self) -> None:
        now = self._now()
        while (group_id := self._manager.timers.take_due(now)) is not None:
            group = self._manager.groups.get(group_id)
            if group is not None:
                self._handle_event(group, TimePassed())
        if self._cleanup_at <= now:
            self._cleanup_at = now + self.limits.retention_check_interval_s
            self._clean_up()

    def _clean_up(self) -> None:
        wall_ms = self._wall_ms()
        for group in list(self._manager.groups.values()):
            if not self._manager.expire(group, wall_ms):
                self._drop(group)

    def _drop(self, group: Group) -> ErrorCode:
        error = self._manager.delete(group, self._wall_ms())
        if error is ErrorCode.NONE:
            self._handle_event(group, Removed())
        return error


def report_transitions(
    on_state: OnState | None, group: Group, since: StateTransition | None
) -> None:
    """Report the transitions of a group after one of them, also several in one event."""
    if on_state is None:
        return
    new: list[StateTransition] = []
    for transition in reversed(group.past_transitions):
        if transition is since:
            break
        new.append(transition)
    for _, before, _, after in reversed(new):
        on_state("group", group.group_id, before.value, after.value)
