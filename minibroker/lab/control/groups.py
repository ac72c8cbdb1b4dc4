"""Groups in the control API: list them, describe one with its lag, and wait for its state.

Owns their records and operations. It must never change a group. Invariant: an answer is not older
than its request. Kafka's ``Admin`` client has the same operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, cast

from minibroker.broker.metadata.image import group_owner
from minibroker.broker.process.messages import GroupsRequest, SharePartitionsRequest
from minibroker.broker.settings import OFFSETS_TOPIC_NUM_PARTITIONS
from minibroker.lab.control.operation import (
    POLL_S,
    TIMED_OUT,
    UNAVAILABLE,
    WAIT_MS,
    WAIT_MS_MAX,
    Operations,
    whole_number,
)
from minibroker.lab.control.topics import get_topic
from minibroker.lab.errors import ApiError, NotFound, Unavailable
from minibroker.lab.schema import Doc, Fault, InvalidJson, did_you_mean

if TYPE_CHECKING:
    from minibroker.broker.groups.description import (
        ConsumerGroupDescription,
        GroupDescription,
        GroupOverview,
        ShareGroupDescription,
        StreamsGroupDescription,
        StreamsMemberDescription,
        TopicPartitions,
    )
    from minibroker.broker.groups.events import Tasks
    from minibroker.broker.shares.service import ShareView
    from minibroker.lab.control.broker import ControlledBroker


class GroupSummary(NamedTuple):
    """A consumer group in a list."""

    group_id: str
    state: Annotated[str, Doc("Kafka's name of the state, e.g. `Stable`.")]
    protocol_type: str
    members: Annotated[int, Doc("Number of members.")]
    type: Annotated[str, Doc("`classic`, `consumer`, `share` or `streams`.")] = "classic"


class GroupList(NamedTuple):
    """All groups, by id."""

    groups: tuple[GroupSummary, ...]


class AssignedTopic(NamedTuple):
    """The partitions of one topic that are assigned to a member."""

    topic: str
    partitions: tuple[int, ...]


class ConsumerMemberView(NamedTuple):
    """What a member has only in a consumer group (KIP-848)."""

    member_epoch: int
    state: Annotated[str, Doc("`STABLE`, `UNREVOKED_PARTITIONS` or `UNRELEASED_PARTITIONS`.")]
    is_classic: Annotated[bool, Doc("Whether the member uses classic requests.")]
    target: tuple[AssignedTopic, ...]
    to_revoke: Annotated[
        tuple[AssignedTopic, ...], Doc("Partitions that the member still has and must revoke.")
    ]


class TaskView(NamedTuple):
    """A task of a streams group."""

    subtopology: str
    partition: int
    role: Annotated[str, Doc("`active`, `standby` or `warmup`.")]


class StreamsMemberView(NamedTuple):
    """What a member has only in a streams group (KIP-1071)."""

    member_epoch: int
    state: Annotated[str, Doc("`STABLE`, `UNREVOKED_TASKS` or `UNRELEASED_TASKS`.")]
    process_id: Annotated[str, Doc("Equal for the threads of one instance.")]
    tasks: tuple[TaskView, ...]
    target: tuple[TaskView, ...]
    to_revoke: Annotated[
        tuple[TaskView, ...], Doc("Tasks that the member still has and must give up.")
    ]


class Member(NamedTuple):
    """A member of a group."""

    member_id: str
    group_instance_id: Annotated[str | None, Doc("Set for static members.")]
    client_id: str
    client_host: str
    assignment: Annotated[
        tuple[AssignedTopic, ...], Doc("Empty if the protocol type is not `consumer`.")
    ]
    consumer: Annotated[ConsumerMemberView | None, Doc("Null in a classic group.")] = None
    streams: Annotated[
        StreamsMemberView | None, Doc("Null unless the group is a streams group.")
    ] = None


class SubtopologyView(NamedTuple):
    """A part of the topology of a streams group, whose topics have a task for each partition."""

    subtopology: str
    source_topics: tuple[str, ...]
    repartition_topics: tuple[str, ...]
    changelog_topics: tuple[str, ...]


class CommittedOffsetView(NamedTuple):
    """Committed offset and lag of a group in one partition."""

    topic: str
    partition: int
    offset: Annotated[int, Doc("The committed offset: the next record to read.")]
    metadata: str
    log_end_offset: Annotated[int | None, Doc("Null if the partition was deleted.")]
    lag: Annotated[int | None, Doc("Records not consumed yet; null if the partition was deleted.")]


class ShareRangeView(NamedTuple):
    """Consecutive records in flight for a share group."""

    first_offset: int
    last_offset: int
    state: Annotated[
        str, Doc("`acquired`, `available`, or `archiving`: being written to the dead-letter queue.")
    ]
    delivery_count: Annotated[int, Doc("Deliveries so far.")]
    member: Annotated[str | None, Doc("The member that has them; null if none has.")]


class SharePartitionView(NamedTuple):
    """A partition that members of a share group fetch."""

    topic: str
    partition: int
    start_offset: Annotated[int, Doc("All records before it are finished.")]
    acquired: Annotated[int, Doc("Records that members have.")]
    available: Annotated[int, Doc("Records that were released and wait for a member.")]
    log_end_offset: Annotated[int | None, Doc("Null if the partition was deleted.")]
    in_flight: Annotated[
        tuple[ShareRangeView, ...],
        Doc("These records, by offset: the first 100 ranges of equal state and delivery count."),
    ]


class GroupView(NamedTuple):
    """A group with its members and committed offsets."""

    group_id: str
    state: Annotated[str, Doc("Kafka's name of the state, e.g. `Stable`.")]
    protocol_type: str
    protocol: Annotated[str, Doc("The assignor that the group uses, or empty.")]
    generation: Annotated[int, Doc("The generation, or the epoch of a consumer group.")]
    leader: Annotated[str | None, Doc("Member id of the leader.")]
    coordinator: Annotated[str, Doc("Process that owns the group, e.g. `worker-0`.")]
    members: tuple[Member, ...]
    offsets: tuple[CommittedOffsetView, ...]
    type: Annotated[str, Doc("`classic`, `consumer`, `share` or `streams`.")] = "classic"
    assignment_epoch: Annotated[
        int | None, Doc("The epoch whose target is computed; null in a classic group.")
    ] = None
    waits_for: Annotated[
        tuple[str, ...],
        Doc("Why a consumer or streams group is not stable: which member is to do what."),
    ] = ()
    share_partitions: Annotated[
        tuple[SharePartitionView, ...],
        Doc("Partitions in use; empty unless the group is a share group."),
    ] = ()
    topology: Annotated[
        tuple[SubtopologyView, ...], Doc("Empty unless the group is a streams group.")
    ] = ()


GROUP_STATES: Final = (
    "Stable",
    "Empty",
    "NotReady",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "Dead",
)
"""Kafka's names of the states of groups."""

