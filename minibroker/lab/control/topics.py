"""Topics in the control API: list, describe, create, delete and compact them.

Owns their records and operations. It must never know how a topic is stored. Invariant: a change is
answered when every process has the new metadata. Kafka's ``Admin`` client has the same operations
except compaction, which its cleaner decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from minibroker.broker.metadata.image import partition_owner
from minibroker.broker.metadata.topics import NewTopic
from minibroker.broker.process.messages import (
    CompactRequest,
    LogsRequest,
    LogView,
    PartitionLogsRequest,
)
from minibroker.broker.settings.dynamic import effective
from minibroker.broker.settings.topics import CLEANUP_POLICY, topic_value
from minibroker.lab.control.operation import UNAVAILABLE, Operations
from minibroker.lab.errors import ApiError, Conflict, NotFound, Unavailable
from minibroker.lab.schema import Doc, Length, Range
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.types import uuid_text

if TYPE_CHECKING:
    from minibroker.broker.metadata.image import ChangeRejected, Topic
    from minibroker.lab.control.broker import ControlledBroker

TOPIC_NAME_MAX: Final = 249
"""Kafka's limit on the length of a topic name."""

PARTITIONS_MAX: Final = 10_000
"""Maximum number of partitions in one request; the broker may allow fewer."""

SIZED_MAX: Final = 2000
"""Partitions whose sizes are summed up in one request; topics beyond have none."""

CONFIGS_MAX: Final = 100
"""Maximum number of config overrides in one request."""

_NO_LOG: Final = LogView(-1, -1, -1, 0)
_NO_TOPIC: Final = "There is no topic with this name."


class TopicSummary(NamedTuple):
    """A topic in a list."""

    name: str
    topic_id: Annotated[str, Doc("Topic id in Kafka's base64url form.")]
    internal: bool
    partitions: Annotated[int, Doc("Number of partitions.")]


class TopicList(NamedTuple):
    """All topics, by name."""

    topics: tuple[TopicSummary, ...]


class TopicSize(NamedTuple):
    """A topic with the sums of its logs."""

    name: str
    internal: bool
    partitions: Annotated[int, Doc("Number of partitions.")]
    records: Annotated[
        int | None,
        Doc("Offsets between the start and the end of the logs; null if a log is not available."),
    ]
    size_bytes: Annotated[int | None, Doc("Size of the logs' segments; null as `records`.")]


class TopicSizes(NamedTuple):
    """All topics, internal ones last, each by name."""

    topics: tuple[TopicSize, ...]


class PartitionView(NamedTuple):
    """A partition and its log."""

    partition: int
    leader: Annotated[int, Doc("Broker id, or -1 if there is none.")]
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    log_start_offset: Annotated[int, Doc("First offset that can be read.")]
    high_watermark: Annotated[int, Doc("First offset that consumers cannot read yet.")]
    log_end_offset: Annotated[int, Doc("Offset of the next record.")]
    size_bytes: Annotated[int, Doc("Size of the log's segments.")]
    owner: Annotated[str, Doc("Process that owns the partition, e.g. `worker-1`.")]


class TopicView(NamedTuple):
    """A topic with its partitions and configs."""

    name: str
    topic_id: Annotated[str, Doc("Topic id in Kafka's base64url form.")]
    internal: bool
    partitions: tuple[PartitionView, ...]
    configs: Annotated[
        Mapping[str, str], Doc("Configs set on this topic; others have their defaults.")
    ]


class TopicCreation(NamedTuple):
    """A topic to create."""

    name: Annotated[str, Length(1, TOPIC_NAME_MAX), Doc("Letters, digits, `.`, `_` and `-`.")]
    partitions: Annotated[
        int | None, Range(1, PARTITIONS_MAX), Doc("Default: the setting `num.partitions`.")
    ] = None
    configs: Annotated[
        Mapping[str, str],
        Length(0, CONFIGS_MAX),
        Doc("Topic configs as in Kafka, each value as text, e.g. `retention.ms`."),
    ] = {}


TOPIC_OPERATIONS: Final = Operations()


@TOPIC_OPERATIONS.add("GET", "/v1/topics", errors=UNAVAILABLE)
async def list_topics(broker: ControlledBroker) -> TopicList:
    """List all topics."""
    return TopicList(
        tuple(
            TopicSummary(name, uuid_text(topic.topic_id), topic.internal, len(topic.partitions))
            for name, topic in sorted(broker.image.topics.items())
        )
    )


@TOPIC_OPERATIONS.add("GET", "/v1/sizes", errors=UNAVAILABLE)
async def list_sizes(broker: ControlledBroker) -> TopicSizes:
    """List all topics with the number of their records and their sizes."""
    topics = sorted(broker.image.topics.values(), key=lambda each: (each.internal, each.name))
    logs = await partition_logs(broker, _sized_partitions(topics))
    sizes = []
    for topic in topics:
        views = [logs.get((topic.name, index)) for index in range(len(topic.partitions))]
        known = [view for view in views if view is not None]
        is_known = len(known) == len(views)
        sizes.append(
            TopicSize(
                topic.name,
                topic.internal,
                len(views),
                sum(v.log_end_offset - v.log_start_offset for v in known) if is_known else None,
                sum(view.size_bytes for view in known) if is_known else None,
            )
        )
    return TopicSizes(tuple(sizes))


