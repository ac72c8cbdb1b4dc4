"""The requests of streams groups (KIP-1071) for their coordinator: members and descriptions.

They are served if the feature ``streams.version`` is 1 and the setting
``group.coordinator.rebalance.protocols`` has ``streams``; otherwise they get UNSUPPORTED_VERSION,
before any check of rights, and the client is reported. The rules are in `groups.streams_group`. The
internal topics that a heartbeat finds missing are created before it is answered. Invariant: a
request that cannot be valid for any group does not reach its owner. Kafka's
``KafkaApis.handleStreamsGroupHeartbeat`` and ``GroupCoordinatorService``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from minibroker.broker.apis.base import (
    CONTROLLER,
    SPECIAL,
    Api,
    Context,
    ControllerScope,
    Owner,
    Round,
    SingleForm,
    SingleScope,
    WorkerScope,
)
from minibroker.broker.apis.epoch_groups import GroupProtocol, describe_api
from minibroker.broker.apis.unserved import STREAMS_GROUPS, TOPOLOGY_DESCRIPTIONS
from minibroker.broker.groups.consumer_member import JOIN_EPOCH, STATIC_LEAVE_EPOCH
from minibroker.broker.groups.description import (
    StreamsGroupDescription,
    StreamsMemberDescription,
)
from minibroker.broker.groups.events import (
    ActionTaken,
    EndpointPartitions,
    StreamsHeartbeat,
    StreamsHeartbeatResult,
    TaskOffset,
    Tasks,
    TopologyDescribed,
    UserEndpoint,
)
from minibroker.broker.groups.streams_group import StreamsGroup
from minibroker.broker.groups.streams_member import by_subtopology
from minibroker.broker.groups.streams_records import STREAMS
from minibroker.broker.groups.streams_state import topology_of
from minibroker.broker.groups.streams_topology import InternalTopic
from minibroker.broker.metadata.features import STREAMS_VERSION, level
from minibroker.broker.metadata.image import (
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from minibroker.broker.metadata.topics import NewTopic, name_problem
from minibroker.broker.security.acl import Operation, Resource
from minibroker.broker.settings import (
    GROUP_COORDINATOR_REBALANCE_PROTOCOLS,
    GROUP_STREAMS_TOPOLOGY_DESCRIPTION_PLUGIN_CLASS,
)
from minibroker_protocol.compiler.single import Shape
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages import streams_group_describe as described
from minibroker_protocol.messages import streams_group_heartbeat as heartbeat
from minibroker_protocol.messages.streams_group_describe import StreamsGroupDescribeResponse
from minibroker_protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from minibroker_protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
)
from minibroker_protocol.registry import ApiKey

MISSING_INTERNAL_TOPICS: Final = 3
"""The status of a group some of whose internal topics do not exist."""
DESCRIPTION_SINCE: Final = 1
"""First version whose clients can be asked for the description of their topology."""
TAGS_SINCE: Final = 1
"""First version whose clients know the status of missing client tags."""
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC})


def serves_streams_groups(scope: Context | WorkerScope) -> bool:
    """Whether this broker serves streams groups now."""
    protocols = scope.settings[GROUP_COORDINATOR_REBALANCE_PROTOCOLS]
    return STREAMS in protocols and level(scope.image.features, STREAMS_VERSION) >= 1


# StreamsGroupHeartbeat (88) -----------------------------------------------------------------------
#
# A member joins with epoch 0 and the topology of its application, leaves with -1, or -2 if it is
# static and will return, and otherwise confirms its epoch and the tasks that it has. Versions 0-1.
# The response has the member's epoch, its tasks if they have changed, and what keeps the group from
# working, such as missing topics.


class StreamsHeartbeatPart(NamedTuple):
    """A group, and the heartbeat of one of its members."""

    group_id: str
    event: StreamsHeartbeat


class CreatedTopics(NamedTuple):
    """Why internal topics could not be created, by name."""

    errors: Mapping[str, str]


HeartbeatReply = StreamsHeartbeatResult | CreatedTopics


def _split_heartbeat(
    ctx: Context, request: StreamsGroupHeartbeatRequest
) -> Mapping[Owner, StreamsHeartbeatPart]:
    """Send a request that may be valid to the group's owner."""
    if not serves_streams_groups(ctx) or _problem(request) is not None:
        return {}
    topology, endpoint, tags = request.topology, request.user_endpoint, request.client_tags
    event = StreamsHeartbeat(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topology=None if topology is None else topology_of(topology),
        owned=_owned(request),
        task_offsets=_offsets(request.task_offsets),
        task_end_offsets=_offsets(request.task_end_offsets),
        process_id=request.process_id,
        endpoint=None if endpoint is None else UserEndpoint(endpoint.host, endpoint.port),
        client_tags=None if tags is None else {each.key: each.value for each in tags},
        shuts_down=request.shutdown_application,
        endpoint_epoch=request.endpoint_information_epoch,
        client_id=ctx.header.client_id or "",
        client_host=f"/{ctx.caller.client_host}",
        knows_description=ctx.version >= DESCRIPTION_SINCE,
        knows_tags=ctx.version >= TAGS_SINCE,
    )
    return {ctx.group_owner(request.group_id): StreamsHeartbeatPart(request.group_id, event)}


