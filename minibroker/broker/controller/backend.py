"""Answers the control API from the image, or by asking other processes.

Owns the translation from the messages of roles to the shapes of the API. It must never decide
anything. Invariant: an answer is not older than its request, and a process that is down is omitted
instead of waited for. Implements ``control.backend.Backend``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from minibroker import __version__
from minibroker.broker.apis.base import ControllerScope
from minibroker.broker.controller.client_metrics import client_metrics_view
from minibroker.broker.controller.connection_event_log import ConnectionEventLog
from minibroker.broker.controller.fault_operations import FaultOperations
from minibroker.broker.controller.namespace_operations import NamespaceOperations
from minibroker.broker.controller.quotas import quota_explained, quotas_view
from minibroker.broker.controller.snapshot_operations import SnapshotOperations
from minibroker.broker.groups.description import GroupDescription, GroupOverview
from minibroker.broker.metadata.image import Image
from minibroker.broker.metadata.placement import group_owner, partition_owner
from minibroker.broker.metadata.store.tree import UnavailableError
from minibroker.broker.metadata.topics import NewTopic as WantedTopic
from minibroker.broker.metrics.conditions import Condition, ConditionKind
from minibroker.broker.metrics.metrics import Snapshot
from minibroker.broker.process.environment import (
    ACCEPTOR,
    PROCESSOR,
    RECORDER,
    WORKER,
    Environment,
    role_name,
)
from minibroker.broker.process.messages import (
    ClockAdvanced,
    CompactRequest,
    ConditionsRequest,
    DetailsRequest,
    GroupsRequest,
    LogsRequest,
    LogView,
    MetricsRequest,
)
from minibroker.broker.process.notes import note_clock
from minibroker.broker.settings import OFFSETS_TOPIC_NUM_PARTITIONS, QUOTA_THROTTLE_MODE
from minibroker.broker.settings.dynamic import effective
from minibroker.broker.settings.topics import CLEANUP_POLICY, topic_value
from minibroker.lab.control import backend as shown
from minibroker.lab.control.backend import BackendError, Conflict, NotFound, Unavailable
from minibroker.lab.control.client_metrics_shapes import ClientMetricsView
from minibroker.lab.control.quota_shapes import QuotaExplanation, QuotaQuery, QuotasView
from minibroker.runtime.clock import ClockError, now_ms
from minibroker.runtime.roles import RoleState
from minibroker_protocol.compiler import decode
from minibroker_protocol.errors import DecodeError, ErrorCode
from minibroker_protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from minibroker_protocol.types import uuid_text

if TYPE_CHECKING:
    from minibroker.broker.controller.faults import FaultController
    from minibroker.broker.controller.journal import JournalController
    from minibroker.broker.controller.metadata_publisher import MetadataPublisher
    from minibroker.broker.metadata.image import ChangeRejected
    from minibroker.lab.control.action_shapes import ActionResult, BrokerAction

HEALTH_WAIT_S: Final = 1.0
"""How long, in real time, a process may take to report its health."""

CONSUMER_PROTOCOL: Final = "consumer"
NEWEST_ASSIGNMENT: Final = 3
"""Later versions only append fields, so they are read as this version."""

_STATES: Final[dict[RoleState, shown.ProcessState]] = {
    RoleState.NOT_STARTED: "starting",
    RoleState.STARTING: "starting",
    RoleState.READY: "running",
    RoleState.WAITING: "restarting",
    RoleState.ENDED: "failed",
}


class ControllerBackend(FaultOperations, NamespaceOperations, SnapshotOperations):
    """Implements ``control.backend.Backend``."""

    def __init__(
        self,
        env: Environment,
        scope: ControllerScope,
        subscribers: MetadataPublisher,
        faults: Callable[[], FaultController],
        journal: Callable[[], JournalController],
        *,
        started_at: float,
    ) -> None:
        """``started_at`` is the start of the controller on the broker's clock."""
        super().__init__(faults)
        self._journal = journal
        self._env = env
        self._scope = scope
        self._subscribers = subscribers
        self._started_at = started_at
        self._event_log = ConnectionEventLog(env.incarnation)

    @property
    def _image(self) -> Image:
        return self._scope.image

    async def _ask(self, role: str, index: int, question: object) -> Any:
        """Return the response of one role, or None while it is down."""
        name = role_name(role, index)
        return (await self._subscribers.request_all(question, [name])).get(name)

    @property
    def journal(self) -> JournalController:
        """The journal."""
        return self._journal()

    # Health and cluster -------------------------------------------------------------------------

    async def health(self) -> shown.Health:
        """The broker's processes and their conditions."""
        processes = tuple(
            shown.ProcessHealth(
                name=status.name,
                pid=status.pid or None,
                state=_STATES[status.state],
                restarts=status.restarts,
            )
            for status in self._env.statuses()
        )
        # Clients do not need the recorder.
        ready = all(each.state == "running" for each in processes if each.name != RECORDER)
        conditions = tuple([found async for found in self._conditions()])
        return shown.Health(
            ready=ready,
            status=("degraded" if conditions else "ready") if ready else "not_ready",
            conditions=conditions,
            version=__version__,
            uptime_ms=int((self._env.clock.now() - self._started_at) * 1000),
            processes=processes,
        )

    async def _conditions(self) -> AsyncIterator[shown.HealthCondition]:
        async def bound() -> None:
            await self._env.clock.sleep_real(HEALTH_WAIT_S)

        found, missing = await self._subscribers.request_all_within(ConditionsRequest(), bound)
        now = self._env.clock.wall_ms()
        found[self._env.name] = self._env.conditions.all()
        for name in missing:
            text = f"no answer within {HEALTH_WAIT_S:g} s"
            found[name] = (Condition(ConditionKind.NOT_RESPONDING, name, text, now),)
        for name in sorted(found):
            for kind, subject, text, since_ms in found[name]:
                yield shown.HealthCondition(name, kind.value, subject, text, since_ms)

    async def cluster(self) -> shown.Cluster:
        """The cluster as the image has it."""
        image = self._image
        return shown.Cluster(
            cluster_id=image.cluster_id,
            controller_id=image.controller_id,
            controller_epoch=image.controller_epoch,
            change=self._subscribers.complete,
            brokers=tuple(
                shown.BrokerView(
                    broker.broker_id,
                    broker.rack,
                    tuple(
                        shown.Endpoint(listener, host, port)
                        for listener, (host, port) in broker.endpoints.items()
                    ),
                )
                for broker in image.brokers.values()
            ),
            topics=len(image.topics),
            partitions=sum(len(topic.partitions) for topic in image.topics.values()),
        )

    # Topics ---------------------------------------------------------------------------------------

    async def topics(self) -> shown.TopicList:
        """All topics, by name."""
        return shown.TopicList(
            tuple(
                shown.TopicSummary(
                    name, uuid_text(topic.topic_id), topic.internal, len(topic.partitions)
                )
                for name, topic in sorted(self._image.topics.items())
            )
        )

    async def topic(self, name: str) -> shown.TopicView:
        """One topic, with the current offsets of its logs."""
        topic = self._image.topics.get(name)
        if topic is None:
            raise _no_topic(name)
        workers = [role_name(WORKER, index) for index in range(self._env.workers)]
        views: dict[int, LogView] = {}
        for answer in (await self._subscribers.request_all(LogsRequest(name), workers)).values():
            views.update(answer)
        return shown.TopicView(
            name=name,
            topic_id=uuid_text(topic.topic_id),
            internal=topic.internal,
            partitions=tuple(
                shown.PartitionView(
                    partition=partition.index,
                    leader=partition.leader,
                    leader_epoch=partition.leader_epoch,
                    replicas=partition.replicas,
                    isr=partition.isr,
                    owner=role_name(
                        WORKER, partition_owner(name, partition.index, self._env.workers)
                    ),
                    **views.get(partition.index, _NO_LOG)._asdict(),
                )
                for partition in topic.partitions
            ),
            configs=dict(self._image.topic_overrides(name)),
        )

    async def create_topic(self, new: shown.TopicCreation) -> shown.TopicView:
        """Create a topic; returns when every process has applied it."""
        wanted = WantedTopic(
            new.name,
            -1 if new.partitions is None else new.partitions,
            config=tuple(new.configs.items()),
        )
        outcome = await self._scope.cluster.create_topics([wanted])
        await self._scope.publish(outcome.updates)
        rejection = outcome.topics[0].rejection
        if rejection is not None:
            raise _refused(rejection)
        return await self.topic(new.name)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic; returns when every process has applied that."""
        outcome = await self._scope.cluster.delete_topics([name])
        await self._scope.publish(outcome.updates)
        rejection = outcome.topics[0].rejection
        if rejection is not None:
            raise _refused(rejection)

    async def compact_topic(self, name: str) -> None:
        """Compact a topic; returns when all workers have done so."""
        if name not in self._image.topics:
            raise _no_topic(name)
        policies = topic_value(
            effective(self._env.settings, self._image.configs),
            self._image.topic_overrides(name),
            CLEANUP_POLICY,
        )
        if "compact" not in policies:
            raise Conflict("INVALID_CONFIG", f"cleanup.policy of {name} is not compact")
        workers = [role_name(WORKER, index) for index in range(self._env.workers)]
        answers = await self._subscribers.request_all(CompactRequest(name), workers)
        if len(answers) < len(workers):
            raise Unavailable("BROKER_NOT_AVAILABLE", "an I/O worker is restarting")
        if failures := [failure for failure in answers.values() if failure]:
            raise Conflict("KAFKA_STORAGE_ERROR", "; ".join(failures))

    # Groups ---------------------------------------------------------------------------------------

    async def client_metrics(self) -> ClientMetricsView:
        """The clients that push metrics."""
        return client_metrics_view(self._scope.telemetry, self._env.clock.wall_ms())

    async def groups(self) -> shown.GroupList:
        """All groups, by id."""
        found = [group for groups in (await self._overviews()).values() for group in groups]
        return shown.GroupList(
            tuple(
                shown.GroupSummary(group.group_id, group.state, group.protocol_type, group.members)
                for group in sorted(found)
            )
        )

    async def _overviews(self) -> dict[str, list[GroupOverview]]:
        workers = [role_name(WORKER, index) for index in range(self._env.workers)]
        return await self._subscribers.request_all(GroupsRequest(), workers)

    async def group(self, group_id: str) -> shown.GroupView:
        """One group, with its lag."""
        partitions = self._env.settings[OFFSETS_TOPIC_NUM_PARTITIONS]
        owner = group_owner(group_id, partitions, self._env.workers)
        coordinator = role_name(WORKER, owner)
        answers = await self._subscribers.request_all(GroupsRequest(group_id), [coordinator])
        if coordinator not in answers:
            raise Unavailable("COORDINATOR_NOT_AVAILABLE", f"{coordinator} is being restarted")
        group: GroupDescription | None = answers[coordinator]
        if group is None:
            raise NotFound("GROUP_ID_NOT_FOUND", f"there is no group {group_id!r}")
        ends = await self._log_ends({offset.topic for offset in group.offsets})
        return shown.GroupView(
            group_id=group.group_id,
            state=group.state,
            protocol_type=group.protocol_type,
            protocol=group.protocol,
            generation=group.generation,
            leader=group.leader,
            coordinator=coordinator,
            members=tuple(
                shown.Member(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    tuple(_assigned(group.protocol_type, member.assignment)),
                )
                for member in group.members
            ),
            offsets=tuple(_committed(group, ends)),
        )

    async def _log_ends(self, topics: set[str]) -> dict[tuple[str, int], int]:
        ends: dict[tuple[str, int], int] = {}
        for topic in sorted(topics):
            if topic in self._image.topics:
                partitions = (await self.topic(topic)).partitions
                ends.update({(topic, at.partition): at.log_end_offset for at in partitions})
        return ends

    # Connections ----------------------------------------------------------------------------------

    async def connections(self) -> shown.ConnectionsView:
        """All client connections, as the acceptor and the processors report them."""
        # Loaded by the first request, so that starts without one do not pay for it.
        from minibroker.broker.controller.connections import BrokerContext, Reports, connections

        env = self._env
        asked = env.clock.now()
        names = {index: role_name(PROCESSOR, index) for index in range(env.processors)}
        acceptor = role_name(ACCEPTOR, 0)
        reports = await self._subscribers.request_all(DetailsRequest(), [acceptor, *names.values()])
        self._event_log.take({name: report.recent for name, report in reports.items()}, asked)
        return connections(
            BrokerContext(
                effective(env.settings, self._image.configs), env.endpoints, env.processors
            ),
            Reports(
                reports.get(acceptor),
                {index: reports[name] for index, name in names.items() if name in reports},
            ),
            self._event_log,
            env.clock.now(),
        )

    # Quotas --------------------------------------------------------------------------------------

    async def quotas(self) -> QuotasView:
        """The usage of all quota entities, from the shared ledger."""
        env = self._env
        mode = env.settings[QUOTA_THROTTLE_MODE]
        return quotas_view(self._scope.quotas, env.ledger, mode, now_ms(env.clock))

    async def explain_quota(self, question: QuotaQuery) -> QuotaExplanation:
        """Why a user and client-id is throttled or not."""
        env = self._env
        return quota_explained(self._scope.quotas, env.ledger, question, now_ms(env.clock))

    # Clock, reset, metrics ------------------------------------------------------------------------

    async def clock(self) -> shown.ClockView:
        """The broker's clock."""
        state = self._env.clock.state()
        return shown.ClockView(state.now, state.wall_ms, state.offset_ms, state.rate, state.frozen)

    async def turn_clock(self, change: shown.ClockChange) -> shown.ClockView:
        """Change the clock; returns when every process has checked its deadlines."""
        clock = self._env.clock
        before = clock.wall_ms()
        try:
            if change.freeze is not None:
                clock.freeze(change.freeze)
            if change.rate is not None:
                clock.set_rate(change.rate)
            if change.advance_ms is not None:
                clock.advance(change.advance_ms)
        except ClockError as error:
            raise BackendError("INVALID_CLOCK", str(error)) from None
        note_clock(self._env, before)
        await self._subscribers.request_all(ClockAdvanced())
        return await self.clock()

    async def act(self, action: BrokerAction) -> ActionResult:
        """Carry out an action; returns when it is done."""
        # Loaded by the first action: most brokers get none.
        from minibroker.broker.controller.actions import BrokerActions

        actions = BrokerActions(self._env, self._image, self._subscribers, self._hand_over_journal)
        return await actions.act(action)

    async def _hand_over_journal(self, process: str, *, ends: bool) -> None:
        if self._env.on_note is not None:
            await self._journal().hand_over(process, ends=ends)

    async def reset(self) -> shown.ResetResult:
        """Drop all topics, groups and offsets; returns when every process has applied that."""
        topics = sum(not topic.internal for topic in self._image.topics.values())
        groups = sum(map(len, (await self._overviews()).values()))
        try:
            updates = await self._scope.cluster.reset()
        except UnavailableError as error:
            raise _store_unavailable(str(error)) from None
        await self._scope.publish(updates)
        return shown.ResetResult(topics, groups)

    async def metrics(self) -> Sequence[Snapshot]:
        """A new snapshot of the metrics of every running process, including this one."""
        snapshots = await self._subscribers.request_all(MetricsRequest())
        return [self._env.metrics.snapshot(), *snapshots.values()]