def _sized_partitions(topics: Iterable[Topic]) -> Iterator[tuple[str, int]]:
    left = SIZED_MAX
    for topic in topics:
        left -= len(topic.partitions)
        if left < 0:
            return
        for index in range(len(topic.partitions)):
            yield topic.name, index


async def partition_logs(
    broker: ControlledBroker, partitions: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], LogView]:
    """Return the logs of those partitions that exist."""
    request = PartitionLogsRequest(tuple(sorted(partitions)))
    logs: dict[tuple[str, int], LogView] = {}
    if request.partitions:
        for answer in (await broker.publisher.request_all(request, broker.workers)).values():
            logs |= answer
    return logs


@TOPIC_OPERATIONS.add("GET", "/v1/topics/{name}", errors={404: _NO_TOPIC, **UNAVAILABLE})
async def get_topic(broker: ControlledBroker, name: str) -> TopicView:
    """Return a topic: partitions with leader, offsets and size, and its configs."""
    topic = broker.image.topics.get(name)
    if topic is None:
        raise _no_topic(name)
    views: dict[int, LogView] = {}
    reports = await broker.publisher.request_all(LogsRequest(name), broker.workers)
    for report in reports.values():
        views.update(report)
    return TopicView(
        name=name,
        topic_id=uuid_text(topic.topic_id),
        internal=topic.internal,
        partitions=tuple(
            PartitionView(
                partition=partition.index,
                leader=partition.leader,
                leader_epoch=partition.leader_epoch,
                replicas=partition.replicas,
                isr=partition.isr,
                owner=broker.workers[partition_owner(name, partition.index, len(broker.workers))],
                **views.get(partition.index, _NO_LOG)._asdict(),
            )
            for partition in topic.partitions
        ),
        configs=dict(broker.image.topic_overrides(name)),
    )


@TOPIC_OPERATIONS.add(
    "POST",
    "/v1/topics",
    status=201,
    errors={409: "A topic with this name already exists.", **UNAVAILABLE},
    example={"name": "orders", "partitions": 3, "configs": {"retention.ms": "60000"}},
)
async def create_topic(broker: ControlledBroker, new: TopicCreation) -> TopicView:
    """Create a topic; respond when every process has the new metadata."""
    partitions = -1 if new.partitions is None else new.partitions
    wanted = NewTopic(new.name, partitions, config=tuple(new.configs.items()))
    outcome = await broker.scope.cluster.create_topics([wanted])
    await broker.scope.publish(outcome.updates)
    rejection = outcome.topics[0].rejection
    if rejection is not None:
        raise _rejected(rejection)
    return await get_topic(broker, new.name)


@TOPIC_OPERATIONS.add("DELETE", "/v1/topics/{name}", errors={404: _NO_TOPIC, **UNAVAILABLE})
async def delete_topic(broker: ControlledBroker, name: str) -> None:
    """Delete a topic; respond when every process has the new metadata."""
    outcome = await broker.scope.cluster.delete_topics([name])
    await broker.scope.publish(outcome.updates)
    rejection = outcome.topics[0].rejection
    if rejection is not None:
        raise _rejected(rejection)


@TOPIC_OPERATIONS.add(
    "POST",
    "/v1/compact/{name}",
    errors={
        404: _NO_TOPIC,
        409: "The topic is not compacted, or a partition can't be.",
        **UNAVAILABLE,
    },
)
async def compact_topic(broker: ControlledBroker, name: str) -> TopicView:
    """Compact a topic now, from a new segment on; respond when that is done."""
    if name not in broker.image.topics:
        raise _no_topic(name)
    policies = topic_value(
        effective(broker.env.settings, broker.image.configs),
        broker.image.topic_overrides(name),
        CLEANUP_POLICY,
    )
    if "compact" not in policies:
        raise Conflict("INVALID_CONFIG", f"cleanup.policy of {name} is not compact")
    failures = await broker.publisher.request_all(CompactRequest(name), broker.workers)
    if len(failures) < len(broker.workers):
        raise Unavailable("BROKER_NOT_AVAILABLE", "an I/O worker is restarting")
    if texts := [text for text in failures.values() if text]:
        raise Conflict("KAFKA_STORAGE_ERROR", "; ".join(texts))
    return await get_topic(broker, name)


def _no_topic(name: str) -> NotFound:
    return NotFound("UNKNOWN_TOPIC_OR_PARTITION", f"there is no topic {name!r}")


def _rejected(rejection: ChangeRejected) -> ApiError:
    if rejection.code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return Conflict(rejection.code.name, rejection.text)
    if rejection.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return NotFound(rejection.code.name, rejection.text)
    if rejection.code == ErrorCode.KAFKA_STORAGE_ERROR:
        return Unavailable(
            rejection.code.name, rejection.text, "Free space where the data is stored."
        )
    if rejection.code == ErrorCode.REQUEST_TIMED_OUT:
        return Unavailable("CONFIG_STORE_NOT_AVAILABLE", rejection.text)
    return ApiError(rejection.code.name, rejection.text)
