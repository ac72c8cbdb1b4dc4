"""``minibroker groups``: list, describe and delete consumer groups, and reset their offsets.

Owns these commands. It must never know the group protocol itself. Invariants: a lag is shown only
if both the committed offset and the log end offset are known; offsets are reset only with
``--execute`` and only if the group has no members. Kafka's counterpart is
``kafka-consumer-groups.sh``, whose option names and rules ``reset-offsets`` has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import click

from minibroker.cli.access import bootstrap_option
from minibroker.cli.commands import Argument, CommandGroup, examples
from minibroker.cli.completion import complete_groups
from minibroker.cli.output import emit, json_line, note, printable, table
from minibroker.cli.reset_offsets import reset_offsets
from minibroker.cli.share_groups import show_share_group
from minibroker.cli.streams_groups import show_streams_group, streams_group
from minibroker.cli.topics import report_each
from minibroker.client.connection import BootstrapServers
from minibroker.client.consumer import LATEST, committed_offsets, list_offsets
from minibroker.client.errors import BrokerError, check
from minibroker.client.kafka_client import KafkaClient
from minibroker_protocol.compiler import decoder
from minibroker_protocol.errors import ErrorCode, ProtocolError
from minibroker_protocol.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from minibroker_protocol.messages.consumer_group_describe import DescribedGroup as ConsumerGroup
from minibroker_protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from minibroker_protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from minibroker_protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from minibroker_protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse

app = CommandGroup(
    "groups", help="List, describe, reset and delete consumer groups.", no_args_is_help=True
)

LIST_EXAMPLES = examples(
    "minibroker groups list",
    "minibroker groups list --json",
)


DESCRIBE_EXAMPLES = examples(
    "minibroker groups describe cat-lovers",
    "minibroker groups describe cat-lovers --json | jq .offsets[].lag",
)
DELETE_EXAMPLES = examples("minibroker groups delete cat-lovers")


@app.command("list", epilog=LIST_EXAMPLES)
@bootstrap_option
@click.option("--json", is_flag=True, help="Print one JSON object per line.")
def list_(servers: BootstrapServers, json: bool) -> None:
    """List groups and their states."""
    with KafkaClient(*servers) as client:
        rows = sorted(
            (item.group_id, item.group_state, item.protocol_type) for item in client.groups()
        )
    if json:
        for row in rows:
            emit(json_line(dict(zip(("group", "state", "type"), row, strict=True))))
    elif rows:
        emit(table(("GROUP", "STATE", "TYPE"), rows))
    else:
        note("no groups; create one with `minibroker consume TOPIC --group NAME`")


@app.command("describe", epilog=DESCRIBE_EXAMPLES)
@click.argument(
    "group_id", cls=Argument, metavar="GROUP", about="The group.", shell_complete=complete_groups
)
@bootstrap_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def describe(group_id: str, servers: BootstrapServers, as_json: bool) -> None:
    """Show a group's members, committed offsets and lag."""
    with KafkaClient(*servers) as client:
        group_type = _type_of(client, group_id)
        if group_type == "share":
            show_share_group(client, group_id, as_json=as_json)
            return
        if group_type == "streams":
            described = streams_group(client, group_id)
            rows = lag_rows(client, committed_offsets(client, group_id))
            show_streams_group(described, rows, as_json=as_json)
            return
        if group_type == "consumer":
            consumer_group = _consumer_group(client, group_id)
            rows = lag_rows(client, committed_offsets(client, group_id))
            _show_consumer_group(consumer_group, rows, as_json=as_json)
            return
        request = DescribeGroupsRequest(groups=[group_id])
        reply = client.send(request, DescribeGroupsResponse, client.coordinator(group_id))
        (group,) = reply.groups
        check(f"group {group_id}", group.error_code, group.error_message)
        offsets = committed_offsets(client, group_id)
        if group.group_state == "Dead" and not offsets:
            raise BrokerError(f"group {group_id}", ErrorCode.GROUP_ID_NOT_FOUND)
        rows = lag_rows(client, offsets)
    if as_json:
        emit(json_line(_described(group, rows)))
        return
    emit(f"group {printable(group_id)}: {group.group_state}, {len(group.members)} members")
    if group.members:
        emit(table(("MEMBER", "CLIENT", "HOST", "PARTITIONS"), member_rows(group)))
    if rows:
        emit(table(("TOPIC", "PARTITION", "COMMITTED", "END", "LAG"), rows))


def _type_of(client: KafkaClient, group_id: str) -> str:
    """Kafka's name of the type of a group; empty if there is no such group."""
    listed = client.send(ListGroupsRequest(), ListGroupsResponse, client.coordinator(group_id))
    types = {group.group_id: group.group_type for group in listed.groups}
    return types.get(group_id, "").lower()


def _consumer_group(client: KafkaClient, group_id: str) -> ConsumerGroup:
    coordinator = client.coordinator(group_id)
    request = ConsumerGroupDescribeRequest(group_ids=[group_id])
    (group,) = client.send(request, ConsumerGroupDescribeResponse, coordinator).groups
    check(f"group {group_id}", group.error_code, group.error_message)
    return group


