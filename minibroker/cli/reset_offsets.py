"""``minibroker groups reset-offsets``: commit other offsets for a group without members.

Owns the choice of partitions and of their new offsets. Invariants: nothing is committed without
``--execute``, or while the group has members, whose next commit would undo it; a new offset is
between the log's start and end. Option names and rules are those of ``--reset-offsets`` of
``kafka-consumer-groups.sh``.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import click

from minibroker.cli.access import bootstrap_option
from minibroker.cli.commands import Argument, Command, examples
from minibroker.cli.completion import complete_groups, complete_topics
from minibroker.cli.output import CliError, InvalidUsage, emit, json_line, note, table
from minibroker.cli.times import read_duration_ms, read_time_ms
from minibroker.client.connection import BootstrapServers
from minibroker.client.consumer import EARLIEST, LATEST, committed_offsets, list_offsets
from minibroker.client.errors import BrokerError, check
from minibroker.client.kafka_client import KafkaClient
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from minibroker_protocol.messages.metadata import MetadataResponseTopic
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

INACTIVE: Final = frozenset({"", "Empty", "Dead"})
"""States of groups without members; old brokers do not report the state."""

ACTIVE_ERRORS: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS})
"""Answers to a commit without a member if the group has members."""

EXAMPLES = examples(
    "minibroker groups reset-offsets cat-lovers --topic cats --to-earliest",
    "minibroker groups reset-offsets cat-lovers --topic cats:0,1 --to-offset 42 --execute",
    "minibroker groups reset-offsets cat-lovers --all-topics --by-duration 2h --execute",
    "minibroker groups reset-offsets cat-lovers --all-topics --shift-by -10 --execute",
    "minibroker groups reset-offsets cat-lovers --topic cats --to-datetime 2026-11-28T09:30:00",
    after="""Without --execute the command only shows what it would do. Stop the group's members
first: they would commit their own offsets again.""",
)


class PartitionOffsets(NamedTuple):
    """Where a partition starts and ends, and what the group has committed."""

    committed: int | None
    start: int
    end: int


class ResetTarget(NamedTuple):
    """What the new offset of each partition is: exactly one field is given."""

    to_earliest: bool = False
    to_latest: bool = False
    to_offset: int | None = None
    to_time_ms: int | None = None
    shift_by: int | None = None

    def new_offset(self, offsets: PartitionOffsets, at_time: int | None = None) -> int:
        """Return the new offset, between the log's start and end.

        ``at_time`` is the offset of the first record at or after ``to_time_ms``; without such a
        record it is None, and the new offset is the log's end.
        """
        wanted = offsets.end
        if self.to_earliest:
            wanted = offsets.start
        elif self.to_offset is not None:
            wanted = self.to_offset
        elif self.shift_by is not None and offsets.committed is not None:
            wanted = offsets.committed + self.shift_by
        elif self.to_time_ms is not None and at_time is not None:
            wanted = at_time
        return min(max(wanted, offsets.start), offsets.end)


class ResetRow(NamedTuple):
    """One partition of the output."""

    topic: str
    partition: int
    committed: int | None
    new: int


@click.command("reset-offsets", cls=Command, epilog=EXAMPLES)
@click.argument(
    "group_id", cls=Argument, metavar="GROUP", about="The group.", shell_complete=complete_groups
)
@bootstrap_option
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:P,P]",
    shell_complete=complete_topics,
    help="A topic, or some of its partitions; may be repeated.",
)
@click.option("--all-topics", is_flag=True, help="All topics for which the group has offsets.")
@click.option("--to-earliest", is_flag=True, help="To the first record.")
@click.option("--to-latest", is_flag=True, help="After the last record.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="OFFSET", help="To this offset.")
@click.option("--to-datetime", metavar="TIME", help="To the first record at this time or later.")
@click.option("--by-duration", metavar="DURATION", help="To the first record since then: 90s, 2h.")
@click.option("--shift-by", type=int, metavar="NUMBER", help="Forward, or back if negative.")
@click.option("--execute", is_flag=True, help="Commit the new offsets; otherwise only show them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per partition.")
def reset_offsets(
    group_id: str,
    servers: BootstrapServers,
    topics: Sequence[str],
    all_topics: bool,
    execute: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Reset a group's committed offsets; without --execute, show what would change."""
    if all_topics == bool(topics):
        raise InvalidUsage("say which partitions: --topic TOPIC or --all-topics")
    reset = read_reset(where, lambda: time.time_ns() // 1_000_000)
    chosen = dict(map(read_partitions, topics))
    with KafkaClient(*servers) as client:
        state = group_state(client, group_id)
        if state not in INACTIVE:
            raise _active(group_id, f"it is {state}")
        rows = list(_rows(client, group_id, chosen, reset))
        if execute:
            _commit(client, group_id, rows)
    for row in rows if as_json else ():
        emit(json_line({"group": group_id, **row._asdict(), "executed": execute}))
    if not as_json:
        emit(
            table(
                ("TOPIC", "PARTITION", "COMMITTED", "NEW-OFFSET"),
                [
                    (
                        row.topic,
                        row.partition,
                        "-" if row.committed is None else row.committed,
                        row.new,
                    )
                    for row in rows
                ],
            )
        )
        if not execute:
            note("nothing was changed; pass --execute to commit the new offsets")


def read_reset(where: dict[str, Any], now_ms: Callable[[], int]) -> ResetTarget:
    """Read the options that say where to. Raises `InvalidUsage` unless it is one."""
    given = [name for name in where if where[name] is not None and where[name] is not False]
    if len(given) != 1:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in where)
        raise InvalidUsage(f"say where to, once: {names}")
    (name,) = given
    value = where[name]
    if name == "to_datetime":
        return ResetTarget(to_time_ms=read_time_ms("--to-datetime", value))
    if name == "by_duration":
        return ResetTarget(to_time_ms=now_ms() - read_duration_ms("--by-duration", value))
    return ResetTarget(**{name: value})


