"""Groups in the control API: list them, and describe one with its lag.

Owns their records and operations. It must never change a group. Invariant: an answer is not older
than its request. Kafka's ``Admin`` client has the same operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from minibroker.broker.metadata.placement import group_owner
from minibroker.broker.process.messages import GroupsRequest
from minibroker.broker.settings import OFFSETS_TOPIC_NUM_PARTITIONS
from minibroker.lab.control.operation import UNAVAILABLE, Operations
from minibroker.lab.control.topics import get_topic
from minibroker.lab.errors import NotFound, Unavailable
from minibroker.lab.schema import Doc

if TYPE_CHECKING:
    from minibroker.broker.groups.description import GroupDescription, GroupOverview
    from minibroker.lab.control.broker import ControlledBroker


class GroupSummary(NamedTuple):
    """A consumer group in a list."""

    group_id: str
    state: Annotated[str, Doc("Kafka's name of the state, e.g. `Stable`.")]
    protocol_type: str
    members: Annotated[int, Doc("Number of members.")]


class GroupList(NamedTuple):
    """All groups, by id."""

    groups: tuple[GroupSummary, ...]


class AssignedTopic(NamedTuple):
    """The partitions of one topic that are assigned to a member."""

    topic: str
    partitions: tuple[int, ...]


class Member(NamedTuple):
    """A member of a group."""

    member_id: str
    group_instance_id: Annotated[str | None, Doc("Set for static members.")]
    client_id: str
    client_host: str
    assignment: Annotated[
        tuple[AssignedTopic, ...], Doc("Empty if the protocol type is not `consumer`.")
    ]


class CommittedOffsetView(NamedTuple):
    """Committed offset and lag of a group in one partition."""

    topic: str
    partition: int
    offset: Annotated[int, Doc("The committed offset: the next record to read.")]
    metadata: str
    log_end_offset: Annotated[int | None, Doc("Null if the partition was deleted.")]
    lag: Annotated[int | None, Doc("Records not consumed yet; null if the partition was deleted.")]


class GroupView(NamedTuple):
    """A group with its members and committed offsets."""

    group_id: str
    state: Annotated[str, Doc("Kafka's name of the state, e.g. `Stable`.")]
    protocol_type: str
    protocol: Annotated[str, Doc("The assignor that the group uses, or empty.")]
    generation: int
    leader: Annotated[str | None, Doc("Member id of the leader.")]
    coordinator: Annotated[str, Doc("Process that owns the group, e.g. `worker-0`.")]
    members: tuple[Member, ...]
    offsets: tuple[CommittedOffsetView, ...]


GROUP_OPERATIONS: Final = Operations()


@GROUP_OPERATIONS.add("GET", "/v1/groups", errors=UNAVAILABLE)
async def list_groups(broker: ControlledBroker) -> GroupList:
    """List all consumer groups."""
    return GroupList(
        tuple(
            GroupSummary(group.group_id, group.state, group.protocol_type, group.members)
            for group in sorted(await group_overviews(broker))
        )
    )


async def group_overviews(broker: ControlledBroker) -> list[GroupOverview]:
    """Return all groups of all workers."""
    overviews = await broker.publisher.request_all(GroupsRequest(), broker.workers)
    return [group for groups in overviews.values() for group in groups]


@GROUP_OPERATIONS.add(
    "GET", "/v1/groups/{group_id}", errors={404: "There is no group with this id.", **UNAVAILABLE}
)
async def get_group(broker: ControlledBroker, group_id: str) -> GroupView:
    """Return a group: members, their partitions, committed offsets and lag."""
    partitions = broker.env.settings[OFFSETS_TOPIC_NUM_PARTITIONS]
    coordinator = broker.workers[group_owner(group_id, partitions, len(broker.workers))]
    answers = await broker.publisher.request_all(GroupsRequest(group_id), [coordinator])
    if coordinator not in answers:
        raise Unavailable("COORDINATOR_NOT_AVAILABLE", f"{coordinator} is being restarted")
    group: GroupDescription | None = answers[coordinator]
    if group is None:
        raise NotFound("GROUP_ID_NOT_FOUND", f"there is no group {group_id!r}")
    ends = await _log_ends(broker, {topic for topic, _, _ in group.offsets})
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


async def _log_ends(broker: ControlledBroker, topics: set[str]) -> dict[tuple[str, int], int]:
    ends: dict[tuple[str, int], int] = {}
    for topic in sorted(topics):
        if topic in broker.image.topics:
            partitions = (await get_topic(broker, topic)).partitions
            ends.update({(topic, at.partition): at.log_end_offset for at in partitions})
    return ends


def _committed(
    group: GroupDescription, ends: dict[tuple[str, int], int]
) -> Iterator[CommittedOffsetView]:
    for topic, partition, committed in group.offsets:
        end = ends.get((topic, partition))
        lag = None if end is None else max(end - committed.offset, 0)
        yield CommittedOffsetView(topic, partition, committed.offset, committed.metadata, end, lag)
