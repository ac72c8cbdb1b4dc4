"""The broker as a whole in the control API: health, cluster, metrics and reset.

Owns their records and operations. It must never decide when a process is restarted. Invariant: a
process that is down is omitted instead of waited for. Kafka has MBeans, and ``Admin`` for the
cluster.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple, TypeAlias

from minibroker import __version__
from minibroker.broker.metadata.store.tree import UnavailableError
from minibroker.broker.metrics.conditions import Condition, ConditionKind
from minibroker.broker.metrics.exposition import Totals
from minibroker.broker.process.environment import RECORDER
from minibroker.broker.process.messages import ConditionsRequest, MetricsRequest
from minibroker.lab.control.groups import group_overviews
from minibroker.lab.control.operation import UNAVAILABLE, Answer, Operations, Text
from minibroker.lab.errors import Unavailable
from minibroker.lab.schema import Doc
from minibroker.runtime.roles import RoleState

if TYPE_CHECKING:
    from minibroker.broker.metrics.metrics import Snapshot
    from minibroker.lab.control.broker import ControlledBroker

HEALTH_WAIT_S: Final = 1.0
"""How long, in real time, a process may take to report its health."""

ProcessState: TypeAlias = Literal["starting", "running", "restarting", "stopping", "failed"]


class ProcessHealth(NamedTuple):
    """One process of the broker."""

    name: Annotated[str, Doc("Role and index, e.g. `processor-0`.")]
    pid: Annotated[int | None, Doc("Process id; null while it is down or in a simulation.")]
    state: ProcessState
    restarts: Annotated[int, Doc("How often it was restarted after it died.")]


class HealthCondition(NamedTuple):
    """A problem in a process of the broker."""

    process: Annotated[str, Doc("Role and index, e.g. `worker-0`.")]
    kind: Annotated[
        Literal[
            "storage_failed",
            "records_truncated",
            "groups_not_loaded",
            "transactions_not_loaded",
            "share_partitions_not_loaded",
            "descriptors_exhausted",
            "not_responding",
        ],
        Doc(
            "`storage_failed` ends when a write succeeds; `records_truncated` ends when the "
            "process restarts; `groups_not_loaded`, `transactions_not_loaded` and "
            "`share_partitions_not_loaded` end when their "
            "logs can be opened; `descriptors_exhausted` ends when connections can be accepted "
            "again; `not_responding` means that the process did not respond within a second."
        ),
    ]
    subject: Annotated[str, Doc("The affected resource, e.g. a path.")]
    text: Annotated[str, Doc("Description of the problem.")]
    since_ms: Annotated[
        int, Doc("When it started, in milliseconds since 1970 on the broker's clock.")
    ]


class Health(NamedTuple):
    """Health of the broker and its processes, with current problems."""

    ready: Annotated[bool, Doc("True if all processes that clients need are running.")]
    status: Annotated[
        Literal["ready", "degraded", "not_ready"],
        Doc("`degraded`: all processes are running, but there are conditions."),
    ]
    conditions: Annotated[tuple[HealthCondition, ...], Doc("For each process, oldest first.")]
    version: Annotated[str, Doc("Version of minibroker.")]
    uptime_ms: Annotated[int, Doc("Time since the broker started, on the broker's clock.")]
    processes: tuple[ProcessHealth, ...]


class Endpoint(NamedTuple):
    """The address that clients of a listener connect to."""

    listener: str
    host: str
    port: int


class BrokerView(NamedTuple):
    """One broker of the cluster."""

    broker_id: int
    rack: str | None
    endpoints: tuple[Endpoint, ...]


class Cluster(NamedTuple):
    """The cluster metadata that every process has."""

    cluster_id: str
    controller_id: int
    controller_epoch: int
    change: Annotated[int, Doc("Number of the last change that all processes have acknowledged.")]
    brokers: tuple[BrokerView, ...]
    topics: Annotated[int, Doc("Number of topics, including internal ones.")]
    partitions: Annotated[int, Doc("Number of partitions of all topics.")]


class ResetResult(NamedTuple):
    """The result of a reset."""

    topics: Annotated[int, Doc("Number of deleted topics.")]
    groups: Annotated[int, Doc("Number of deleted groups, with their offsets.")]


_STATES: Final[dict[RoleState, ProcessState]] = {
    RoleState.NOT_STARTED: "starting",
    RoleState.STARTING: "starting",
    RoleState.READY: "running",
    RoleState.WAITING: "restarting",
    RoleState.ENDED: "failed",
}


CLUSTER_OPERATIONS: Final = Operations()


@CLUSTER_OPERATIONS.add("GET", "/v1/health", public=True)
async def get_health(broker: ControlledBroker) -> Health | Answer:
    """Return the health of the broker; 503 until all processes that clients need are running."""
    health = await broker_health(broker)
    return health if health.ready else Answer(health, 503)


async def broker_health(broker: ControlledBroker) -> Health:
    """Return the broker's processes and their conditions."""
    env = broker.env
    processes = tuple(
        ProcessHealth(
            name=status.name,
            pid=status.pid or None,
            state=_STATES[status.state],
            restarts=status.restarts,
        )
        for status in env.statuses()
    )
    # Clients do not need the recorder.
    ready = all(each.state == "running" for each in processes if each.name != RECORDER)
    conditions = tuple([condition async for condition in _conditions(broker)])
    return Health(
        ready=ready,
        status=("degraded" if conditions else "ready") if ready else "not_ready",
        conditions=conditions,
        version=__version__,
        uptime_ms=int((env.clock.now() - broker.started_at) * 1000),
        processes=processes,
    )


