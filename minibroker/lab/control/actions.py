"""Actions in the control API: what the broker does now, as if its cause had come by itself.

Owns a record for each action with its fields, and the choice of the workers that own what it
changes. It must never know how a group, a transaction or a log changes. Invariant: as JSON an
action is one flat object, as a fault rule is, and one that is answered
without an error was carried out by every worker that it concerns. Kafka has no equivalent;
librdkafka's mock cluster has functions for some of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias

from minibroker.broker.process.messages import ActionReply, ActionRequest
from minibroker.lab.control.operation import UNAVAILABLE, Operations
from minibroker.lab.errors import ApiError, Conflict, NotFound, Unavailable
from minibroker.lab.faults.actions import INT32_MAX, PAUSE_MS_MAX
from minibroker.lab.faults.fault_rule import TEXT_MAX
from minibroker.lab.schema import Doc, Fault, InvalidJson, Length, Range, Variants, to_json
from minibroker_protocol.errors import ErrorCode

if TYPE_CHECKING:
    from minibroker.lab.control.broker import ControlledBroker

ELECTIONS_MAX: Final = 1000
"""By how much one action raises a leader epoch."""
ASSIGNED_MAX: Final = 1000
"""Members in an assignment, and topics of each."""
INT64_MAX: Final = 2**63 - 1
DELIVERIES_MAX: Final = 2**15 - 1
"""The largest delivery count in a response."""

_Group: TypeAlias = Annotated[str, Length(1, TEXT_MAX), Doc("Group id.")]
_Member: TypeAlias = Annotated[
    str, Length(1, TEXT_MAX), Doc("Member id, as in `/v1/groups/{group_id}`.")
]
_Topic: TypeAlias = Annotated[str, Length(1, TEXT_MAX), Doc("Topic.")]
_Partition: TypeAlias = Annotated[
    int | None, Range(0, INT32_MAX), Doc("Partition index; by default all of the topic.")
]
_Holder: TypeAlias = Annotated[
    str | None, Length(1, TEXT_MAX), Doc("Only records that this member has.")
]
_FirstOffset: TypeAlias = Annotated[int, Range(0, INT64_MAX), Doc("First offset.")]
_LastOffset: TypeAlias = Annotated[
    int, Range(0, INT64_MAX), Doc("Last offset; by default the last in flight.")
]
_Process: TypeAlias = Annotated[
    str, Length(1, 64), Doc("A process of the broker as in `/v1/health`.")
]


class Rebalance(NamedTuple):
    """Lets all members of a group rejoin. A consumer, share or streams group gets a new group
    epoch, in which the assignor computes a target.
    """

    group: _Group


class Assign(NamedTuple):
    """Lets all members of a group rejoin; the next generation gets this assignment for the members
    that it names, instead of the leader's. In a consumer, share or streams group these targets are
    in force, in a new epoch, until members or topics change; other members keep theirs, in a
    consumer or streams group without these partitions. In a streams group, the topics are
    subtopologies and the partitions are active tasks.
    """

    group: _Group
    assignment: Annotated[
        Mapping[str, object],
        Length(1, ASSIGNED_MAX),
        Doc('Partitions by topic and member id: `{"member": {"topic": [0, 1]}}`.'),
    ]


class ExpireMember(NamedTuple):
    """Removes a member as if its session had timed out: its next request gets UNKNOWN_MEMBER_ID,
    and the others rejoin.
    """

    group: _Group
    member: _Member


class FenceMember(NamedTuple):
    """Gives the place of a static member to another id, as if a second client had its
    `group.instance.id`: its next request gets FENCED_INSTANCE_ID. Another member of a consumer
    group, and a member of a share or streams group, gets an epoch that it does not know:
    FENCED_MEMBER_EPOCH for its next heartbeat, and STALE_MEMBER_EPOCH for commits and fetches of
    offsets until it rejoins.
    """

    group: _Group
    member: _Member


class ExpireTransaction(NamedTuple):
    """Aborts an ongoing transaction as if it had timed out, and fences its producer."""

    transactional_id: Annotated[str, Length(1, TEXT_MAX), Doc("Transactional id.")]


class Roll(NamedTuple):
    """Starts a new segment in each log that has records."""

    topic: _Topic
    partition: _Partition = None


class Retain(NamedTuple):
    """Applies `retention.ms` and `retention.bytes` now."""

    topic: _Topic
    partition: _Partition = None


class BumpLeaderEpoch(NamedTuple):
    """Raises leader epochs as elections of leaders do: metadata has the new ones, requests with an
    older one get FENCED_LEADER_EPOCH, and later records have the new one.
    """

    topic: _Topic
    partition: _Partition = None
    epochs: Annotated[
        int, Range(1, ELECTIONS_MAX), Doc("By how much each leader epoch is raised.")
    ] = 1


class ExpireAcquisition(NamedTuple):
    """Lets the acquisition locks of a share group's records expire: they are available again, or
    archived if they were delivered as often as allowed. Late acknowledgements get
    INVALID_RECORD_STATE.
    """

    group: _Group
    topic: _Topic
    partition: _Partition = None
    member: _Holder = None
    first_offset: _FirstOffset = 0
    last_offset: _LastOffset = INT64_MAX


class SetDeliveryCount(NamedTuple):
    """Sets how often records in flight for a share group were delivered. If that was the last
    delivery allowed, available records are archived at once, and those that a member has when they
    are released.
    """

    group: _Group
    topic: _Topic
    delivery_count: Annotated[
        int, Range(1, DELIVERIES_MAX), Doc("Deliveries so far; the next one has one more.")
    ]
    partition: _Partition = None
    member: _Holder = None
    first_offset: _FirstOffset = 0
    last_offset: _LastOffset = INT64_MAX


class ProcessKill(NamedTuple):
    """Kills a process, which is restarted."""

    process: _Process


class ProcessPause(NamedTuple):
    """Stops a process for some time."""

    process: _Process
    pause_ms: Annotated[int, Range(0, PAUSE_MS_MAX), Doc("How long a process stops, in real time.")]


BROKER_ACTIONS: Final[dict[str, type]] = {
    "rebalance": Rebalance,
    "assign": Assign,
    "expire_member": ExpireMember,
    "fence_member": FenceMember,
    "expire_transaction": ExpireTransaction,
    "roll": Roll,
    "retain": Retain,
    "bump_leader_epoch": BumpLeaderEpoch,
    "expire_acquisition": ExpireAcquisition,
    "set_delivery_count": SetDeliveryCount,
    "kill": ProcessKill,
    "pause": ProcessPause,
}


class BrokerAction(NamedTuple):
    """Something that the broker does now, as if its cause had come by itself."""

    action: Annotated[object, Variants(BROKER_ACTIONS), Doc("What the broker does.")]


class ActionResult(NamedTuple):
    """What an action has done."""

    affected: Annotated[
        int,
        Doc(
            "Number of members, transactions, logs, segments, partitions, records or processes "
            "changed."
        ),
    ]


_NOT_FOUND: Final = frozenset({
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
})  # fmt: skip


ACTION_OPERATIONS: Final = Operations()


@ACTION_OPERATIONS.add(
    "POST",
    "/v1/actions",
    errors={
        404: "There is no such group, member, transactional id or partition.",
        409: "The action is not possible in the state of the group or transaction.",
        **UNAVAILABLE,
    },
    example={"action": "rebalance", "group": "orders"},
)
async def act(broker: ControlledBroker, action: BrokerAction) -> ActionResult:
    """Let the broker do something now: rebalance, expire a session, roll; respond when done."""
    check_action(action)
    match action.action:
        case ProcessKill(process):
            broker.processes.check("kill", process)
            await broker.processes.kill(process, "an action of the control API")
            return ActionResult(1)
        case ProcessPause(process, pause_ms):
            broker.processes.check("pause", process)
            await broker.processes.pause(process, pause_ms)
            return ActionResult(1)
        case BumpLeaderEpoch(topic, partition, epochs):
            return await _elect_leaders(broker, topic, partition, epochs)
    request = ActionRequest(**to_json(action))
    names = _owners(broker, request)
    if isinstance(action.action, ExpireAcquisition | SetDeliveryCount):
        await _check_share_group(broker, action.action.group)
    replies = await broker.publisher.request_all(request, names)
    if len(replies) < len(names):
        raise Unavailable("BROKER_NOT_AVAILABLE", "an I/O worker is restarting")
    for reply in replies.values():
        if reply.error is not ErrorCode.NONE:
            raise _error(reply)
    return ActionResult(sum(reply.affected for reply in replies.values()))


async def _check_share_group(broker: ControlledBroker, group_id: str) -> None:
    """Raise ``ApiError`` unless there is such a share group."""
    # Which commands of the command line do without.
    from minibroker.lab.control.groups import describe_group

    group = await describe_group(broker, group_id)
    if group.type != "share":
        text = f"{group_id!r} is a {group.type} group, not a share group"
        raise Conflict(ErrorCode.INCONSISTENT_GROUP_PROTOCOL.name, text)


async def _elect_leaders(
    broker: ControlledBroker, topic: str, partition: int | None, epochs: int
) -> ActionResult:
    count, updates = await broker.scope.cluster.elect_leaders(topic, partition, epochs)
    await broker.scope.publish(updates)
    if isinstance(count, int):
        return ActionResult(count)
    kind = NotFound if count.code in _NOT_FOUND else Conflict
    raise kind(count.code.name, count.text)


def _owners(broker: ControlledBroker, action: ActionRequest) -> Sequence[str]:
    """The workers that own the group, transaction or topic."""
    # The settings, which commands of the command line do without.
    from minibroker.broker.metadata.image import group_owner, transaction_owner
    from minibroker.broker.settings import (
        OFFSETS_TOPIC_NUM_PARTITIONS,
        TRANSACTION_STATE_LOG_NUM_PARTITIONS,
    )

    settings, workers = broker.env.settings, broker.workers
    if action.group is not None and action.topic is None:
        partitions = settings[OFFSETS_TOPIC_NUM_PARTITIONS]
        return [workers[group_owner(action.group, partitions, len(workers))]]
    if action.transactional_id is not None:
        partitions = settings[TRANSACTION_STATE_LOG_NUM_PARTITIONS]
        return [workers[transaction_owner(action.transactional_id, partitions, len(workers))]]
    topic = broker.image.topics.get(action.topic or "")
    if topic is None or (action.partition or 0) >= len(topic.partitions):
        text = f"there is no partition {action.partition or 0} of a topic {action.topic!r}"
        raise NotFound(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name, text)
    return workers


def _error(reply: ActionReply) -> ApiError:
    kind = NotFound if reply.error in _NOT_FOUND else Conflict
    return kind(reply.error.name, reply.text)


def check_action(action: BrokerAction) -> None:
    """Raise ``InvalidJson`` if an assignment is none."""
    assigned = action.action
    if isinstance(assigned, Assign) and (faults := [*_assignment_faults(assigned.assignment)]):
        raise InvalidJson(faults)


def _assignment_faults(assignment: Mapping[str, Any]) -> Iterator[Fault]:
    for member, topics in assignment.items():
        path = f"assignment.{member}"
        if not isinstance(topics, Mapping) or len(topics) > ASSIGNED_MAX:
            yield Fault(path, "must be an object: partitions by topic")
            continue
        for topic, partitions in topics.items():
            if not isinstance(partitions, list) or not all(map(_is_index, partitions)):
                yield Fault(f"{path}.{topic}", "must be a list of partition indexes")


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= INT32_MAX