_COUNT_MAX: Final = 2**63 - 1


class GroupQuery(NamedTuple):
    """A group, and conditions to wait for, as texts of a query."""

    group_id: Annotated[
        str, Doc("If the path ends before the id, e.g. for `..`, which clients remove from paths.")
    ] = ""
    state: Annotated[str, Doc("Wait for this state, e.g. `Stable`.")] = ""
    members: Annotated[str, Doc("Wait for so many members.")] = ""
    lag: Annotated[
        str, Doc("Wait until the group has committed offsets and at most this lag in all.")
    ] = ""
    timeout_ms: Annotated[str, Doc(f"Real milliseconds to wait; by default {WAIT_MS}.")] = str(
        WAIT_MS
    )


_NO_QUERY: Final = GroupQuery()


class _Conditions(NamedTuple):
    """What a group is awaited to be; None is anything."""

    state: str | None
    members: int | None
    lag: int | None

    def are_met(self, group: GroupView | None) -> bool:
        """Whether the group is as awaited."""
        if self.state is None and self.members is None and self.lag is None:
            return True
        return (
            group is not None
            and self.state in (None, group.state)
            and self.members in (None, len(group.members))
            and (self.lag is None or (bool(group.offsets) and _lag(group) <= self.lag))
        )

    def __str__(self) -> str:
        given = (("state", self.state), ("members", self.members), ("lag", self.lag))
        return ", ".join(f"{name} {value}" for name, value in given if value is not None)