def _owned(request: StreamsGroupHeartbeatRequest) -> Tasks | None:
    """The tasks that the member has; all kinds are stated, or none."""
    active, standby, warmup = request.active_tasks, request.standby_tasks, request.warmup_tasks
    if active is None or standby is None or warmup is None:
        return None
    return Tasks(
        *(
            frozenset((each.subtopology_id, index) for each in tasks for index in each.partitions)
            for tasks in (active, standby, warmup)
        )
    )


def _offsets(listed: Iterable[heartbeat.TaskOffset] | None) -> tuple[TaskOffset, ...] | None:
    if listed is None:
        return None
    return tuple(TaskOffset((each.subtopology_id, each.partition), each.offset) for each in listed)


class Problem(NamedTuple):
    """Why a request cannot be valid."""

    text: str
    error: ErrorCode = ErrorCode.INVALID_REQUEST


def topology_topics(request: StreamsGroupHeartbeatRequest) -> list[str]:
    """All topics that the topology of a request names, each once."""
    subtopologies = () if request.topology is None else request.topology.subtopologies
    return list(
        dict.fromkeys(
            name
            for each in subtopologies
            for name in (
                *each.source_topics,
                *each.repartition_sink_topics,
                *(topic.name for topic in each.repartition_source_topics),
                *(topic.name for topic in each.state_changelog_topics),
            )
        )
    )


def topics_problem(names: Iterable[str]) -> Problem | None:
    """Why a topology cannot have these topics; None if it may."""
    names = list(names)
    internal = [name for name in names if name in INTERNAL_TOPICS]
    if internal:
        text = f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is "
        return Problem(f"{text}prohibited.", ErrorCode.STREAMS_INVALID_TOPOLOGY)
    invalid = [name for name in names if name_problem(name)]
    if invalid:
        text = f"Topic names {','.join(invalid)} are not valid topic names."
        return Problem(text, ErrorCode.STREAMS_INVALID_TOPOLOGY)
    return None


