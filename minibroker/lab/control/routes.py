"""Operations of the control API: method, path, request and response.

Owns the table used by the application, the OpenAPI description, the index and the reference. Must
never know the web framework, sockets or the implementation of ``Backend``. The invariant:
``OPERATIONS`` contains every operation, and each one is documented. Kafka has no HTTP API; the
operations on topics and groups correspond to its ``Admin`` client.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from minibroker.broker.metrics.totals import Totals
from minibroker.broker.quotas.types import CLIENT_QUOTA_TYPES
from minibroker.lab.control.action_shapes import ActionResult, BrokerAction
from minibroker.lab.control.backend import (
    Backend,
    ClockChange,
    ClockView,
    Cluster,
    ConnectionsView,
    GroupList,
    GroupView,
    Health,
    ResetResult,
    TopicCreation,
    TopicList,
    TopicView,
)
from minibroker.lab.control.client_metrics_shapes import ClientMetricsView
from minibroker.lab.control.fault_shapes import (
    COUNT_MAX,
    WAIT_MS_MAX,
    FaultList,
    FaultRelease,
    FaultRule,
    FaultView,
    FaultWait,
)
from minibroker.lab.control.journal_routes import JOURNAL_OPERATIONS
from minibroker.lab.control.namespace_shapes import (
    NamespaceCreation,
    NamespaceList,
    NamespaceView,
)
from minibroker.lab.control.operation import ApiOperation
from minibroker.lab.control.quota_shapes import (
    LAST,
    QuotaExplanation,
    QuotaQuery,
    QuotasView,
)
from minibroker.lab.control.schema import Fault, InvalidJson
from minibroker.lab.control.snapshot_shapes import SnapshotCreation, SnapshotList, SnapshotView

CONSOLE: Final = "/console"


class Text(NamedTuple):
    """A response that is not a record as JSON."""

    content: bytes
    media_type: str
    headers: Mapping[str, str] = {}


class Redirect(NamedTuple):
    """A redirect for browsers, and the response for other clients."""

    path: str
    otherwise: Text


class ApiContext(NamedTuple):
    """The broker that operations use, and the state kept between requests."""

    backend: Backend
    totals: Totals
    operations: tuple[ApiOperation, ...]
    """Those that the application has."""


class Answer(NamedTuple):
    """A response with a status other than the default of the operation."""

    content: object
    status: int


async def get_index(context: ApiContext) -> Redirect | Text:
    """List the operations; redirect a browser to the console."""
    lines = [f"{each.method:<6} {each.path:<24} {each.summary}" for each in context.operations]
    text = Text("\n".join([*lines, ""]).encode(), "text/plain")
    has_console = any(each.path == CONSOLE for each in context.operations)
    return Redirect(CONSOLE, text) if has_console else text


async def get_console(_: ApiContext) -> Text:
    """Return the console, a page that shows connections in real time."""
    return _console_file("index.html")


async def get_console_file(_: ApiContext, name: str) -> Text:
    """Return a file of the console."""
    return _console_file(name)


def _console_file(name: str) -> Text:
    # Imported with the first request, because most brokers never get one.
    from minibroker.lab.control.files import HEADERS, read

    return Text(*read(name), HEADERS)


async def get_description(context: ApiContext) -> Text:
    """Return the OpenAPI description of this API."""
    # Imported with the first request, because most brokers never get one.
    from minibroker.lab.control.openapi import description

    content = json.dumps(description(context.operations), indent=1).encode()
    return Text(content, "application/json")


async def get_metrics(context: ApiContext) -> Text:
    """Return all metrics in the Prometheus text format."""
    # Imported with the first scrape: the module costs 3 MB and 20 ms.
    from minibroker.broker.metrics.exposition import CONTENT_TYPE, render

    health = await context.backend.health()
    context.totals.take(await context.backend.metrics())
    restarts = {process.name: process.restarts for process in health.processes}
    return Text(render(context.totals, restarts), CONTENT_TYPE)


async def get_health(context: ApiContext) -> Health | Answer:
    """Return the health of the broker; 503 until all processes that clients need are running."""
    health = await context.backend.health()
    return health if health.ready else Answer(health, 503)


async def get_cluster(context: ApiContext) -> Cluster:
    """Return the cluster: brokers, controller, number of topics."""
    return await context.backend.cluster()


async def list_topics(context: ApiContext) -> TopicList:
    """List all topics."""
    return await context.backend.topics()


async def get_topic(context: ApiContext, name: str) -> TopicView:
    """Return a topic: partitions with leader, offsets and size, and its configs."""
    return await context.backend.topic(name)


async def create_topic(context: ApiContext, new: TopicCreation) -> TopicView:
    """Create a topic; respond when every process has the new metadata."""
    return await context.backend.create_topic(new)


async def delete_topic(context: ApiContext, name: str) -> None:
    """Delete a topic; respond when every process has the new metadata."""
    await context.backend.delete_topic(name)


async def compact_topic(context: ApiContext, name: str) -> TopicView:
    """Compact a topic now, from a new segment on; respond when that is done."""
    await context.backend.compact_topic(name)
    return await context.backend.topic(name)


async def list_groups(context: ApiContext) -> GroupList:
    """List all consumer groups."""
    return await context.backend.groups()


async def list_client_metrics(context: ApiContext) -> ClientMetricsView:
    """List the clients that push metrics (KIP-714), with their newest values."""
    return await context.backend.client_metrics()


async def get_group(context: ApiContext, group_id: str) -> GroupView:
    """Return a group: members, their partitions, committed offsets and lag."""
    return await context.backend.group(group_id)


async def list_connections(context: ApiContext) -> ConnectionsView:
    """List client connections, limits and recent connection events."""
    return await context.backend.connections()


async def list_quotas(context: ApiContext) -> QuotasView:
    """List usage and quotas of clients: bytes, request time and topic changes."""
    return await context.backend.quotas()


async def explain_quota(context: ApiContext, question: QuotaQuery) -> QuotaExplanation:
    """Explain why a client is or is not throttled: `?user=…&client_id=…&type=…`."""
    kinds = [kind.row.control_name for kind in CLIENT_QUOTA_TYPES]
    if question.type not in kinds:
        raise InvalidJson([Fault("type", f"must be one of {', '.join(kinds)}")])
    if question.throttle not in {"", LAST} and not question.throttle.isdecimal():
        raise InvalidJson([Fault("throttle", f"must be a throttle's number, or {LAST}")])
    return await context.backend.explain_quota(question)


async def get_clock(context: ApiContext) -> ClockView:
    """Return the clock that all processes of the broker share."""
    return await context.backend.clock()


async def turn_clock(context: ApiContext, change: ClockChange) -> ClockView:
    """Advance, freeze or speed up the clock; return the new state of the clock."""
    if change == ClockChange():
        fault = Fault("(body)", "must set at least one of advance_ms, freeze and rate")
        raise InvalidJson([fault])
    return await context.backend.turn_clock(change)


async def list_faults(context: ApiContext) -> FaultList:
    """List all fault rules, with their hits."""
    return await context.backend.faults()


async def get_fault(context: ApiContext, fault_id: str) -> FaultView:
    """Return a fault rule with its hits."""
    return await context.backend.fault(fault_id)


async def add_fault(context: ApiContext, rule: FaultRule) -> FaultView:
    """Add a fault rule; respond when every process applies it."""
    return await context.backend.add_fault(rule)


async def remove_fault(context: ApiContext, fault_id: str) -> None:
    """Remove a fault rule, and release what it holds."""
    await context.backend.remove_fault(fault_id)


async def remove_faults(context: ApiContext) -> None:
    """Remove all fault rules."""
    await context.backend.remove_faults()


async def release_fault(context: ApiContext, fault_id: str) -> FaultRelease:
    """Release what a fault rule holds."""
    return await context.backend.release_fault(fault_id)


async def wait_fault(context: ApiContext, fault_id: str, wait: FaultWait) -> FaultView:
    """Wait until a fault rule has fired: `?hits=…&timeout_ms=…`."""
    for name, text, highest in (
        ("hits", wait.hits, COUNT_MAX),
        ("timeout_ms", wait.timeout_ms, WAIT_MS_MAX),
    ):
        if not (text.isascii() and text.isdecimal() and int(text[:12]) <= highest):
            raise InvalidJson([Fault(name, f"must be a number from 0 to {highest}")])
    return await context.backend.wait_fault(fault_id, int(wait.hits), int(wait.timeout_ms))


async def act(context: ApiContext, action: BrokerAction) -> ActionResult:
    """Let the broker do something now: rebalance, expire a session, roll; respond when done."""
    return await context.backend.act(action)


async def list_snapshots(context: ApiContext) -> SnapshotList:
    """List all snapshots, the oldest first."""
    return await context.backend.snapshots()


async def get_snapshot(context: ApiContext, name: str) -> SnapshotView:
    """Return a snapshot."""
    return await context.backend.snapshot(name)


async def take_snapshot(context: ApiContext, new: SnapshotCreation) -> SnapshotView:
    """Take a snapshot of everything that was acknowledged so far."""
    return await context.backend.take_snapshot(new)


async def restore_snapshot(context: ApiContext, name: str) -> SnapshotView:
    """Return the broker to a snapshot; connections with a request in flight are closed."""
    return await context.backend.restore_snapshot(name)


async def remove_snapshot(context: ApiContext, name: str) -> None:
    """Remove a snapshot."""
    await context.backend.remove_snapshot(name)


async def list_namespaces(context: ApiContext) -> NamespaceList:
    """List all namespaces with their addresses."""
    return await context.backend.namespaces()


async def open_namespace(context: ApiContext, new: NamespaceCreation) -> NamespaceView:
    """Open a namespace: an address at which clients see only the names that they use there."""
    return await context.backend.open_namespace(new)


async def remove_namespace(context: ApiContext, name: str) -> None:
    """Close a namespace, and delete its topics, groups and ACLs."""
    await context.backend.remove_namespace(name)


async def reset(context: ApiContext) -> ResetResult:
    """Delete all topics, groups and offsets of the running broker."""
    return await context.backend.reset()


def _operation(
    method: str,
    path: str,
    answer: type | str | None,
    run: Callable[..., Awaitable[object]],
    **rest: Any,
) -> ApiOperation:
    return ApiOperation(method, path, (run.__doc__ or "").strip(), answer, run, **rest)


_NO_TOPIC: Final = "There is no topic with this name."
_NO_FAULT: Final = {404: "There is no fault rule with this id."}
_NO_SNAPSHOT: Final = {404: "There is no snapshot with this name."}
_UNAVAILABLE: Final = {503: "A process is restarting, or the broker is stopping."}

OPERATIONS: Final[tuple[ApiOperation, ...]] = (
    _operation("GET", "/", "text/plain", get_index),
    _operation("GET", CONSOLE, "text/html", get_console),
    _operation(
        "GET",
        "/console/{name}",
        "*/*",
        get_console_file,
        errors={404: "There is no file with this name."},
    ),
    _operation("GET", "/v1/health", Health, get_health),
    _operation("GET", "/v1/cluster", Cluster, get_cluster, errors=_UNAVAILABLE),
    _operation("GET", "/v1/topics", TopicList, list_topics, errors=_UNAVAILABLE),
    _operation(
        "POST",
        "/v1/topics",
        TopicView,
        create_topic,
        body=TopicCreation,
        status=201,
        errors={409: "A topic with this name already exists.", **_UNAVAILABLE},
        example={"name": "orders", "partitions": 3, "configs": {"retention.ms": "60000"}},
    ),
    _operation(
        "GET", "/v1/topics/{name}", TopicView, get_topic, errors={404: _NO_TOPIC, **_UNAVAILABLE}
    ),
    _operation(
        "DELETE",
        "/v1/topics/{name}",
        None,
        delete_topic,
        status=204,
        errors={404: _NO_TOPIC, **_UNAVAILABLE},
    ),
    _operation(
        "POST",
        "/v1/compact/{name}",
        TopicView,
        compact_topic,
        errors={
            404: _NO_TOPIC,
            409: "The topic is not compacted, or a partition can't be.",
            **_UNAVAILABLE,
        },
    ),
    _operation("GET", "/v1/groups", GroupList, list_groups, errors=_UNAVAILABLE),
    _operation(
        "GET",
        "/v1/groups/{group_id}",
        GroupView,
        get_group,
        errors={404: "There is no group with this id.", **_UNAVAILABLE},
    ),
    _operation("GET", "/v1/connections", ConnectionsView, list_connections, errors=_UNAVAILABLE),
    _operation("GET", "/v1/client-metrics", ClientMetricsView, list_client_metrics),
    _operation("GET", "/v1/quotas", QuotasView, list_quotas),
    _operation("GET", "/v1/quotas/explain", QuotaExplanation, explain_quota, query=QuotaQuery),
    _operation("GET", "/v1/clock", ClockView, get_clock),
    _operation(
        "POST", "/v1/clock", ClockView, turn_clock, body=ClockChange, example={"advance_ms": 11000}
    ),
    _operation("GET", "/v1/faults", FaultList, list_faults),
    _operation(
        "POST",
        "/v1/faults",
        FaultView,
        add_fault,
        body=FaultRule,
        status=201,
        errors={409: "There is a rule with this name, or too many rules are set."},
        example={"action": "error", "api": "Produce", "error": "NOT_ENOUGH_REPLICAS", "first": 2},
    ),
    _operation("DELETE", "/v1/faults", None, remove_faults, status=204),
    _operation(
        "GET",
        "/v1/faults/{fault_id}/wait",
        FaultView,
        wait_fault,
        query=FaultWait,
        errors={408: "The rule has not fired so often within the timeout.", **_NO_FAULT},
    ),
    _operation(
        "POST", "/v1/faults/{fault_id}/release", FaultRelease, release_fault, errors=_NO_FAULT
    ),
    _operation("GET", "/v1/faults/{fault_id}", FaultView, get_fault, errors=_NO_FAULT),
    _operation("DELETE", "/v1/faults/{fault_id}", None, remove_fault, status=204, errors=_NO_FAULT),
    _operation(
        "POST",
        "/v1/actions",
        ActionResult,
        act,
        body=BrokerAction,
        errors={
            404: "There is no such group, member, transactional id or partition.",
            409: "The action is not possible in the state of the group or transaction.",
            **_UNAVAILABLE,
        },
        example={"action": "rebalance", "group": "orders"},
    ),
    _operation("GET", "/v1/snapshots", SnapshotList, list_snapshots),
    _operation(
        "POST",
        "/v1/snapshots",
        SnapshotView,
        take_snapshot,
        body=SnapshotCreation,
        status=201,
        errors={
            409: "There is a snapshot with this name, or there are too many.",
            **_UNAVAILABLE,
        },
        example={"name": "prepared"},
    ),
    _operation(
        "POST",
        "/v1/snapshots/{name}/restore",
        SnapshotView,
        restore_snapshot,
        errors={**_NO_SNAPSHOT, **_UNAVAILABLE},
    ),
    _operation("GET", "/v1/snapshots/{name}", SnapshotView, get_snapshot, errors=_NO_SNAPSHOT),
    _operation(
        "DELETE",
        "/v1/snapshots/{name}",
        None,
        remove_snapshot,
        status=204,
        errors={**_NO_SNAPSHOT, **_UNAVAILABLE},
    ),
    *JOURNAL_OPERATIONS,
    _operation("GET", "/v1/namespaces", NamespaceList, list_namespaces),
    _operation(
        "POST",
        "/v1/namespaces",
        NamespaceView,
        open_namespace,
        body=NamespaceCreation,
        status=201,
        errors={
            409: "There is a namespace with this name, or there are too many.",
            **_UNAVAILABLE,
        },
        example={"name": "test-7"},
    ),
    _operation(
        "DELETE",
        "/v1/namespaces/{name}",
        None,
        remove_namespace,
        status=204,
        errors={404: "There is no namespace with this name.", **_UNAVAILABLE},
    ),
    _operation("POST", "/v1/reset", ResetResult, reset, errors=_UNAVAILABLE),
    _operation("GET", "/metrics", "text/plain", get_metrics),
    _operation("GET", "/openapi.json", "application/json", get_description),
)
