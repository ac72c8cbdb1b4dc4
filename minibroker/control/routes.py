"""Every operation of the control API once: method, path, what it takes, what it answers.

Owns the table that the application, the OpenAPI description, the index and the reference all
read. Must never know the web framework, sockets or what is behind ``Backend``. The invariant: an
operation that isn't in ``OPERATIONS`` doesn't exist, and one that is there is described. Kafka has
no HTTP API; the operations on topics and groups do what its ``Admin`` client does.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, get_args

from minibroker.control.backend import (
    Backend,
    ClockChange,
    ClockView,
    Cluster,
    Connections,
    Group,
    GroupList,
    Health,
    NewTopic,
    ResetDone,
    Topic,
    TopicList,
)
from minibroker.control.operation import Operation
from minibroker.control.quota_shapes import (
    LAST,
    QuotaExplained,
    QuotaKind,
    QuotaQuestion,
    Quotas,
)
from minibroker.control.schema import Fault, InvalidJson
from minibroker.observability.totals import Totals


class Text(NamedTuple):
    """An answer that isn't JSON of a record."""

    content: bytes
    media_type: str
    headers: Mapping[str, str] = {}


class Elsewhere(NamedTuple):
    """Where a browser is led, and what everybody else gets instead."""

    path: str
    otherwise: Text


class Site(NamedTuple):
    """What operations work on: the broker, and what is kept between requests."""

    backend: Backend
    totals: Totals


class Answer(NamedTuple):
    """An answer with another status than the operation's usual one."""

    content: object
    status: int


async def get_index(_: Site) -> Elsewhere:
    """This list; a browser is led to the console."""
    lines = [f"{each.method:<6} {each.path:<24} {each.summary}" for each in OPERATIONS]
    return Elsewhere("/console", Text("\n".join([*lines, ""]).encode(), "text/plain"))


async def get_console(_: Site) -> Text:
    """A page that draws the broker's connections while they come and go."""
    return _console_file("index.html")


async def get_console_file(_: Site, name: str) -> Text:
    """A file of that page."""
    return _console_file(name)


def _console_file(name: str) -> Text:
    # Loaded by the first who looks: most brokers are never looked at.
    from minibroker.control.files import HEADERS, read

    return Text(*read(name), HEADERS)


async def get_description(_: Site) -> Text:
    """This API as an OpenAPI document."""
    return Text(_description(), "application/json")


@cache
def _description() -> bytes:
    # Loaded by the first who looks: most brokers are never asked.
    from minibroker.control.openapi import description

    return json.dumps(description(OPERATIONS), indent=1).encode()


async def get_metrics(site: Site) -> Text:
    """All counters and gauges for Prometheus."""
    # Loaded by the first scrape: who never scrapes shall not pay its 3 MB and 20 ms.
    from minibroker.observability.exposition import CONTENT_TYPE, render

    health = await site.backend.health()
    site.totals.take(await site.backend.metrics())
    restarts = {process.name: process.restarts for process in health.processes}
    return Text(render(site.totals, restarts), CONTENT_TYPE)


async def get_health(site: Site) -> Health | Answer:
    """Whether the broker serves; 503 until every process runs that clients need."""
    health = await site.backend.health()
    return health if health.ready else Answer(health, 503)


async def get_cluster(site: Site) -> Cluster:
    """The cluster: brokers, controller, number of topics."""
    return await site.backend.cluster()


async def list_topics(site: Site) -> TopicList:
    """All topics."""
    return await site.backend.topics()


async def get_topic(site: Site, name: str) -> Topic:
    """One topic: partitions with leader, offsets and size, and its configs."""
    return await site.backend.topic(name)


async def create_topic(site: Site, new: NewTopic) -> Topic:
    """Create a topic; answers when every process knows it."""
    return await site.backend.create_topic(new)


async def delete_topic(site: Site, name: str) -> None:
    """Delete a topic; answers when no process knows it any more."""
    await site.backend.delete_topic(name)


async def list_groups(site: Site) -> GroupList:
    """All consumer groups."""
    return await site.backend.groups()