def _show_consumer_group(
    group: ConsumerGroup, rows: Sequence[Sequence[object]], *, as_json: bool
) -> None:
    members = consumer_member_rows(group)
    if as_json:
        names = ("member", "client_id", "host", "epoch", "partitions", "target")
        shown = {
            "group": group.group_id,
            "type": "consumer",
            "state": group.group_state,
            "group_epoch": group.group_epoch,
            "assignment_epoch": group.assignment_epoch,
            "assignor": group.assignor_name,
            "members": [dict(zip(names, row, strict=True)) for row in members],
            "waits_for": awaited_steps(group),
            "offsets": _offsets_as_json(rows),
        }
        emit(json_line(shown))
        return
    emit(
        f"group {printable(group.group_id)}: {group.group_state}, {len(group.members)} members, "
        f"consumer group in epoch {group.group_epoch}, target of epoch {group.assignment_epoch} by "
        f"{group.assignor_name}"
    )
    for step in awaited_steps(group):
        emit(step)
    if members:
        columns = ("MEMBER", "CLIENT", "HOST", "EPOCH", "PARTITIONS", "TARGET")
        cells = [(*row[:4], *(",".join(each) or "none" for each in row[4:])) for row in members]
        emit(table(columns, cells))
    if rows:
        emit(table(("TOPIC", "PARTITION", "COMMITTED", "END", "LAG"), rows))


def consumer_member_rows(
    group: ConsumerGroup,
) -> list[tuple[str, str, str, int, list[str], list[str]]]:
    """One row for each member: its id, client, host, epoch, partitions and target."""
    return [
        (
            member.member_id,
            member.client_id,
            member.client_host,
            member.member_epoch,
            _partitions(member.assignment),
            _partitions(member.target_assignment),
        )
        for member in sorted(group.members, key=lambda member: member.member_id)
    ]


def _partitions(assignment: Assignment) -> list[str]:
    return sorted(
        f"{topic.topic_name}-{partition}"
        for topic in assignment.topic_partitions
        for partition in topic.partitions
    )


def awaited_steps(group: ConsumerGroup) -> list[str]:
    """Why nothing moves: which member has yet to revoke what, and which member waits for it."""
    rows = consumer_member_rows(group)
    owners = {each: row[0] for row in rows for each in row[4]}
    steps = []
    if rows and group.group_epoch > group.assignment_epoch:
        steps.append(f"the target of epoch {group.group_epoch} is not computed yet")
    for member_id, _, _, _, current, target in rows:
        revoked = [each for each in current if each not in target]
        if revoked:
            steps.append(f"{member_id} has yet to revoke {', '.join(revoked)}")
        for each in target:
            owner = owners.get(each, member_id)
            if owner != member_id:
                steps.append(f"{member_id} waits for {each}, which {owner} has")
    return steps


def _described(group: DescribedGroup, rows: Sequence[Sequence[object]]) -> dict[str, object]:
    return {
        "group": group.group_id,
        "state": group.group_state,
        "members": [
            {
                "member": member.member_id,
                "client_id": member.client_id,
                "host": member.client_host,
                "partitions": list(filter(None, assigned(member.member_assignment).split(","))),
            }
            for member in group.members
        ],
        "offsets": _offsets_as_json(rows),
    }


def _offsets_as_json(rows: Sequence[Sequence[object]]) -> list[dict[str, object]]:
    columns = ("topic", "partition", "committed", "end", "lag")
    return [
        {
            name: None if cell == "-" and name != "topic" else cell
            for name, cell in zip(columns, row, strict=True)
        }
        for row in rows
    ]


app.add_command(reset_offsets)


@app.command("delete", epilog=DELETE_EXAMPLES)
@click.argument(
    "group_ids",
    cls=Argument,
    nargs=-1,
    required=True,
    metavar="GROUP...",
    about="The groups.",
    shell_complete=complete_groups,
)
@bootstrap_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per group.")
def delete(group_ids: Sequence[str], servers: BootstrapServers, as_json: bool) -> None:
    """Delete groups that have no members, with their offsets."""
    outcomes: list[tuple[str, int, str | None]] = []
    with KafkaClient(*servers) as client:
        for group_id in group_ids:
            request = DeleteGroupsRequest(groups_names=[group_id])
            reply = client.send(request, DeleteGroupsResponse, client.coordinator(group_id))
            outcomes += [(item.group_id, item.error_code, None) for item in reply.results]
    report_each("deleted", "group", outcomes, as_json=as_json)


def member_rows(group: DescribedGroup) -> list[tuple[str, str, str, str]]:
    """One row for each member: member, client id, host and assignment."""
    return [
        (
            member.member_id,
            member.client_id,
            member.client_host,
            assigned(member.member_assignment) or "none",
        )
        for member in group.members
    ]


def assigned(assignment: bytes) -> str:
    """Format an assignment as ``cats-0,cats-1``; ``?`` unless it is the consumer protocol's."""
    if not assignment:
        return ""
    try:
        decoded, _ = decoder(ConsumerProtocolAssignment, 0)(assignment, 2)
    except ProtocolError:
        return "?"
    return ",".join(
        f"{item.topic}-{index}" for item in decoded.assigned_partitions for index in item.partitions
    )


def lag_rows(client: KafkaClient, offsets: dict[tuple[str, int], int]) -> list[tuple[object, ...]]:
    """Rows of topic, partition, committed offset, end offset and lag; ``-`` for deleted topics."""
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, partition in offsets:
        by_topic[topic].append(partition)
    rows: list[tuple[object, ...]] = []
    for topic, partitions in sorted(by_topic.items()):
        ends: dict[int, int] = {}
        try:
            ends = list_offsets(client, client.topic(topic), LATEST)
        except BrokerError as refusal:
            if refusal.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        for partition in sorted(partitions):
            committed, end = offsets[topic, partition], ends.get(partition)
            lag = "-" if end is None else max(end - committed, 0)
            rows.append((topic, partition, committed, "-" if end is None else end, lag))
    return rows
