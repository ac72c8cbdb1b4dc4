"""Consumer lag in the control API: that of all groups now and in the last minutes, and the reset of
committed offsets.

Owns their records and operations, and how lag is measured. It must never move an offset of a group
that has members. Invariant: to measure lag, each worker is asked twice, for a bounded number of
offsets. Kafka's ``kafka-consumer-groups.sh`` shows the present lag and resets offsets too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from minibroker.broker.apis.group_offsets import CommitPosition, OffsetCommitPart
from minibroker.broker.apis.partition_logs import EARLIEST, LATEST, OffsetQuery
from minibroker.broker.groups.events import CommitRequested
from minibroker.broker.metadata.image import group_owner, partition_owner
from minibroker.broker.process.messages import (
    ApiPart,
    GroupsRequest,
)
from minibroker.broker.settings import OFFSETS_TOPIC_NUM_PARTITIONS
from minibroker.lab.control.groups import group_overviews
from minibroker.lab.control.history import (
    LAG_GROUPS_MAX,
    LAG_SAMPLE_S,
    LAG_SAMPLES_MAX,
    CommittedOffsets,
    History,
    committed_offsets,
)
from minibroker.lab.control.operation import UNAVAILABLE, Operations
from minibroker.lab.control.topics import TOPIC_NAME_MAX, partition_logs
from minibroker.lab.errors import ApiError, Conflict, NotFound, Unavailable
from minibroker.lab.schema import Doc, Fault, InvalidJson, Length, Range
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.registry import ApiKey

if TYPE_CHECKING:
    from minibroker.lab.control.broker import ControlledBroker

PARTITIONS_MAX: Final = 1000
"""Partitions in one reset."""

OFFSET_MAX: Final = 2**63 - 1

_Partition = tuple[str, int]


class GroupLag(NamedTuple):
    """The lag of a group, now and before."""

    group_id: str
    state: Annotated[str, Doc("Kafka's name of the state, e.g. `Stable`.")]
    members: Annotated[int, Doc("Number of members.")]
    lag: Annotated[
        int | None,
        Doc("Records not consumed yet, of all partitions; null if no offset is committed."),
    ]
    lags: Annotated[
        tuple[int | None, ...],
        Doc("The lag at each past sample, oldest first; null where it was not known."),
    ]


class LagList(NamedTuple):
    """The lag of all groups, by id."""

    interval_ms: Annotated[int, Doc("Real time between two samples.")]
    sampled_ago_ms: Annotated[int, Doc("Real time since the last sample.")]
    groups: tuple[GroupLag, ...]


class OffsetResetRequest(NamedTuple):
    """Where a group starts to read."""

    topic: Annotated[str, Length(1, TOPIC_NAME_MAX), Doc("The topic.")]
    to: Annotated[
        Literal["earliest", "latest", "offset", "shift", "timestamp"],
        Doc(
            "`earliest` and `latest` are the ends of the log. `offset` is `value`, `shift` adds "
            "`value` to the committed offset, and `timestamp` is the first record since then."
        ),
    ]
    value: Annotated[
        int | None,
        Range(-OFFSET_MAX, OFFSET_MAX),
        Doc("An offset, a number of records, or milliseconds since 1970."),
    ] = None
    partitions: Annotated[
        tuple[int, ...] | None,
        Length(1, PARTITIONS_MAX),
        Doc("Partition indexes; by default all of the topic."),
    ] = None
    dry_run: Annotated[bool, Doc("Only return what would be changed.")] = False
    group_id: Annotated[
        str, Doc("If the path ends before the id, e.g. for `..`, which clients remove from paths.")
    ] = ""


class OffsetChange(NamedTuple):
    """The committed offset of one partition before and after a reset."""

    topic: str
    partition: int
    before: Annotated[int | None, Doc("Null if there was none.")]
    after: int


class OffsetChanges(NamedTuple):
    """What a reset has changed, or would change."""

    changes: tuple[OffsetChange, ...]


class LagHistory:
    """Measures the lag of groups and keeps the samples of one broker."""

    def __init__(self, broker: ControlledBroker) -> None:
        self._broker = broker
        self.samples: History[str, int] = History(LAG_SAMPLES_MAX, LAG_GROUPS_MAX)

    async def sample(self, offsets: CommittedOffsets) -> None:
        """Keep the present lag."""
        lags = await lags_of(self._broker, offsets)
        self.samples.add(lags, self._broker.env.clock.real_s())


async def lags_of(broker: ControlledBroker, offsets: CommittedOffsets) -> dict[str, int]:
    """Return the lag of each group in all partitions that exist."""
    logs = await partition_logs(broker, {key for group in offsets.values() for key in group})
    return {
        group: sum(
            max(logs[key].log_end_offset - offset, 0)
            for key, offset in committed.items()
            if key in logs
        )
        for group, committed in offsets.items()
        if committed
    }


LAG_OPERATIONS: Final = Operations()


@LAG_OPERATIONS.add("GET", "/v1/lag", errors=UNAVAILABLE)
async def list_lag(broker: ControlledBroker) -> LagList:
    """List the lag of all groups, now and in the last ten minutes."""
    lags = await lags_of(broker, await committed_offsets(broker))
    now, samples = broker.env.clock.real_s(), broker.state(LagHistory).samples
    return LagList(
        interval_ms=LAG_SAMPLE_S * 1000,
        sampled_ago_ms=max(0, round((now - samples.sampled_at) * 1000)),
        groups=tuple(
            GroupLag(
                group.group_id,
                group.state,
                group.members,
                lags.get(group.group_id),
                samples.of(group.group_id),
            )
            for group in sorted(await group_overviews(broker))
        ),
    )


@LAG_OPERATIONS.add(
    "POST",
    "/v1/offsets/{group_id}",
    errors={
        404: "There is no such topic or partition.",
        409: "The group has members.",
        **UNAVAILABLE,
    },
    example={"topic": "orders", "to": "earliest"},
)
async def reset_offsets(
    broker: ControlledBroker, group_id: str, reset: OffsetResetRequest
) -> OffsetChanges:
    """Reset the committed offsets of a group without members."""
    group_id = group_id or reset.group_id
    partitions = _reset_partitions(broker, reset)
    settings, workers = broker.env.settings, broker.workers
    count = settings[OFFSETS_TOPIC_NUM_PARTITIONS]
    coordinator = workers[group_owner(group_id, count, len(workers))]
    group = await _ask(broker, coordinator, GroupsRequest(group_id))
    if group is not None and group.members:
        hint = "Stop its members first."
        text = f"group {group_id!r} has {len(group.members)} members"
        raise Conflict(ErrorCode.NON_EMPTY_GROUP.name, text, hint)
    before = {} if group is None else {
        (topic, index): committed.offset for topic, index, committed in group.offsets
    }  # fmt: skip
    after = await _reset_positions(broker, reset, partitions, before)
    if not reset.dry_run:
        await _commit(broker, coordinator, group_id, after)
    return OffsetChanges(
        tuple(OffsetChange(*key, before.get(key), offset) for key, offset in after.items())
    )


def _reset_partitions(broker: ControlledBroker, reset: OffsetResetRequest) -> list[_Partition]:
    needs_value = reset.to in {"offset", "shift", "timestamp"}
    if needs_value != (reset.value is not None):
        what = "is required" if needs_value else "must be omitted"
        raise InvalidJson([Fault("value", f"{what} with {reset.to}")])
    topic = broker.image.topics.get(reset.topic)
    count = 0 if topic is None else len(topic.partitions)
    chosen = range(count) if reset.partitions is None else sorted({*reset.partitions})
    if topic is None or not all(0 <= index < count for index in chosen):
        text = f"there is no topic {reset.topic!r}"
        if topic is not None:
            text = f"{reset.topic} has the partitions 0 to {count - 1}"
        raise NotFound(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name, text)
    return [(reset.topic, index) for index in chosen]


async def _reset_positions(
    broker: ControlledBroker,
    reset: OffsetResetRequest,
    partitions: list[_Partition],
    before: Mapping[_Partition, int],
) -> dict[_Partition, int]:
    """The new offset of each partition, within the bounds of its log as in Kafka's tool."""
    value = reset.value or 0
    first = await _find_offsets(broker, partitions, EARLIEST)
    last = await _find_offsets(broker, partitions, LATEST)
    wanted: Mapping[_Partition, int] = first if reset.to == "earliest" else last
    if reset.to == "offset":
        wanted = dict.fromkeys(partitions, value)
    elif reset.to == "shift":
        wanted = {key: before.get(key, first[key]) + value for key in partitions}
    elif reset.to == "timestamp":
        since = await _find_offsets(broker, partitions, max(value, 0))
        wanted = {key: last[key] if since[key] < 0 else since[key] for key in partitions}
    return {key: min(max(wanted[key], first[key]), last[key]) for key in partitions}