async def get_group(site: Site, group_id: str) -> Group:
    """One group: members, their partitions, committed offsets and lag."""
    return await site.backend.group(group_id)


async def list_connections(site: Site) -> Connections:
    """All client connections, with the queue of each network processor."""
    return await site.backend.connections()


async def list_quotas(site: Site) -> Quotas:
    """Who uses what against which quota: bytes, request time, changes of topics."""
    return await site.backend.quotas()


async def explain_quota(site: Site, question: QuotaQuestion) -> QuotaExplained:
    """Why somebody is throttled, or isn't: `?user=…&client_id=…&type=…`."""
    kinds = get_args(QuotaKind)
    if question.type not in kinds:
        raise InvalidJson([Fault("type", f"must be one of {', '.join(kinds)}")])
    if question.throttle not in {"", LAST} and not question.throttle.isdecimal():
        raise InvalidJson([Fault("throttle", f"must be a throttle's number, or {LAST}")])
    return await site.backend.explain_quota(question)


async def get_clock(site: Site) -> ClockView:
    """The clock that all processes of the broker wear."""
    return await site.backend.clock()


async def turn_clock(site: Site, change: ClockChange) -> ClockView:
    """Advance, freeze or speed up the clock; answers with the clock afterwards."""
    if change == ClockChange():
        fault = Fault("(body)", "must set at least one of advance_ms, freeze and rate")
        raise InvalidJson([fault])
    return await site.backend.turn_clock(change)


async def reset(site: Site) -> ResetDone:
    """Drop all topics, groups and offsets of the running broker."""
    return await site.backend.reset()


def _operation(
    method: str,
    path: str,
    answer: type | str | None,
    run: Callable[..., Awaitable[object]],
    **rest: Any,
) -> Operation:
    return Operation(method, path, (run.__doc__ or "").strip(), answer, run, **rest)


_NO_TOPIC: Final = "No topic of this name."
_NOT_NOW: Final = {503: "A process is being restarted, or the broker is stopping."}

OPERATIONS: Final[tuple[Operation, ...]] = (
    _operation("GET", "/", "text/plain", get_index),
    _operation("GET", "/console", "text/html", get_console),
    _operation(
        "GET",
        "/console/{name}",
        "*/*",
        get_console_file,
        errors={404: "No file of this name."},
    ),
    _operation("GET", "/v1/health", Health, get_health),
    _operation("GET", "/v1/cluster", Cluster, get_cluster, errors=_NOT_NOW),
    _operation("GET", "/v1/topics", TopicList, list_topics, errors=_NOT_NOW),
    _operation(
        "POST",
        "/v1/topics",
        Topic,
        create_topic,
        body=NewTopic,
        status=201,
        errors={409: "There is a topic of this name already.", **_NOT_NOW},
        example={"name": "orders", "partitions": 3, "configs": {"retention.ms": "60000"}},
    ),
    _operation("GET", "/v1/topics/{name}", Topic, get_topic, errors={404: _NO_TOPIC, **_NOT_NOW}),
    _operation(
        "DELETE",
        "/v1/topics/{name}",
        None,
        delete_topic,
        status=204,
        errors={404: _NO_TOPIC, **_NOT_NOW},
    ),
    _operation("GET", "/v1/groups", GroupList, list_groups, errors=_NOT_NOW),
    _operation(
        "GET",
        "/v1/groups/{group_id}",
        Group,
        get_group,
        errors={404: "No group of this id.", **_NOT_NOW},
    ),
    _operation("GET", "/v1/connections", Connections, list_connections, errors=_NOT_NOW),
    _operation("GET", "/v1/quotas", Quotas, list_quotas),
    _operation("GET", "/v1/quotas/explain", QuotaExplained, explain_quota, query=QuotaQuestion),
    _operation("GET", "/v1/clock", ClockView, get_clock),
    _operation(
        "POST", "/v1/clock", ClockView, turn_clock, body=ClockChange, example={"advance_ms": 11000}
    ),
    _operation("POST", "/v1/reset", ResetDone, reset, errors=_NOT_NOW),
    _operation("GET", "/metrics", "text/plain", get_metrics),
    _operation("GET", "/openapi.json", "application/json", get_description),
)