def read_partitions(text: str) -> tuple[str, list[int] | None]:
    """Split ``cats:0,1``; None means all partitions."""
    topic, separator, indexes = text.partition(":")
    if not separator:
        return topic, None
    parts = indexes.split(",")
    if not all(part.isdecimal() for part in parts):
        raise InvalidUsage(f"--topic {text}: must be TOPIC or TOPIC:PARTITION,PARTITION")
    return topic, sorted({int(part) for part in parts})


def group_state(client: KafkaClient, group_id: str) -> str:
    """Return the group's state; ``Dead`` if its coordinator does not know it."""
    reply = client.send(ListGroupsRequest(), ListGroupsResponse, client.coordinator(group_id))
    check("list of groups", reply.error_code)
    return next((item.group_state for item in reply.groups if item.group_id == group_id), "Dead")


def _active(group_id: str, reason: str) -> CliError:
    return CliError(
        f"group {group_id}: offsets can only be reset if the group has no members, but {reason}; "
        f"stop its members first: see `minibroker groups describe {group_id}`"
    )


def _rows(
    client: KafkaClient, group_id: str, chosen: dict[str, list[int] | None], reset: ResetTarget
) -> Iterator[ResetRow]:
    offsets = committed_offsets(client, group_id)
    with_offsets: dict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(offsets):
        with_offsets[topic].append(partition)
    if not chosen and not with_offsets:
        raise CliError(
            f"group {group_id} has no committed offsets; name the topics with --topic TOPIC"
        )
    for topic, partitions in (chosen or with_offsets).items():
        try:
            found = client.topic(topic)
        except BrokerError as error:
            if chosen or error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            note(f"topic {topic} is left out: it does not exist any more")
            continue
        yield from _rows_of_topic(client, found, partitions, offsets, reset)


def _rows_of_topic(
    client: KafkaClient,
    topic: MetadataResponseTopic,
    partitions: Sequence[int] | None,
    offsets: dict[tuple[str, int], int],
    reset: ResetTarget,
) -> Iterator[ResetRow]:
    name = topic.name or ""
    starts, ends = list_offsets(client, topic, EARLIEST), list_offsets(client, topic, LATEST)
    at_time = {} if reset.to_time_ms is None else list_offsets(client, topic, reset.to_time_ms)
    for partition in sorted(ends) if partitions is None else partitions:
        if partition not in ends:
            raise InvalidUsage(
                f"--topic {name}:{partition}: the topic has partitions 0 to {len(ends) - 1}"
            )
        committed = offsets.get((name, partition))
        if reset.shift_by is not None and committed is None:
            raise CliError(f"--shift-by: the group has no committed offset for {name}-{partition}")
        bounds = PartitionOffsets(committed, starts[partition], ends[partition])
        found = at_time.get(partition, -1)
        new = reset.new_offset(bounds, None if found < 0 else found)
        if reset.to_offset not in {None, new}:
            note(f"{name}-{partition}: offset {reset.to_offset} is out of range, {new} is nearest")
        yield ResetRow(name, partition, committed, new)


def _commit(client: KafkaClient, group_id: str, rows: Sequence[ResetRow]) -> None:
    by_topic: dict[str, list[OffsetCommitRequestPartition]] = defaultdict(list)
    for row in rows:
        by_topic[row.topic].append(
            OffsetCommitRequestPartition(
                partition_index=row.partition, committed_offset=row.new, committed_metadata=""
            )
        )
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=-1,
        topics=[
            OffsetCommitRequestTopic(name=topic, partitions=partitions)
            for topic, partitions in by_topic.items()
        ],
    )
    reply = client.send(request, OffsetCommitResponse, client.coordinator(group_id))
    for topic in reply.topics:
        for partition in topic.partitions:
            if partition.error_code in ACTIVE_ERRORS:
                raise _active(group_id, "a member has joined")
            check(f"commit of {topic.name}-{partition.partition_index}", partition.error_code)