async def _find_offsets(
    broker: ControlledBroker, partitions: list[_Partition], timestamp: int
) -> dict[_Partition, int]:
    """The offsets for a timestamp as in ListOffsets; -1 where there is none."""
    queries: dict[str, list[OffsetQuery]] = {}
    for topic, index in partitions:
        owner = broker.workers[partition_owner(topic, index, len(broker.workers))]
        queries.setdefault(owner, []).append(OffsetQuery(topic, index, timestamp, -1))
    found: dict[_Partition, int] = {}
    for owner, of_owner in queries.items():
        part = ApiPart(ApiKey.LIST_OFFSETS, tuple(of_owner))
        for key, result in (await _ask(broker, owner, part)).reply.items():
            if result.error_code != ErrorCode.NONE:
                raise Unavailable(ErrorCode(result.error_code).name, f"{key[0]}-{key[1]} failed")
            found[key] = result.offset
    return found


async def _commit(
    broker: ControlledBroker, coordinator: str, group_id: str, offsets: Mapping[_Partition, int]
) -> None:
    positions = {key: CommitPosition(offset, -1, "") for key, offset in offsets.items()}
    part = OffsetCommitPart(group_id, CommitRequested("", -1), positions, None)
    answer = await _ask(broker, coordinator, ApiPart(ApiKey.OFFSET_COMMIT, part))
    for error in answer.reply.values():
        if error is ErrorCode.UNKNOWN_MEMBER_ID:  # A member has joined in the meantime.
            raise Conflict(ErrorCode.NON_EMPTY_GROUP.name, f"group {group_id!r} has members")
        if error is not ErrorCode.NONE:
            raise ApiError(error.name, f"the offsets of group {group_id!r} can't be committed")


async def _ask(broker: ControlledBroker, worker: str, request: object) -> Any:
    answers = await broker.publisher.request_all(request, [worker])
    if worker not in answers:
        raise Unavailable("COORDINATOR_NOT_AVAILABLE", f"{worker} is being restarted")
    return answers[worker]
