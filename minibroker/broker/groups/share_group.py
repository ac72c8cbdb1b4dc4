"""A share group of KIP-932: its members, epochs and assignments.

Theory of operation. Members send heartbeats with the topics that they subscribe to. A change of
subscriptions, of the subscribed topics, or of the partitions that have a state raises the *group
epoch*. Then, at most once in an assignment interval, the assignor computes a target for every
member, in the *assignment epoch*. A partition may be given to several members, so nothing has to be
revoked first: with its next heartbeat a member has its target and the assignment epoch. Only
partitions whose state exists (``broker.shares.state_store``) are assigned. A member that is silent
for a session timeout is removed.

The state changes only by records: an event is answered with records to be written, and when they
are, they are applied as they are when a log is loaded. This module must never know records of
topics, sockets, tasks, clocks or files. Invariants: epochs never decrease; every waiter is answered
once. Kafka's ``ShareGroup`` and the share part of ``GroupMetadataManager`` (4.4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from minibroker.broker.groups.consumer_member import JOIN_EPOCH, LEAVE_EPOCH, Target
from minibroker.broker.groups.consumer_state import topics_hash
from minibroker.broker.groups.events import (
    ActionTaken,
    AssignedPartitions,
    AssignmentPlanned,
    CommitRequested,
    CommitResult,
    ConsumerHeartbeat,
    MemberExpired,
    MemberFenced,
    Persisted,
    RebalanceReleased,
    RebalanceRequested,
    Removed,
    Restored,
    ShareHeartbeat,
    ShareHeartbeatResult,
    SharesChanged,
    StreamsHeartbeat,
    TimePassed,
    TopologyDescribed,
)
from minibroker.broker.groups.group import (
    AfterWrite,
    Deadline,
    EpochGroup,
    GroupTimes,
    Handlers,
    RequestRejected,
    WrittenGroup,
    unknown_member,
)
from minibroker.broker.groups.share_actions import (
    plan_share_assignment,
    plan_share_fence,
    plan_share_rebalance,
)
from minibroker.broker.groups.share_assignor import ShareSubscription, assign_shares
from minibroker.broker.groups.share_records import SHARE, ShareGroupRecord
from minibroker.broker.groups.share_state import (
    SharedPartitions,
    ShareGroupData,
    ShareGroupState,
    ShareMember,
)
from minibroker.broker.metadata.image import Image
from minibroker.broker.settings.resources import SHARE_TIMES
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.types import Uuid


class ShareGroup(EpochGroup[ShareGroupData]):
    """A share group."""

    type = SHARE
    data_type = ShareGroupData
    declared_times = SHARE_TIMES
    dead_state = ShareGroupState.DEAD

    # ------------------------------------------------------------------------------ state

    @property
    def protocol_type_name(self) -> str:
        return SHARE

    @property
    def is_idle(self) -> bool:
        """False: a share group exists until it is deleted, as in Kafka."""
        return False

    @property
    def default_times(self) -> GroupTimes:
        return self.limits.share_times

    @property
    def unshared_partitions(self) -> Mapping[Uuid, frozenset[int]]:
        """Existing partitions of subscribed topics that have no state yet."""
        return self.data.shares(self.image).unshared

    def is_subscribed(self, topic: str) -> bool:
        return topic in self.data.topics

    def validate_offset_fetch(self, _member_id: str | None, _member_epoch: int, /) -> ErrorCode:
        return ErrorCode.GROUP_ID_NOT_FOUND

    def validate_offset_delete(self) -> ErrorCode:
        return ErrorCode.GROUP_ID_NOT_FOUND

    def expired_offsets(self, wall_ms: int) -> list[tuple[str, int]]:
        del wall_ms
        return []

    # ------------------------------------------------------------------------- heartbeats

    def _handle_heartbeat(self, event: ShareHeartbeat) -> None:
        try:
            if event.member_epoch == LEAVE_EPOCH:
                self._leave(event)
            else:
                self._heartbeat(event)
        except RequestRejected as rejected:
            self._answer(event.waiter, ShareHeartbeatResult(rejected.error, rejected.text or None))

    def expects_only(self, member: ShareMember, _event: ShareHeartbeat, /) -> bool:
        """Whether the member has its target, no newer one is due, and all partitions have a state.

        The request of a heartbeat creates missing states.
        """
        data = self.data
        if data.assignment_epoch != member.member_epoch or data.hashed_image is not self.image:
            return False
        shares = data.shares(self.image)
        if shares.unshared:
            return False
        if data.group_epoch == data.assignment_epoch:
            return not shares.is_unassigned
        return not self._is_target_due()

    def _states_nothing_new(self, member: ShareMember, event: ShareHeartbeat, /) -> bool:
        known = member.member_epoch, member.client_id, member.client_host
        return (
            (event.member_epoch, event.client_id, event.client_host) == known
            and event.member_epoch > JOIN_EPOCH
            and event.topics is None
            and event.rack_id in (None, member.rack_id)
        )

    def _heartbeat(self, event: ShareHeartbeat) -> None:
        before = self._subscribed_member(event)
        change = _MemberChange(self.data, self.image, self.time.wall_ms, before)
        change.subscribe(event)
        change.plan_group_epoch()
        times = self.times
        change.plan_target(times._replace(assignment_interval_ms=0) if event.assigns_now else times)
        member = change.after
        is_shown = (
            event.member_epoch == JOIN_EPOCH
            or event.topics is not None
            or member.assigned != before.assigned
        )
        result = ShareHeartbeatResult(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=self.times.heartbeat_interval_ms,
            assignment=_shown(member.assigned) if is_shown else None,
        )

        def then(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE:
                self._answer(event.waiter, ShareHeartbeatResult(error))
                return
            timeout_ms = self.times.session_timeout_ms
            self._set_deadline(Deadline.SESSION, member.member_id, timeout_ms)
            self._answer(event.waiter, result)

        self._log_notes(change.notes)
        self._persist(change.records, then)

    def _subscribed_member(self, event: ShareHeartbeat) -> ShareMember:
        """The member of a heartbeat, which may be new. Raises RequestRejected."""
        member = self.data.members.get(event.member_id)
        if member is None and len(self.data.members) >= self.limits.share_members_max:
            raise RequestRejected(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The share group has reached its maximum capacity of "
                f"{self.limits.share_members_max} members.",
            )
        if member is None:
            if event.member_epoch != JOIN_EPOCH:
                raise unknown_member(self.group_id, event.member_id)
            return ShareMember(member_id=event.member_id)
        problem = _epoch_problem(member, event.member_epoch)
        if problem:
            raise RequestRejected(ErrorCode.FENCED_MEMBER_EPOCH, problem)
        return member

    def _leave(self, event: ShareHeartbeat) -> None:
        member = self.data.members.get(event.member_id)
        if member is None:
            raise unknown_member(self.group_id, event.member_id)
        result = ShareHeartbeatResult(member_id=event.member_id, member_epoch=event.member_epoch)

        def then(error: ErrorCode) -> None:
            failed = error is not ErrorCode.NONE
            self._answer(event.waiter, ShareHeartbeatResult(error) if failed else result)

        self._remove_members([member], f"member {member.member_id} leaves", then)

    def _remove_members(
        self, members: Sequence[ShareMember], reason: str, then: AfterWrite
    ) -> None:
        removed = [member.member_id for member in members]
        self._log(f"removes {', '.join(removed)}: {reason}")
        records = [record for each in removed for record in self.data.removal(each)]
        metadata_hash = topics_hash(self.image, self.data.topics_without(removed))
        epoch = self.data.group_epoch + 1
        records.append(self.data.epoch_record(epoch, metadata_hash))
        if len(removed) == len(self.data.members):
            records.append(self.data.target_epoch_record(epoch, 0))
        self._persist(records, then)

    # ------------------------------------------------------------------------- partitions

    def _change_shares(self, event: SharesChanged) -> None:
        """Note partitions whose state was created, or is being or was deleted."""
        shared = self.data.shared
        initialized = dict(shared.initialized)
        for topic, partitions in event.initialized.items():
            initialized[topic] = initialized.get(topic, frozenset()) | partitions
        for topic in event.deleting | event.deleted:
            initialized.pop(topic, None)
        deleting = (shared.deleting | event.deleting) - event.deleted - initialized.keys()
        changed = SharedPartitions(initialized, {}, frozenset(deleting))

        def then(error: ErrorCode) -> None:
            self._answer(event.waiter, ActionTaken(error))

        is_new = changed != shared
        self._persist([self.data.shared_record(changed, self.image)] if is_new else [], then)

    def _refuse_commit(self, event: CommitRequested) -> None:
        self._answer(event.waiter, CommitResult(ErrorCode.GROUP_ID_NOT_FOUND))

    # ------------------------------------------------------------------------------ internal events

    def _restored(self, _event: Restored) -> None:
        for member_id in self.data.members:
            self._set_deadline(Deadline.SESSION, member_id, self.times.session_timeout_ms)

    # -------------------------------------------------------------------------- requests of tests

    def _take_action(self, event: RebalanceRequested | AssignmentPlanned | MemberFenced) -> None:
        data, image = self.data, self.image
        try:
            if isinstance(event, RebalanceRequested):
                action = plan_share_rebalance(data, image)
            elif isinstance(event, AssignmentPlanned):
                action = plan_share_assignment(data, image, event.assignment)
            else:
                action = plan_share_fence(data, image, event.member_id)
        except RequestRejected as rejected:
            self._reject(rejected.error, rejected.text)
        else:
            self._carry_out(action)

    HANDLERS: ClassVar[Handlers] = {
        ShareHeartbeat: _handle_heartbeat,
        SharesChanged: _change_shares,
        ConsumerHeartbeat: WrittenGroup.refuse_consumer_heartbeat,
        StreamsHeartbeat: WrittenGroup.refuse_streams_heartbeat,
        TopologyDescribed: WrittenGroup.refuse_description,
        CommitRequested: _refuse_commit,
        TimePassed: EpochGroup.nothing,
        Persisted: EpochGroup.finish_write,
        RebalanceReleased: EpochGroup.nothing,
        Restored: _restored,
        Removed: EpochGroup.removed,
        RebalanceRequested: _take_action,
        AssignmentPlanned: _take_action,
        MemberExpired: EpochGroup.expire_member,
        MemberFenced: _take_action,
    }


class _MemberChange:
    """How a heartbeat changes a group: ``records`` make it, step by step."""

    def __init__(
        self, data: ShareGroupData, image: Image, wall_ms: int, member: ShareMember
    ) -> None:
        self._data = data
        self._image = image
        self._wall_ms = wall_ms
        self._before = member
        self.after = member
        self.records: list[ShareGroupRecord] = []
        self.notes: list[str] = []
        self._group_epoch = data.group_epoch
        self._is_bumped = False
        self._topics: Counter[str] = Counter()

    def subscribe(self, event: ShareHeartbeat) -> None:
        """Note what the heartbeat states of the member."""
        before = self._before
        self.after = replace(
            before,
            rack_id=event.rack_id or before.rack_id,
            topics=before.topics if event.topics is None else frozenset(event.topics),
            client_id=event.client_id,
            client_host=event.client_host,
        )
        if before.member_id not in self._data.members:
            self.notes.append(f"is joined by member {before.member_id}")
        if self.after != before:
            self.records.append(self.after.metadata_record(self._data.group_id))
        self._topics = self._data.topics_with(self.after)

    def plan_group_epoch(self) -> None:
        """Raise the group epoch if subscriptions, topics or partitions with a state changed."""
        data = self._data
        bumps = self.after.topics != self._before.topics
        if data.assignment_epoch >= data.group_epoch:
            bumps = bumps or data.shares(self._image).is_unassigned
        if not bumps and data.hashed_image is self._image:
            return
        metadata_hash = topics_hash(self._image, self._topics)
        data.hashed_image = self._image
        if bumps or metadata_hash != data.metadata_hash:
            self._is_bumped = True
            self._group_epoch += 1
            self.records.append(data.epoch_record(self._group_epoch, metadata_hash))
            self.notes.append(f"is in epoch {self._group_epoch}")

    def plan_target(self, times: GroupTimes) -> None:
        """Compute the target of the group epoch if it is due, and let the member follow it."""
        data, member_id = self._data, self.after.member_id
        epoch, target = data.assignment_epoch, data.targets.get(member_id, {})
        is_due = times.is_target_due(data.assignment_timestamp, self._wall_ms)
        if epoch < self._group_epoch and is_due:
            epoch, target = self._group_epoch, self._compute_targets()
        if epoch == self.after.member_epoch and not self._is_bumped:
            return
        topics = self._subscribed_ids(self.after)
        assigned = {topic: each for topic, each in target.items() if topic in topics}
        moved = replace(self.after, assigned=assigned)
        if epoch != self.after.member_epoch:
            former = self.after.member_epoch
            moved = replace(moved, member_epoch=epoch, previous_member_epoch=former)
        if moved != self.after:
            self.after = moved
            self.records.append(moved.assignment_record(data.group_id))

    def _compute_targets(self) -> Target:
        """Compute the target of all members; return that of the member."""
        data = self._data
        members = data.members | {self.after.member_id: self.after}
        specs = {
            member_id: ShareSubscription(
                self._subscribed_ids(member), data.targets.get(member_id, {})
            )
            for member_id, member in members.items()
        }
        is_homogeneous = all(count == len(members) for count in self._topics.values())
        found = assign_shares(specs, data.shared.initialized, is_homogeneous=is_homogeneous)
        for member_id in members:
            target = found.get(member_id, {})
            if member_id not in data.targets or target != data.targets[member_id]:
                self.records.append(data.target_record(member_id, target))
        self.records.append(data.target_epoch_record(self._group_epoch, self._wall_ms))
        self.notes.append(f"has the target of epoch {self._group_epoch}")
        return found.get(self.after.member_id, {})

    def _subscribed_ids(self, member: ShareMember) -> Collection[Uuid]:
        """Ids of the topics of a subscription that exist, in a stable order."""
        topics = self._image.topics
        return dict.fromkeys(
            topics[name].topic_id for name in sorted(member.topics) if name in topics
        )


def _epoch_problem(member: ShareMember, received: int) -> str:
    """Why a member may not send a heartbeat in an epoch; empty if it may."""
    if received in (JOIN_EPOCH, member.member_epoch, member.previous_member_epoch):
        return ""
    text = "The share group member has a {} member epoch ({}) than the one known by the group "
    text += "coordinator ({}){}. The member must abandon all its partitions and rejoin."
    if received > member.member_epoch:
        return text.format("greater", received, member.member_epoch, "")
    previous = f", and it does not match the previous member epoch ({member.previous_member_epoch})"
    return text.format("smaller", received, member.member_epoch, previous)


def _shown(target: Target) -> tuple[AssignedPartitions, ...]:
    return tuple(
        AssignedPartitions(topic, tuple(partitions)) for topic, partitions in target.items()
    )