async def _conditions(broker: ControlledBroker) -> AsyncIterator[HealthCondition]:
    env = broker.env

    async def bound() -> None:
        await env.clock.sleep_real(HEALTH_WAIT_S)

    conditions, missing = await broker.publisher.request_all_within(ConditionsRequest(), bound)
    now = env.clock.wall_ms()
    conditions[env.name] = env.conditions.all()
    for name in missing:
        text = f"no answer within {HEALTH_WAIT_S:g} s"
        conditions[name] = (Condition(ConditionKind.NOT_RESPONDING, name, text, now),)
    for name in sorted(conditions):
        for kind, subject, text, since_ms in conditions[name]:
            yield HealthCondition(name, kind.value, subject, text, since_ms)


@CLUSTER_OPERATIONS.add("GET", "/v1/cluster", errors=UNAVAILABLE)
async def get_cluster(broker: ControlledBroker) -> Cluster:
    """Return the cluster: brokers, controller, number of topics."""
    image = broker.image
    return Cluster(
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        controller_epoch=image.controller_epoch,
        change=broker.publisher.complete,
        brokers=tuple(
            BrokerView(
                member.broker_id,
                member.rack,
                tuple(
                    Endpoint(listener, host, port)
                    for listener, (host, port) in member.endpoints.items()
                ),
            )
            for member in image.brokers.values()
        ),
        topics=len(image.topics),
        partitions=sum(len(topic.partitions) for topic in image.topics.values()),
    )


@CLUSTER_OPERATIONS.add("POST", "/v1/reset", errors=UNAVAILABLE)
async def reset(broker: ControlledBroker) -> ResetResult:
    """Delete all topics, groups and offsets of the running broker."""
    topics = sum(not topic.internal for topic in broker.image.topics.values())
    groups = len(await group_overviews(broker))
    try:
        updates = await broker.scope.cluster.reset()
    except UnavailableError as error:
        raise Unavailable("CONFIG_STORE_NOT_AVAILABLE", str(error)) from None
    await broker.scope.publish(updates)
    return ResetResult(topics, groups)


class _MetricTotals:
    """The metrics of all processes since the start, with those of processes that have ended."""

    def __init__(self, _: ControlledBroker) -> None:
        self.totals: Final = Totals()


@CLUSTER_OPERATIONS.add("GET", "/metrics", media_type="text/plain")
async def get_metrics(broker: ControlledBroker) -> Text:
    """Return all metrics in the Prometheus text format."""
    # Imported with the first scrape: the module costs 3 MB and 20 ms.
    from minibroker.broker.metrics.exposition import CONTENT_TYPE, render

    totals = broker.state(_MetricTotals).totals
    totals.take(await metric_snapshots(broker))
    restarts = {status.name: status.restarts for status in broker.env.statuses()}
    return Text(render(totals, restarts), CONTENT_TYPE)


async def metric_snapshots(broker: ControlledBroker) -> Sequence[Snapshot]:
    """Return a new snapshot of the metrics of every running process, including this one."""
    snapshots = await broker.publisher.request_all(MetricsRequest())
    return [broker.env.metrics.snapshot(), *snapshots.values()]