def _problem(request: StreamsGroupHeartbeatRequest) -> Problem | None:
    """Why a request cannot be valid, in Kafka's order; None if it may be."""
    topology = request.topology
    problem = topics_problem(topology_topics(request))
    if problem is not None:
        return problem
    if topology is not None and any(each.source_topic_regex for each in topology.subtopologies):
        return Problem("Regular expressions for source topics are not supported yet.")
    for name, text in (
        ("MemberId", request.member_id),
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if text is not None and not text.strip():
            return Problem(f"{name} can't be empty.")
    problem = _epoch_problem(request)
    if problem is not None:
        return problem
    stated = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if any(each is None for each in stated) and any(each is not None for each in stated):
        return Problem("If one task-type is non-null, all must be non-null.")
    if request.member_epoch != JOIN_EPOCH and topology is not None:
        return Problem("Topology can only be provided when (re-)joining.")
    return None


def _epoch_problem(request: StreamsGroupHeartbeatRequest) -> Problem | None:
    epoch = request.member_epoch
    if epoch == JOIN_EPOCH:
        return _join_problem(request)
    if epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        return Problem("InstanceId can't be null.")
    if epoch < STATIC_LEAVE_EPOCH:
        return Problem(f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    return None


def _join_problem(request: StreamsGroupHeartbeatRequest) -> Problem | None:
    if request.rebalance_timeout_ms == -1:
        return Problem("RebalanceTimeoutMs must be provided in first request.")
    for name, tasks in (
        ("ActiveTasks", request.active_tasks),
        ("StandbyTasks", request.standby_tasks),
        ("WarmupTasks", request.warmup_tasks),
    ):
        if tasks:
            return Problem(f"{name} must be empty when (re-)joining.")
    if request.topology is None:
        return Problem("Topology must be non-null when (re-)joining.")
    if request.topology.epoch < 0:
        return Problem("Topology epoch must be non-negative.", ErrorCode.UNKNOWN_SERVER_ERROR)
    ids = [each.subtopology_id for each in request.topology.subtopologies]
    if len(set(ids)) < len(ids):
        return Problem("Two subtopologies have the same id.", ErrorCode.UNKNOWN_SERVER_ERROR)
    for subtopology in request.topology.subtopologies:
        for topic in subtopology.state_changelog_topics:
            if topic.partitions:
                text = f"Changelog topic {topic.name} must have an undefined partition count, but "
                text += f"it is set to {topic.partitions}."
                return Problem(text, ErrorCode.STREAMS_INVALID_TOPOLOGY)
    return None


def _beat(scope: WorkerScope, part: StreamsHeartbeatPart) -> StreamsHeartbeatResult:
    return scope.groups.streams_heartbeat(part.group_id, part.event)


async def _create_topics(scope: ControllerScope, part: tuple[InternalTopic, ...]) -> CreatedTopics:
    """Create internal topics."""
    wanted = [
        NewTopic(
            topic.name,
            topic.partitions,
            topic.replication_factor or -1,
            config=tuple(topic.config.items()),
        )
        for topic in part
    ]
    outcome = await scope.cluster.create_topics(wanted)
    await scope.publish(outcome.updates)
    rejected = {each.name: each.rejection for each in outcome.topics if each.rejection is not None}
    exists = ErrorCode.TOPIC_ALREADY_EXISTS  # Another member's heartbeat has created it.
    return CreatedTopics(
        {
            name: rejection.text
            for name, rejection in rejected.items()
            if rejection.code is not exists
        }
    )


def _next_heartbeat_round(
    ctx: Context,
    _request: StreamsGroupHeartbeatRequest,
    replies: Mapping[Owner, HeartbeatReply],
) -> Round | None:
    """Create the internal topics that are missing, if the client may."""
    result = _heartbeat_result(replies)
    if CONTROLLER in replies or result is None or not result.missing_topics:
        return None
    if _topics_not_to_create(ctx, result):
        return None
    return Round({CONTROLLER: result.missing_topics})


def _heartbeat_result(replies: Mapping[Owner, HeartbeatReply]) -> StreamsHeartbeatResult | None:
    found = (each for each in replies.values() if isinstance(each, StreamsHeartbeatResult))
    return next(found, None)


def _topics_not_to_create(ctx: Context, result: StreamsHeartbeatResult) -> list[str]:
    """The missing topics that the client is not authorized to create."""
    if ctx.allows(Operation.CREATE, Resource.CLUSTER, quietly=True):
        return []
    names = (each.name for each in result.missing_topics)
    return [name for name in names if not ctx.allows(Operation.CREATE, Resource.TOPIC, name)]


def _merge_heartbeat(
    ctx: Context, request: StreamsGroupHeartbeatRequest, replies: Mapping[Owner, HeartbeatReply]
) -> StreamsGroupHeartbeatResponse:
    if not serves_streams_groups(ctx):
        ctx.unserved = STREAMS_GROUPS
        return StreamsGroupHeartbeatResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=STREAMS_GROUPS.text
        )
    result = _heartbeat_result(replies)
    if result is None:
        problem = _problem(request)
        if problem is None:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            return StreamsGroupHeartbeatResponse(error_code=error)
        return StreamsGroupHeartbeatResponse(error_code=problem.error, error_message=problem.text)
    response = _response(result)
    if result.missing_topics:
        _note_creation(ctx, response, result, replies)
    return response


def _response(result: StreamsHeartbeatResult) -> StreamsGroupHeartbeatResponse:
    tasks = result.tasks
    active, standby, warmup = (None, None, None) if tasks is None else map(_task_ids, tasks)
    return StreamsGroupHeartbeatResponse(
        error_code=result.error,
        error_message=result.message,
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        task_offset_interval_ms=result.task_offset_interval_ms,
        acceptable_recovery_lag=result.acceptable_recovery_lag,
        status=[
            heartbeat.Status(status_code=each.code, status_detail=each.detail)
            for each in result.statuses
        ],
        active_tasks=active,
        standby_tasks=standby,
        warmup_tasks=warmup,
        topology_description_required=result.description_required,
        endpoint_information_epoch=result.endpoint_epoch,
        partitions_by_user_endpoint=None
        if result.endpoints is None
        else [_endpoint(each) for each in result.endpoints],
    )


def _task_ids(tasks: Iterable[tuple[str, int]]) -> list[heartbeat.TaskIds]:
    return [
        heartbeat.TaskIds(subtopology_id=subtopology, partitions=partitions)
        for subtopology, partitions in by_subtopology(tasks).items()
    ]


def _endpoint(shown: EndpointPartitions) -> heartbeat.EndpointToPartitions:
    active, standby = (
        [
            heartbeat.TopicPartition(topic=topic, partitions=list(partitions))
            for topic, partitions in listed
        ]
        for listed in (shown.active, shown.standby)
    )
    endpoint = heartbeat.Endpoint(host=shown.endpoint.host, port=shown.endpoint.port)
    return heartbeat.EndpointToPartitions(
        user_endpoint=endpoint, active_partitions=active, standby_partitions=standby
    )


def _note_creation(
    ctx: Context,
    response: StreamsGroupHeartbeatResponse,
    result: StreamsHeartbeatResult,
    replies: Mapping[Owner, HeartbeatReply],
) -> None:
    """Say why internal topics were not created."""
    created = replies.get(CONTROLLER)
    if not isinstance(created, CreatedTopics):
        denied = ", ".join(_topics_not_to_create(ctx, result))
        text = f"Unauthorized to CREATE on topics {denied}."
    elif created.errors:
        shown = (f"{name} ({error})" for name, error in created.errors.items())
        text = f"Creation failed: {', '.join(shown)}."
    else:
        return
    for status in response.status or ():
        if status.status_code == MISSING_INTERNAL_TOPICS:
            status.status_detail = f"{status.status_detail}; {text}"


def _beat_in_one_step(
    scope: SingleScope, version: int, request: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """Extend the session of a member that reports nothing, and for which nothing changes."""
    group_id, member_id, epoch, endpoint_epoch, instance_id, rack_id, timeout_ms, *stated = request
    *unstated, shuts_down = stated
    if shuts_down or any(each is not None for each in unstated):
        return None
    if not serves_streams_groups(scope.worker):
        return None
    event = StreamsHeartbeat(
        member_id=member_id,
        member_epoch=epoch,
        instance_id=instance_id,
        rack_id=rack_id,
        rebalance_timeout_ms=timeout_ms,
        endpoint_epoch=endpoint_epoch,
        knows_description=version >= DESCRIPTION_SINCE,
        client_id=scope.client_id or "",
        client_host=f"/{scope.caller.client_host}",
    )
    extended = scope.worker.groups.extend_session(group_id, StreamsGroup, event)
    if extended is None:
        return None
    group, repeat = extended
    scope.repeat_by(repeat)
    config = group.config
    return (
        0,
        ErrorCode.NONE,
        None,
        member_id,
        epoch,
        group.times.heartbeat_interval_ms,
        0,
        config.task_offset_interval_ms,
        config.acceptable_recovery_lag,
        (),
        None,
        None,
        None,
        False,
        endpoint_epoch,
        None,
    )


STREAMS_GROUP_HEARTBEAT: Api[
    StreamsGroupHeartbeatRequest, Any, HeartbeatReply, StreamsGroupHeartbeatResponse
] = Api(
    key=ApiKey.STREAMS_GROUP_HEARTBEAT,
    versions=(0, 1),
    requires=SPECIAL,
    split=_split_heartbeat,
    execute=_beat,
    execute_at_controller=_create_topics,
    merge=_merge_heartbeat,
    next_round=_next_heartbeat_round,
    single=SingleForm(Shape(), _beat_in_one_step, repeats=True),
)


# StreamsGroupDescribe (89) ------------------------------------------------------------------------
#
# Describe the state, the epochs, the topology and the members of streams groups. Versions 0-1;
# version 1 adds the assignor, and the description of the topology if the client asks for it.


NOT_STORED: Final = 1
STORED: Final = 3


def _described(shown: StreamsGroupDescription) -> dict[str, Any]:
    return {
        "group_state": shown.state,
        "group_epoch": shown.group_epoch,
        "assignment_epoch": shown.assignment_epoch,
        "topology": described.Topology(
            epoch=shown.topology_epoch,
            subtopologies=[
                described.Subtopology(
                    subtopology_id=each.subtopology_id,
                    source_topics=list(each.source_topics),
                    repartition_sink_topics=list(each.repartition_sinks),
                    state_changelog_topics=_topic_infos(each.changelogs),
                    repartition_source_topics=_topic_infos(each.repartition_sources),
                )
                for each in shown.subtopologies
            ],
        ),
        "topology_description": shown.topology,
        "topology_description_status": NOT_STORED if shown.topology is None else STORED,
        "members": [_described_member(member) for member in shown.members],
        "assignor_name": shown.assignor,
    }


def _topic_infos(topics: Iterable[InternalTopic]) -> list[described.TopicInfo]:
    return [
        described.TopicInfo(
            name=each.name,
            partitions=each.partitions,
            replication_factor=each.replication_factor,
            topic_configs=[
                described.KeyValue(key=key, value=value) for key, value in each.config.items()
            ],
        )
        for each in topics
    ]


def _described_member(member: StreamsMemberDescription) -> described.Member:
    endpoint = member.endpoint
    return described.Member(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None
        if endpoint is None
        else described.Endpoint(host=endpoint.host, port=endpoint.port),
        client_tags=[
            described.KeyValue(key=key, value=value) for key, value in member.client_tags.items()
        ],
        task_offsets=_described_offsets(member.task_offsets),
        task_end_offsets=_described_offsets(member.task_end_offsets),
        assignment=_described_tasks(member.assigned),
        target_assignment=_described_tasks(member.target),
    )


def _described_offsets(offsets: Iterable[TaskOffset]) -> list[described.TaskOffset]:
    return [
        described.TaskOffset(subtopology_id=subtopology, partition=partition, offset=offset)
        for (subtopology, partition), offset in sorted(offsets)
    ]


def _described_tasks(tasks: Tasks) -> described.Assignment:
    active, standby, warmup = (
        [
            described.TaskIds(subtopology_id=subtopology, partitions=partitions)
            for subtopology, partitions in by_subtopology(each).items()
        ]
        for each in tasks
    )
    return described.Assignment(active_tasks=active, standby_tasks=standby, warmup_tasks=warmup)


_DESCRIBE: Final = describe_api(
    ApiKey.STREAMS_GROUP_DESCRIBE,
    versions=(0, 1),
    protocol=GroupProtocol("streams", STREAMS_GROUPS, serves_streams_groups),
    find=lambda scope, group_id: scope.groups.describe_streams_group(group_id),
    response_type=StreamsGroupDescribeResponse,
    group_type=described.DescribedGroup,
    fields=_described,
)


def _merge_descriptions(ctx: Context, request: Any, replies: Mapping[Owner, Any]) -> Any:
    response: Any = _DESCRIBE.merge(ctx, request, replies)
    if not request.include_topology_description:
        for group in response.groups:
            group.topology_description, group.topology_description_status = None, 0
    return response


STREAMS_GROUP_DESCRIBE = replace(_DESCRIBE, merge=_merge_descriptions)


# StreamsGroupTopologyDescriptionUpdate (93) -------------------------------------------------------
#
# A member sends the description of its topology after a heartbeat has asked for it. Version 0.


class DescriptionPart(NamedTuple):
    """A group, and the description of its topology."""

    group_id: str
    event: TopologyDescribed


def _split_update(
    ctx: Context, request: StreamsGroupTopologyDescriptionUpdateRequest
) -> Mapping[Owner, DescriptionPart]:
    if _update_problem(ctx, request) is not None:
        return {}
    event = TopologyDescribed(
        request.member_id, request.topology_epoch, request.topology_description
    )
    return {ctx.group_owner(request.group_id): DescriptionPart(request.group_id, event)}


def _update_problem(
    ctx: Context, request: StreamsGroupTopologyDescriptionUpdateRequest
) -> Problem | None:
    if not serves_streams_groups(ctx):
        return Problem(STREAMS_GROUPS.text, ErrorCode.UNSUPPORTED_VERSION)
    if not ctx.settings[GROUP_STREAMS_TOPOLOGY_DESCRIPTION_PLUGIN_CLASS]:
        return Problem(TOPOLOGY_DESCRIPTIONS.text, ErrorCode.UNSUPPORTED_VERSION)
    for name, text in (("MemberId", request.member_id), ("GroupId", request.group_id)):
        if not text.strip():
            return Problem(f"{name} can't be empty.")
    return None


def _keep_description(scope: WorkerScope, part: DescriptionPart) -> ActionTaken:
    return scope.groups.describe_topology(part.group_id, part.event)


def _merge_update(
    ctx: Context,
    request: StreamsGroupTopologyDescriptionUpdateRequest,
    replies: Mapping[Owner, ActionTaken],
) -> StreamsGroupTopologyDescriptionUpdateResponse:
    problem = _update_problem(ctx, request)
    if problem is not None and problem.error is ErrorCode.UNSUPPORTED_VERSION:
        ctx.unserved = TOPOLOGY_DESCRIPTIONS if serves_streams_groups(ctx) else STREAMS_GROUPS
    for taken in replies.values():
        problem = Problem(taken.text, taken.error)
    if problem is None or problem.error is ErrorCode.NONE:
        return StreamsGroupTopologyDescriptionUpdateResponse()
    return StreamsGroupTopologyDescriptionUpdateResponse(
        error_code=problem.error, error_message=problem.text or None
    )


STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: Api[
    StreamsGroupTopologyDescriptionUpdateRequest,
    DescriptionPart,
    ActionTaken,
    StreamsGroupTopologyDescriptionUpdateResponse,
] = Api(
    key=ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
    versions=(0, 0),
    requires=SPECIAL,
    split=_split_update,
    execute=_keep_description,
    merge=_merge_update,
)

APIS: Final = (
    STREAMS_GROUP_HEARTBEAT,
    STREAMS_GROUP_DESCRIBE,
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
)