def _store_unavailable(text: str) -> Unavailable:
    return Unavailable("CONFIG_STORE_NOT_AVAILABLE", text)


_NO_LOG = LogView(-1, -1, -1, 0)


def _no_topic(name: str) -> NotFound:
    return NotFound("UNKNOWN_TOPIC_OR_PARTITION", f"there is no topic {name!r}")


def _refused(rejection: ChangeRejected) -> BackendError:
    if rejection.code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return Conflict(rejection.code.name, rejection.text)
    if rejection.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return NotFound(rejection.code.name, rejection.text)
    if rejection.code == ErrorCode.KAFKA_STORAGE_ERROR:
        return Unavailable(
            rejection.code.name, rejection.text, "Free space where the data is stored."
        )
    if rejection.code == ErrorCode.REQUEST_TIMED_OUT:
        return _store_unavailable(rejection.text)
    return BackendError(rejection.code.name, rejection.text)


def _assigned(protocol_type: str, assignment: bytes) -> Iterator[shown.AssignedTopic]:
    """The assignment of a member that uses the consumer protocol."""
    if protocol_type != CONSUMER_PROTOCOL or len(assignment) < 2:
        return
    version = min(int.from_bytes(assignment[:2], "big"), NEWEST_ASSIGNMENT)
    try:
        given = decode(ConsumerProtocolAssignment, version, assignment, 2)
    except DecodeError:
        return  # The group's leader sent something that is not an assignment.
    for topic in given.assigned_partitions:
        yield shown.AssignedTopic(topic.topic, tuple(topic.partitions))


def _committed(
    group: GroupDescription, ends: dict[tuple[str, int], int]
) -> Iterator[shown.CommittedOffsetView]:
    for at in group.offsets:
        end = ends.get((at.topic, at.partition))
        lag = None if end is None else max(end - at.offset, 0)
        yield shown.CommittedOffsetView(at.topic, at.partition, at.offset, at.metadata, end, lag)
