"""A streams group of KIP-1071: its topology, members, epochs and tasks.

Theory of operation. The first member brings the *topology* of the application. From it and from the
topics that exist follows which internal topics are missing, and which tasks there are: none before
all topics are there. A change of members, topics, the topology or configs raises the *group epoch*.
Then, at most once in an assignment interval, the assignor computes a target for every member, in
the *assignment epoch*; the first target of a group waits for further members. Each member follows
its target by itself (``streams_member``). A member that is silent for a session timeout, or does
not give up tasks within its rebalance timeout, is removed.

The state changes only by records: an event is answered with records to be written, and when they
are, they are applied as they are when a log is loaded. What is not stored is known until a restart,
as in Kafka: the offsets of tasks, endpoints that members know, and that the application is to end.
This module must never know sockets, tasks of trio, clocks or files. Invariants: no active task is
given to two members at once; epochs never decrease; every waiter is answered once. Kafka's
``StreamsGroup`` and the streams part of ``GroupMetadataManager`` (4.4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from minibroker.broker.groups.consumer_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
)
from minibroker.broker.groups.events import (
    ActionTaken,
    AssignmentPlanned,
    CommitRequested,
    CommitResult,
    ConsumerHeartbeat,
    EndpointPartitions,
    MemberExpired,
    MemberFenced,
    Moment,
    Persisted,
    RebalanceReleased,
    RebalanceRequested,
    Removed,
    Restored,
    ShareHeartbeat,
    SharesChanged,
    StreamsHeartbeat,
    StreamsHeartbeatResult,
    Task,
    Tasks,
    TimePassed,
    TopologyDescribed,
)
from minibroker.broker.groups.group import (
    AfterWrite,
    ChangeCause,
    Deadline,
    EpochGroup,
    GroupLimits,
    GroupTimes,
    Handlers,
    RequestRejected,
    StreamsConfig,
    WrittenGroup,
    check_instance,
    commit_error,
    streams_config_of,
)
from minibroker.broker.groups.hooks import REVOKED
from minibroker.broker.groups.streams_change import (
    MISSING_CLIENT_TAGS,
    SHUTDOWN_APPLICATION,
    StreamsChange,
    StreamsContext,
    TopologyCheck,
    updated,
)
from minibroker.broker.groups.streams_description import KeptDescription, description_problem
from minibroker.broker.groups.streams_member import (
    NO_OFFSETS,
    NOTHING_HELD,
    ReportedOffsets,
    StreamsMember,
    StreamsMemberState,
    has_revoked,
)
from minibroker.broker.groups.streams_records import STREAMS, StreamsGroupRecord
from minibroker.broker.groups.streams_state import StreamsGroupData, StreamsGroupState
from minibroker.broker.groups.streams_topology import StreamsStatus
from minibroker.broker.settings.resources import STREAMS_TIMES
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.streams_group_describe import TopologyDescription


class StreamsGroup(EpochGroup[StreamsGroupData]):
    """A streams group."""

    type = STREAMS
    hold_point = REVOKED
    data_type = StreamsGroupData
    declared_times = STREAMS_TIMES
    dead_state = StreamsGroupState.DEAD

    def __init__(
        self, group_id: str, limits: GroupLimits, make_id: Callable[[], str], time: Moment
    ) -> None:
        super().__init__(group_id, limits, make_id, time)
        self.checked: TopologyCheck | None = None
        """The topology with the topics that existed at the last heartbeat."""
        self.offsets_of_tasks: dict[str, ReportedOffsets] = {}
        self._shutdown_member = ""
        """The member that has requested that the application ends."""
        self._endpoint_epoch = 0
        self._described = KeptDescription()

    # ------------------------------------------------------------------------------ state

    @property
    def protocol_type_name(self) -> str:
        return STREAMS

    @property
    def is_idle(self) -> bool:
        return not self.data.members

    @property
    def default_times(self) -> GroupTimes:
        return self.limits.streams.times

    @property
    def config(self) -> StreamsConfig:
        """The configs of the group, besides its times."""
        return streams_config_of(self.image, self.group_id, self.limits.streams.config)

    def is_subscribed(self, topic: str) -> bool:
        return topic in self._consumed_topics

    @property
    def _consumed_topics(self) -> Mapping[str, str]:
        """Source topics with their subtopologies, while the group has members."""
        topology = self.data.topology
        return {} if topology is None or not self.data.members else topology.source_topics

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int, /) -> ErrorCode:
        """A client that names a member must name its current epoch."""
        if member_id is None and member_epoch < 0:
            return ErrorCode.NONE
        member = self.data.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        is_current = member_epoch == member.member_epoch
        return ErrorCode.NONE if is_current else ErrorCode.STALE_MEMBER_EPOCH

    def validate_offset_delete(self) -> ErrorCode:
        return ErrorCode.NONE

    def expired_offsets(self, wall_ms: int) -> list[tuple[str, int]]:
        """Topic and partition of each offset that is old and whose topic no member consumes."""
        return self.offsets.expired(
            wall_ms=wall_ms,
            retention_ms=self.limits.offsets_retention_ms,
            age_from_ms=None,
            consumed=self._consumed_topics.keys(),
        )

    def awaited_tasks(self, member: StreamsMember) -> list[tuple[Task, str]]:
        """Active tasks of the member's target, each with the process that still has it."""
        target = self.data.targets.get(member.member_id, Tasks())
        missing = sorted(target.active.difference(member.assigned.active))
        processes = [(task, self.data.processes.active(task)) for task in missing]
        return [(task, process) for task, process in processes if process is not None]

    # ------------------------------------------------------------------------- heartbeats

    def _handle_heartbeat(self, event: StreamsHeartbeat) -> None:
        try:
            if event.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
                self._leave(event)
            else:
                self._heartbeat(event)
        except RequestRejected as rejected:
            result = StreamsHeartbeatResult(rejected.error, rejected.text or None)
            self._answer(event.waiter, result)

    def expects_only(self, member: StreamsMember, event: StreamsHeartbeat, /) -> bool:
        """Whether the member has its target, and the group nothing to find out or to report."""
        data, checked = self.data, self.checked
        config = self.config
        return (
            member.is_reconciled_to(data.group_epoch)
            and data.assignment_epoch == data.group_epoch
            and checked is not None
            and checked.is_of(data.topology, self.image)
            and checked.configured.problem is None
            and event.endpoint_epoch == self._endpoint_epoch
            and not self._shutdown_member
            and not config.rack_aware_tags
            and config.assignment_configs == data.assignment_configs
            and not self._needs_description(checked.topology.epoch)
        )

    def _states_nothing_new(self, member: StreamsMember, event: StreamsHeartbeat, /) -> bool:
        return (
            event.member_epoch == member.member_epoch > JOIN_EPOCH
            and (event.owned, event.task_offsets, event.task_end_offsets) == (None, None, None)
            and not event.shuts_down
            and updated(member, event) is member
        )

    def _heartbeat(self, event: StreamsHeartbeat) -> None:
        context = self._context()
        change = StreamsChange(context, event)
        change.update_member()
        change.update_topology()
        change.check_topics(self.checked)
        change.owned = self._hold_revocation(
            change.before.member_id,
            change.owned,
            joins=event.member_epoch == JOIN_EPOCH,
            has_revoked=has_revoked(change.before, event.owned),
        )
        change.plan_group_epoch()
        is_first = not self.data.members
        delay_ms = context.config.initial_rebalance_delay_ms if is_first else 0
        is_delayed = bool(delay_ms) or (Deadline.INITIAL, "") in self._deadlines
        change.plan_target(is_delayed=is_delayed)
        change.plan_reconciliation()
        shutdown_member = self._shutdown_member
        if event.shuts_down and not shutdown_member:
            shutdown_member = change.after.member_id
        result = self._result(event, change, shutdown_member)

        def then(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE:
                self._answer(event.waiter, StreamsHeartbeatResult(error))
                return
            member_id = change.after.member_id
            self.checked = change.checked
            self._shutdown_member = shutdown_member
            self._note_offsets(event)
            self._set_deadline(Deadline.SESSION, member_id, context.times.session_timeout_ms)
            if delay_ms and (Deadline.INITIAL, "") not in self._deadlines:
                self._set_deadline(Deadline.INITIAL, "", delay_ms)
            self._answer(event.waiter, result)

        self._log_notes(change.notes)
        self._persist(change.records, then)

    def _context(self) -> StreamsContext:
        return StreamsContext(
            self.data,
            self.image,
            self.limits.streams.members_max,
            self.times,
            self.config,
            self.time.wall_ms,
            self.offsets_of_tasks,
        )

    def _result(
        self, event: StreamsHeartbeat, change: StreamsChange, shutdown_member: str
    ) -> StreamsHeartbeatResult:
        """The answer to the member; ``change`` is complete."""
        before, member, config = change.before, change.after, change.config
        joins = event.member_epoch == JOIN_EPOCH
        has_other_tasks = before.assigned != member.assigned
        epoch = self._endpoint_epoch
        if before.endpoint != member.endpoint or (has_other_tasks and member.endpoint is not None):
            epoch += 1
        endpoints = None
        if epoch != event.endpoint_epoch:
            endpoints = self._endpoints(change)
        is_new = self.data.topology is None  # As in Kafka, a new group has no epoch yet.
        if not is_new:
            self._endpoint_epoch = epoch
        topology_epoch = change.topology.epoch
        asks = member.topology_epoch >= topology_epoch and event.knows_description
        asks = asks and self._needs_description(topology_epoch)
        if asks:
            self._described.ask(topology_epoch, self.time.now)
        return StreamsHeartbeatResult(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=change.times.heartbeat_interval_ms,
            acceptable_recovery_lag=config.acceptable_recovery_lag,
            task_offset_interval_ms=config.task_offset_interval_ms,
            statuses=(*change.statuses, *_statuses(event, change, shutdown_member)),
            tasks=member.assigned.tasks if joins or has_other_tasks else None,
            endpoint_epoch=self._endpoint_epoch,
            endpoints=endpoints,
            description_required=asks,
            missing_topics=change.checked.configured.missing_topics,
        )

    def _needs_description(self, topology_epoch: int) -> bool:
        is_due = self._described.is_due(topology_epoch, self.time.now)
        return self.limits.streams.keeps_descriptions and is_due

    @property
    def topology_description(self) -> TopologyDescription | None:
        """The description of the topology, if a member has sent it."""
        topology = self.data.topology
        return None if topology is None else self._described.of_epoch(topology.epoch)

    def _take_description(self, event: TopologyDescribed) -> None:
        data, epoch = self.data, event.topology_epoch
        current = -1 if data.topology is None else data.topology.epoch
        try:
            data.member(event.member_id)
        except RequestRejected as rejected:
            self._reject(rejected.error, rejected.text)
            return
        problem = description_problem(event.description)
        if epoch != current:
            problem = (
                f"Topology epoch {epoch} does not match the group's current topology epoch "
                f"{current}."
            )
        if problem is not None:
            self._reject(ErrorCode.INVALID_REQUEST, problem)
            return

        def then(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                self._described.keep(epoch, event.description)
            self._answer(event.waiter, ActionTaken(error))

        self._persist([data.epoch_record(data.group_epoch, described_epoch=epoch)], then)

    def _endpoints(self, change: StreamsChange) -> tuple[EndpointPartitions, ...]:
        """The source partitions of all members with an endpoint; the member's own come last."""
        others = [
            each
            for each in self.data.members.values()
            if each.member_id not in (change.after.member_id, change.replaced)
        ]
        return tuple(
            EndpointPartitions(
                each.endpoint,
                self._source_partitions(change, frozenset(each.assigned.active)),
                self._source_partitions(change, each.assigned.standby | each.assigned.warmup),
            )
            for each in (*others, change.after)
            if each.endpoint is not None
        )

    def _source_partitions(
        self, change: StreamsChange, tasks: frozenset[Task]
    ) -> tuple[tuple[str, tuple[int, ...]], ...]:
        found: dict[str, list[int]] = {}
        for name, subtopology in sorted(change.topology.source_topics.items()):
            topic = self.image.topics.get(name)
            count = 0 if topic is None else len(topic.partitions)
            for owner, partition in sorted(tasks):
                if owner == subtopology and partition < count:
                    found.setdefault(name, []).append(partition)
        return tuple((name, tuple(partitions)) for name, partitions in found.items())

    def _note_offsets(self, event: StreamsHeartbeat) -> None:
        known = self.offsets_of_tasks.get(event.member_id, NO_OFFSETS)
        if event.task_offsets is not None:
            known = known._replace(task_offsets=event.task_offsets)
        if event.task_end_offsets is not None:
            known = known._replace(task_end_offsets=event.task_end_offsets)
        self.offsets_of_tasks[event.member_id] = known

    def _leave(self, event: StreamsHeartbeat) -> None:
        if event.instance_id is None:
            member = self.data.member(event.member_id)
        else:
            existing = self.data.static_member(event.instance_id)
            member = check_instance(existing, event.member_id, event.instance_id)
        if event.shuts_down:
            self._shutdown_member = self._shutdown_member or member.member_id
        result = StreamsHeartbeatResult(member_id=event.member_id, member_epoch=event.member_epoch)

        def then(error: ErrorCode) -> None:
            failed = error is not ErrorCode.NONE
            self._answer(event.waiter, StreamsHeartbeatResult(error) if failed else result)

        if event.instance_id is not None and event.member_epoch == STATIC_LEAVE_EPOCH:
            active = dict.fromkeys(member.assigned.active, 0)
            away = replace(
                member,
                member_epoch=STATIC_LEAVE_EPOCH,
                assigned=member.assigned._replace(active=active),
                pending_revocation=NOTHING_HELD,
            )
            self._log(f"is left by static member {member.member_id}, which may return")
            self._persist([away.assignment_record(self.group_id)], then)
            return
        self._remove_members([member], f"member {member.member_id} leaves", then)

    def _remove_members(
        self, members: Sequence[StreamsMember], reason: str, then: AfterWrite
    ) -> None:
        removed = [member.member_id for member in members]
        self._log(f"removes {', '.join(removed)}: {reason}")
        records = [record for each in removed for record in self.data.removal(each)]
        epoch = self.data.group_epoch + 1
        records.append(self.data.epoch_record(epoch))
        if len(removed) == len(self.data.members):
            records.append(self.data.target_epoch_record(epoch, 0))
        self._persist(records, then)

    # ------------------------------------------------------------------------- commits

    def _commit(self, event: CommitRequested) -> None:
        def held_since(member: StreamsMember, topic: str, partition: int) -> int | None:
            subtopology = self._consumed_topics.get(topic)
            return None if subtopology is None else member.epoch_of((subtopology, partition))

        error = commit_error(event, self.data.members, held_since)
        self._answer(event.waiter, CommitResult(error))

    # ------------------------------------------------------------------------------ internal events

    def _restored(self, _event: Restored) -> None:
        for member in self.data.members.values():
            timeout_ms = self.times.session_timeout_ms
            self._set_deadline(Deadline.SESSION, member.member_id, timeout_ms)
            if member.state is StreamsMemberState.UNREVOKED_TASKS:
                timeout_ms = member.rebalance_timeout_ms
                self._set_deadline(Deadline.REVOCATION, member.member_id, timeout_ms)

    def _apply(self, record: StreamsGroupRecord) -> None:
        """Change the state as a written record says, and the timers with it."""
        name = record.name or ""
        before = self.data.members.get(name)
        super()._apply(record)
        member = self.data.members.get(name)
        if member is None:
            self.offsets_of_tasks.pop(name, None)
        elif (
            member.state is not StreamsMemberState.UNREVOKED_TASKS
            or member.member_epoch == STATIC_LEAVE_EPOCH
        ):
            self._deadlines.pop((Deadline.REVOCATION, name), None)
        elif before is None or _has_moved(before, member):
            self._set_deadline(Deadline.REVOCATION, name, member.rebalance_timeout_ms)

    def _note_state(self, cause: ChangeCause) -> None:
        super()._note_state(cause)
        if not self.data.members:
            self._shutdown_member = ""

    def _reach(self, kind: Deadline, member_id: str) -> None:
        if kind is Deadline.INITIAL:
            self._compute_first_target()
        else:
            super()._reach(kind, member_id)

    def _compute_first_target(self) -> None:
        """Compute the target that has waited for further members."""
        if not self.data.members or self.checked is None:
            return
        context = self._context()
        _, records, note = context.compute_targets(
            self.data.members, self.data.group_epoch, self.checked.configured
        )
        self._log(note)
        self._persist(records, self._note_failure)

    # -------------------------------------------------------------------------- requests of tests

    def _take_action(self, event: RebalanceRequested | AssignmentPlanned | MemberFenced) -> None:
        try:
            action = self._context().plan_action(event)
        except RequestRejected as rejected:
            self._reject(rejected.error, rejected.text)
        else:
            self._carry_out(action)

    HANDLERS: ClassVar[Handlers] = {
        StreamsHeartbeat: _handle_heartbeat,
        ConsumerHeartbeat: WrittenGroup.refuse_consumer_heartbeat,
        ShareHeartbeat: WrittenGroup.refuse_share_heartbeat,
        SharesChanged: WrittenGroup.refuse_shares,
        TopologyDescribed: _take_description,
        CommitRequested: _commit,
        TimePassed: EpochGroup.nothing,
        Persisted: EpochGroup.finish_write,
        RebalanceReleased: EpochGroup.release_revocation,
        Restored: _restored,
        Removed: EpochGroup.removed,
        RebalanceRequested: _take_action,
        AssignmentPlanned: _take_action,
        MemberExpired: EpochGroup.expire_member,
        MemberFenced: _take_action,
    }


def _has_moved(before: StreamsMember, member: StreamsMember) -> bool:
    """Whether a member has other tasks, or others to give up."""
    former = before.state, before.assigned, before.pending_revocation
    return former != (member.state, member.assigned, member.pending_revocation)


def _statuses(
    event: StreamsHeartbeat, change: StreamsChange, shutdown_member: str
) -> list[StreamsStatus]:
    """What follows from the topics, the members and the configs."""
    statuses = []
    problem = change.checked.configured.problem
    if problem is not None:
        statuses.append(problem)
    if shutdown_member:
        statuses.append(
            StreamsStatus(
                SHUTDOWN_APPLICATION,
                f"Streams group member {shutdown_member} encountered a fatal error and requested a "
                "shutdown for the entire application.",
            )
        )
    tags = change.config.rack_aware_tags if event.knows_tags else ()
    missing = [tag for tag in tags if tag not in change.after.client_tags]
    if missing:
        statuses.append(
            StreamsStatus(
                MISSING_CLIENT_TAGS,
                "Missing required client tags for rack-aware standby assignment: "
                f"[{', '.join(missing)}]. Configure them via 'client.tag.<tagKey>' in your Streams "
                "config.",
            )
        )
    return statuses
