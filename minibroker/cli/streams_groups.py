"""Streams groups in ``minibroker groups describe``: members, tasks, topology and offsets.

Owns the request and the tables. It must never change a group. Invariant: what is shown is in the
broker's description or its committed offsets. Kafka's ``kafka-streams-groups.sh``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from minibroker.cli.output import emit, json_line, printable, table
from minibroker.client.errors import check
from minibroker.client.kafka_client import KafkaClient
from minibroker_protocol.messages.streams_group_describe import (
    Assignment,
    DescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    TaskIds,
    TopicInfo,
)

MEMBER_NAMES = ("member", "client_id", "host", "process", "epoch", "tasks", "target")
MemberRow = tuple[str, str, str, str, int, list[str], list[str]]
SUBTOPOLOGY_NAMES = ("subtopology", "source_topics", "repartition_topics", "changelog_topics")
SubtopologyRow = tuple[str, list[str], list[str], list[str]]


def streams_group(client: KafkaClient, group_id: str) -> DescribedGroup:
    """The description of a streams group. Raises ``BrokerError``."""
    request = StreamsGroupDescribeRequest(group_ids=[group_id])
    coordinator = client.coordinator(group_id)
    (group,) = client.send(request, StreamsGroupDescribeResponse, coordinator).groups
    check(f"group {group_id}", group.error_code, group.error_message)
    return group


def show_streams_group(
    group: DescribedGroup, rows: Sequence[Sequence[object]], *, as_json: bool
) -> None:
    """Print a streams group; ``rows`` are topic, partition, committed offset, end and lag."""
    members, subtopologies = member_rows(group), subtopology_rows(group)
    if as_json:
        shown = {
            "group": group.group_id,
            "type": "streams",
            "state": group.group_state,
            "group_epoch": group.group_epoch,
            "assignment_epoch": group.assignment_epoch,
            "assignor": group.assignor_name,
            "topology_epoch": None if group.topology is None else group.topology.epoch,
            "topology": [dict(zip(SUBTOPOLOGY_NAMES, row, strict=True)) for row in subtopologies],
            "members": [dict(zip(MEMBER_NAMES, row, strict=True)) for row in members],
            "offsets": [
                dict(zip(("topic", "partition", "committed", "end", "lag"), row, strict=True))
                for row in rows
            ],
        }
        emit(json_line(shown))
        return
    emit(
        f"group {printable(group.group_id)}: {group.group_state}, {len(group.members)} members, "
        f"streams group in epoch {group.group_epoch}, target of epoch {group.assignment_epoch} by "
        f"{group.assignor_name}"
    )
    if members:
        columns = ("MEMBER", "CLIENT", "HOST", "PROCESS", "EPOCH", "TASKS", "TARGET")
        cells = [(*row[:5], *(",".join(each) or "none" for each in row[5:])) for row in members]
        emit(table(columns, cells))
    if subtopologies:
        titles = ("SUBTOPOLOGY", "SOURCES", "REPARTITION", "CHANGELOGS")
        emit(table(titles, [(row[0], *map(_joined, row[1:])) for row in subtopologies]))
    if rows:
        emit(table(("TOPIC", "PARTITION", "COMMITTED", "END", "LAG"), rows))


def _joined(names: Sequence[str]) -> str:
    return ",".join(names) or "none"


def member_rows(group: DescribedGroup) -> list[MemberRow]:
    """One row for each member: its id, client, host, process, epoch, tasks and target."""
    return [
        (
            member.member_id,
            member.client_id,
            member.client_host,
            member.process_id,
            member.member_epoch,
            task_names(member.assignment),
            task_names(member.target_assignment),
        )
        for member in sorted(group.members, key=lambda member: member.member_id)
    ]


def task_names(assignment: Assignment) -> list[str]:
    """The tasks of a member in Kafka's form ``0_1``; copies say what they are."""
    return [
        *_names(assignment.active_tasks, ""),
        *_names(assignment.standby_tasks, " standby"),
        *_names(assignment.warmup_tasks, " warm-up"),
    ]


def _names(tasks: Sequence[TaskIds], role: str) -> Iterator[str]:
    for each in tasks:
        yield from (f"{each.subtopology_id}_{partition}{role}" for partition in each.partitions)


def subtopology_rows(group: DescribedGroup) -> list[SubtopologyRow]:
    """One row for each subtopology: its id and its topics."""
    subtopologies = None if group.topology is None else group.topology.subtopologies
    return [
        (
            each.subtopology_id,
            list(each.source_topics),
            _topics(each.repartition_source_topics),
            _topics(each.state_changelog_topics),
        )
        for each in subtopologies or ()
    ]


def _topics(topics: Sequence[TopicInfo]) -> list[str]:
    return [each.name for each in topics]