GROUP_OPERATIONS: Final = Operations()


@GROUP_OPERATIONS.add("GET", "/v1/groups", errors=UNAVAILABLE)
async def list_groups(broker: ControlledBroker) -> GroupList:
    """List all consumer groups."""
    return GroupList(
        tuple(
            GroupSummary(
                group.group_id, group.state, group.protocol_type, group.members, group.group_type
            )
            for group in sorted(await group_overviews(broker))
        )
    )


async def group_overviews(broker: ControlledBroker) -> list[GroupOverview]:
    """Return all groups of all workers."""
    overviews = await broker.publisher.request_all(GroupsRequest(), broker.workers)
    return [group for groups in overviews.values() for group in groups]


@GROUP_OPERATIONS.add(
    "GET",
    "/v1/groups/{group_id}",
    errors={404: "There is no group with this id.", **TIMED_OUT, **UNAVAILABLE},
)
async def get_group(
    broker: ControlledBroker, group_id: str, query: GroupQuery = _NO_QUERY
) -> GroupView:
    """Return a group with members, offsets and lag; wait for it: `?state=…&members=…&lag=…`."""
    conditions, timeout_ms = _checked(query)
    clock = broker.env.clock
    deadline = clock.real_s() + timeout_ms / 1000
    waits = not conditions.are_met(None)
    while True:
        group: GroupView | None = None
        try:
            group = await describe_group(broker, group_id or query.group_id)
        except NotFound:
            if not waits:
                raise
        if group is not None and conditions.are_met(group):
            return group
        if clock.real_s() >= deadline:
            raise _timed_out(group_id or query.group_id, group, conditions, timeout_ms)
        await clock.sleep_real(POLL_S)


def _checked(query: GroupQuery) -> tuple[_Conditions, int]:
    """Return conditions and the timeout. Raises `InvalidJson`, which lists all faults."""
    faults: list[Fault] = []
    if query.state and query.state not in GROUP_STATES:
        advice = did_you_mean(query.state, GROUP_STATES)
        faults.append(Fault("state", f"must be one of {', '.join(GROUP_STATES)}{advice}"))
    numbers = [
        whole_number(name, text, highest, faults) if text else None
        for name, text, highest in (
            ("members", query.members, _COUNT_MAX),
            ("lag", query.lag, _COUNT_MAX),
            ("timeout_ms", query.timeout_ms, WAIT_MS_MAX),
        )
    ]
    if faults:
        raise InvalidJson(faults)
    members, lag, timeout_ms = numbers
    return _Conditions(query.state or None, members, lag), timeout_ms or 0


def _lag(group: GroupView) -> int:
    return sum(offset.lag or 0 for offset in group.offsets)


def _timed_out(
    group_id: str, group: GroupView | None, conditions: _Conditions, timeout_ms: int
) -> ApiError:
    text = f"group {group_id!r} was awaited for {timeout_ms} ms to have {conditions}"
    if group is None:
        text = f"{text}, and there is no such group."
        hint = "Does the consumer use this broker and this group id?"
        return ApiError("REQUEST_TIMED_OUT", text, hint, status=408)
    lag = f"lag {_lag(group)}" if group.offsets else "no committed offsets"
    has = f"state {group.state}, members {len(group.members)}, {lag}"
    clients = ", ".join(sorted({member.client_id for member in group.members})) or "none"
    hint = f"Client ids of its members: {clients}."
    return ApiError("REQUEST_TIMED_OUT", f"{text}, and it has {has}.", hint, status=408)


