"""Share groups in ``minibroker groups describe``: members, start offsets and lag.

Owns the requests and the tables. It must never change a group. Invariant: a lag is shown only if
the broker knows it. Kafka's ``kafka-share-groups.sh``.
"""

from __future__ import annotations

from minibroker.cli.output import emit, json_line, printable, table
from minibroker.client.errors import check
from minibroker.client.kafka_client import KafkaClient
from minibroker_protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)
from minibroker_protocol.messages.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)

UNKNOWN = -1
Row = tuple[str, int, int | None, int | None]
"""Topic, partition, start offset and lag."""


def show_share_group(client: KafkaClient, group_id: str, *, as_json: bool) -> None:
    """Describe a share group. Raises ``BrokerError``."""
    coordinator = client.coordinator(group_id)
    request = ShareGroupDescribeRequest(group_ids=[group_id])
    (group,) = client.send(request, ShareGroupDescribeResponse, coordinator).groups
    check(f"group {group_id}", group.error_code, group.error_message)
    asked = DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=None)
    offsets = DescribeShareGroupOffsetsRequest(groups=[asked])
    (found,) = client.send(offsets, DescribeShareGroupOffsetsResponse, coordinator).groups
    check(f"group {group_id}", found.error_code, found.error_message)
    rows: list[Row] = sorted(
        (
            topic.topic_name,
            partition.partition_index,
            None if partition.start_offset == UNKNOWN else partition.start_offset,
            None if partition.lag == UNKNOWN else partition.lag,
        )
        for topic in found.topics
        for partition in topic.partitions
    )
    _show(group, rows, as_json=as_json)


def _show(group: DescribedGroup, rows: list[Row], *, as_json: bool) -> None:
    members = [
        (
            member.member_id,
            member.client_id,
            member.client_host,
            member.member_epoch,
            [
                f"{topic.topic_name}-{at}"
                for topic in member.assignment.topic_partitions
                for at in topic.partitions
            ],
        )
        for member in group.members
    ]
    if as_json:
        names = ("member", "client_id", "host", "epoch", "partitions")
        columns = ("topic", "partition", "start_offset", "lag")
        shown = {
            "group": group.group_id,
            "type": "share",
            "state": group.group_state,
            "group_epoch": group.group_epoch,
            "assignment_epoch": group.assignment_epoch,
            "members": [dict(zip(names, row, strict=True)) for row in members],
            "offsets": [dict(zip(columns, row, strict=True)) for row in rows],
        }
        emit(json_line(shown))
        return
    emit(
        f"group {printable(group.group_id)}: {group.group_state}, {len(members)} members, share "
        f"group in epoch {group.group_epoch}"
    )
    if members:
        cells = [(*row[:4], ",".join(row[4]) or "none") for row in members]
        emit(table(("MEMBER", "CLIENT", "HOST", "EPOCH", "PARTITIONS"), cells))
    if rows:
        shown_rows = [tuple("-" if cell is None else cell for cell in row) for row in rows]
        emit(table(("TOPIC", "PARTITION", "START", "LAG"), shown_rows))
