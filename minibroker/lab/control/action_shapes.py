"""Records for broker actions in the control API, and the one table of what each of them needs.

Owns the fields of an action with their meaning, and the check that an action has the fields that it
needs and no others. It must never know how an action is carried out. Invariant: an action is one
flat object, as a fault rule is, and what it does has happened when it is answered. Kafka has no
equivalent; librdkafka's mock cluster has functions for some of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from minibroker.lab.control.fault_shapes import INT32_MAX, PAUSE_MS_MAX, TEXT_MAX
from minibroker.lab.control.schema import Doc, Fault, InvalidJson, Length, Range

ASSIGNED_MAX: Final = 1000
"""Members in an assignment, and topics of each."""

ActionName: TypeAlias = Literal[
    "rebalance",
    "assign",
    "expire_member",
    "fence_member",
    "expire_transaction",
    "roll",
    "retain",
    "kill",
    "pause",
]


class BrokerAction(NamedTuple):
    """Something that the broker does now, as if its cause had come by itself."""

    action: Annotated[ActionName, Doc("What the broker does.")]
    group: Annotated[str | None, Length(1, TEXT_MAX), Doc("Group id.")] = None
    member: Annotated[
        str | None, Length(1, TEXT_MAX), Doc("Member id, as in `/v1/groups/{group_id}`.")
    ] = None
    assignment: Annotated[
        Mapping[str, object] | None,
        Length(1, ASSIGNED_MAX),
        Doc('Partitions by topic and member id: `{"member": {"topic": [0, 1]}}`.'),
    ] = None
    transactional_id: Annotated[str | None, Length(1, TEXT_MAX), Doc("Transactional id.")] = None
    topic: Annotated[str | None, Length(1, TEXT_MAX), Doc("Topic.")] = None
    partition: Annotated[
        int | None, Range(0, INT32_MAX), Doc("Partition index; by default all of the topic.")
    ] = None
    process: Annotated[
        str | None, Length(1, 64), Doc("A process of the broker as in `/v1/health`.")
    ] = None
    pause_ms: Annotated[
        int | None, Range(0, PAUSE_MS_MAX), Doc("How long a process stops, in real time.")
    ] = None


class BrokerActionKind(NamedTuple):
    """One action: what it does, and the fields that it needs or may have."""

    summary: str
    needed: tuple[str, ...]
    optional: tuple[str, ...] = ()


ACTION_KINDS: Final[dict[ActionName, BrokerActionKind]] = {
    "rebalance": BrokerActionKind("Lets all members of a group rejoin.", ("group",)),
    "assign": BrokerActionKind(
        "Lets all members of a group rejoin; the next generation gets this assignment for the "
        "members that it names, instead of the leader's.",
        ("group", "assignment"),
    ),
    "expire_member": BrokerActionKind(
        "Removes a member as if its session had timed out: its next request gets "
        "UNKNOWN_MEMBER_ID, and the others rejoin.",
        ("group", "member"),
    ),
    "fence_member": BrokerActionKind(
        "Gives the place of a static member to another id, as if a second client had its "
        "`group.instance.id`: its next request gets FENCED_INSTANCE_ID.",
        ("group", "member"),
    ),
    "expire_transaction": BrokerActionKind(
        "Aborts an ongoing transaction as if it had timed out, and fences its producer.",
        ("transactional_id",),
    ),
    "roll": BrokerActionKind(
        "Starts a new segment in each log that has records.", ("topic",), ("partition",)
    ),
    "retain": BrokerActionKind(
        "Applies `retention.ms` and `retention.bytes` now.", ("topic",), ("partition",)
    ),
    "kill": BrokerActionKind("Kills a process, which is restarted.", ("process",)),
    "pause": BrokerActionKind("Stops a process for some time.", ("process", "pause_ms")),
}


class ActionResult(NamedTuple):
    """What an action has done."""

    affected: Annotated[
        int, Doc("Number of members, transactions, logs, segments or processes that it changed.")
    ]


class ActionsBackend(Protocol):
    """A running broker that acts on request."""

    async def act(self, action: BrokerAction) -> ActionResult:
        """Carry out an action; raise ``NotFound`` or ``Conflict`` if there is nothing to change."""


def check_action(action: BrokerAction) -> None:
    """Raise ``InvalidJson`` with all fields that are missing or make no sense."""
    if faults := [*_field_faults(action), *_assignment_faults(action.assignment)]:
        raise InvalidJson(faults)


def _field_faults(action: BrokerAction) -> Iterator[Fault]:
    kind = ACTION_KINDS[action.action]
    given = {name for name, value in action._asdict().items() if value is not None} - {"action"}
    for name in kind.needed:
        if name not in given:
            yield Fault(name, f"is missing: the action {action.action} needs it")
    for name in sorted(given - {*kind.needed, *kind.optional}):
        yield Fault(name, f"does not belong to the action {action.action}")


def _assignment_faults(assignment: Mapping[str, Any] | None) -> Iterator[Fault]:
    for member, topics in (assignment or {}).items():
        path = f"assignment.{member}"
        if not isinstance(topics, Mapping) or len(topics) > ASSIGNED_MAX:
            yield Fault(path, "must be an object: partitions by topic")
            continue
        for topic, partitions in topics.items():
            if not isinstance(partitions, list) or not all(map(_is_index, partitions)):
                yield Fault(f"{path}.{topic}", "must be a list of partition indexes")


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= INT32_MAX