async def describe_group(broker: ControlledBroker, group_id: str) -> GroupView:
    """Return a group as it is now."""
    partitions = broker.env.settings[OFFSETS_TOPIC_NUM_PARTITIONS]
    coordinator = broker.workers[group_owner(group_id, partitions, len(broker.workers))]
    answers = await broker.publisher.request_all(GroupsRequest(group_id), [coordinator])
    if coordinator not in answers:
        raise Unavailable("COORDINATOR_NOT_AVAILABLE", f"{coordinator} is being restarted")
    group: (
        GroupDescription
        | ConsumerGroupDescription
        | ShareGroupDescription
        | StreamsGroupDescription
        | None
    )
    group = answers[coordinator]
    if group is None:
        raise NotFound("GROUP_ID_NOT_FOUND", f"there is no group {group_id!r}")
    if hasattr(group, "shared"):
        return await _share_group(broker, cast("ShareGroupDescription", group), coordinator)
    group = cast("GroupDescription | ConsumerGroupDescription | StreamsGroupDescription", group)
    ends = await _log_ends(broker, {topic for topic, _, _ in group.offsets})
    if hasattr(group, "subtopologies"):
        return _streams_group(cast("StreamsGroupDescription", group), coordinator, ends)
    if hasattr(group, "assignment_epoch"):
        return _consumer_group(cast("ConsumerGroupDescription", group), coordinator, ends)
    return _classic_group(group, coordinator, ends)


async def _share_group(
    broker: ControlledBroker, group: ShareGroupDescription, coordinator: str
) -> GroupView:
    request = SharePartitionsRequest(group.group_id)
    answers = await broker.publisher.request_all(request, broker.workers)
    shares: list[ShareView] = sorted(each for views in answers.values() for each in views)
    ends = await _log_ends(broker, {each.topic for each in shares})
    return GroupView(
        group_id=group.group_id,
        state=group.state,
        protocol_type="share",
        protocol="simple",
        generation=group.group_epoch,
        leader=None,
        coordinator=coordinator,
        members=tuple(
            Member(
                member.member_id,
                None,
                member.client_id,
                member.client_host,
                _assigned(member.assigned),
            )
            for member in group.members
        ),
        offsets=(),
        type="share",
        assignment_epoch=group.assignment_epoch,
        share_partitions=tuple(
            SharePartitionView(
                each.topic,
                each.partition,
                each.start_offset,
                each.acquired,
                each.available,
                ends.get((each.topic, each.partition)),
                tuple(
                    ShareRangeView(
                        found.first,
                        found.last,
                        found.state.name.lower(),
                        found.deliveries,
                        found.member or None,
                    )
                    for found in each.ranges
                ),
            )
            for each in shares
        ),
    )


def _classic_group(
    group: GroupDescription, coordinator: str, ends: dict[tuple[str, int], int]
) -> GroupView:
    return GroupView(
        group_id=group.group_id,
        state=group.state,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        generation=group.generation,
        leader=group.leader,
        coordinator=coordinator,
        members=tuple(
            Member(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                tuple(AssignedTopic(*assigned) for assigned in member.partitions),
            )
            for member in group.members
        ),
        offsets=tuple(_committed(group, ends)),
    )


def _consumer_group(
    group: ConsumerGroupDescription, coordinator: str, ends: dict[tuple[str, int], int]
) -> GroupView:
    return GroupView(
        group_id=group.group_id,
        state=group.state,
        protocol_type="consumer",
        protocol=group.assignor,
        generation=group.group_epoch,
        leader=None,
        coordinator=coordinator,
        members=tuple(
            Member(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                _assigned(member.assigned),
                ConsumerMemberView(
                    member.member_epoch,
                    member.state,
                    member.is_classic,
                    _assigned(member.target),
                    _assigned(member.pending_revocation),
                ),
            )
            for member in group.members
        ),
        offsets=tuple(_committed(group, ends)),
        type="consumer",
        assignment_epoch=group.assignment_epoch,
        waits_for=tuple(_awaited_steps(group)),
    )


def _streams_group(
    group: StreamsGroupDescription, coordinator: str, ends: dict[tuple[str, int], int]
) -> GroupView:
    return GroupView(
        group_id=group.group_id,
        state=group.state,
        protocol_type="streams",
        protocol=group.assignor,
        generation=group.group_epoch,
        leader=None,
        coordinator=coordinator,
        members=tuple(
            Member(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                (),
                streams=StreamsMemberView(
                    member.member_epoch,
                    member.state,
                    member.process_id,
                    _tasks(member.assigned),
                    _tasks(member.target),
                    _tasks(member.pending_revocation),
                ),
            )
            for member in group.members
        ),
        offsets=tuple(_committed(group, ends)),
        type="streams",
        assignment_epoch=group.assignment_epoch,
        waits_for=tuple(_awaited_streams_steps(group)),
        topology=tuple(
            SubtopologyView(
                each.subtopology_id,
                each.source_topics,
                tuple(topic.name for topic in each.repartition_sources),
                tuple(topic.name for topic in each.changelogs),
            )
            for each in group.subtopologies
        ),
    )


def _tasks(tasks: Tasks) -> tuple[TaskView, ...]:
    return tuple(
        TaskView(subtopology, partition, role)
        for role, held in zip(tasks._fields, tasks, strict=True)
        for subtopology, partition in sorted(held)
    )


def _awaited_streams_steps(group: StreamsGroupDescription) -> Iterator[str]:
    """What is to happen before a streams group is stable."""
    if group.problem:
        yield group.problem
    if group.members and group.group_epoch > group.assignment_epoch:
        yield (
            f"the target of epoch {group.group_epoch} is computed after the initial delay, or with "
            "the first heartbeat after the assignment interval"
        )
    for member in group.members:
        yield from _awaited_member_steps(group, member)


def _awaited_member_steps(
    group: StreamsGroupDescription, member: StreamsMemberDescription
) -> Iterator[str]:
    revoked = ", ".join(
        f"{subtopology}_{at}"
        for tasks in member.pending_revocation
        for subtopology, at in sorted(tasks)
    )
    if revoked and member.is_held:
        yield f"{member.member_id} has given up {revoked}, which a fault rule holds"
    elif revoked:
        yield f"{member.member_id} has yet to give up {revoked}"
    elif member.member_epoch != group.assignment_epoch:
        yield f"{member.member_id} has sent no heartbeat in epoch {group.assignment_epoch} yet"
    for (subtopology, partition), process in member.awaited:
        yield f"{member.member_id} waits for {subtopology}_{partition}, which process {process} has"
    if member.state == "UNRELEASED_TASKS" and not member.awaited:
        yield f"{member.member_id} gets the rest of its target with its next heartbeat"


def _assigned(topics: Iterable[TopicPartitions]) -> tuple[AssignedTopic, ...]:
    return tuple(AssignedTopic(each.topic, each.partitions) for each in topics)


def _awaited_steps(group: ConsumerGroupDescription) -> Iterator[str]:
    """What is to happen before a consumer group is stable."""
    epoch = group.assignment_epoch
    if group.members and group.group_epoch > epoch:
        yield (
            f"the target of epoch {group.group_epoch} is computed with the first heartbeat after "
            "the assignment interval"
        )
    for member in group.members:
        revoked = [
            f"{each.topic}-{at}" for each in member.pending_revocation for at in each.partitions
        ]
        if revoked and member.is_held:
            yield f"{member.member_id} has revoked {', '.join(revoked)}, which a fault rule holds"
        elif revoked:
            yield f"{member.member_id} has yet to revoke {', '.join(revoked)}"
        elif member.member_epoch != epoch:
            yield f"{member.member_id} has sent no heartbeat in epoch {epoch} yet"
        for topic, partition, owner in member.awaited:
            yield f"{member.member_id} waits for {topic}-{partition}, which {owner} has"
        if member.state == "UNRELEASED_PARTITIONS" and not member.awaited:
            yield f"{member.member_id} gets the rest of its target with its next heartbeat"


async def _log_ends(broker: ControlledBroker, topics: set[str]) -> dict[tuple[str, int], int]:
    ends: dict[tuple[str, int], int] = {}
    for topic in sorted(topics):
        if topic in broker.image.topics:
            partitions = (await get_topic(broker, topic)).partitions
            ends.update({(topic, at.partition): at.log_end_offset for at in partitions})
    return ends


def _committed(
    group: GroupDescription | ConsumerGroupDescription | StreamsGroupDescription,
    ends: dict[tuple[str, int], int],
) -> Iterator[CommittedOffsetView]:
    for topic, partition, committed in group.offsets:
        end = ends.get((topic, partition))
        lag = None if end is None else max(end - committed.offset, 0)
        yield CommittedOffsetView(topic, partition, committed.offset, committed.metadata, end, lag)
