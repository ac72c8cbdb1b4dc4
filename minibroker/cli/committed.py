"""Committed offsets of a group, asked of its coordinator.

Owns one question in both forms that OffsetFetch has had; it must never print. Invariant: a
partition without a committed offset is not in the answer. Kafka's counterpart is the offsets part
of ``kafka-consumer-groups.sh``.
"""

from __future__ import annotations

from collections.abc import Sequence

from minibroker.cli.client import Client
from minibroker.cli.errors import check
from protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)


def committed_offsets(
    client: Client, group_id: str, topic: str | None = None, partitions: Sequence[int] = ()
) -> dict[tuple[str, int], int]:
    """Committed offset by topic and partition: of some partitions, of all without a topic."""
    old = new = None
    if topic is not None:
        indexes = list(partitions)
        old = [OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)]
        new = [OffsetFetchRequestTopics(name=topic, partition_indexes=indexes)]
    request = OffsetFetchRequest(
        group_id=group_id,
        topics=old,
        groups=[OffsetFetchRequestGroup(group_id=group_id, topics=new)],
    )
    reply = client.ask(request, OffsetFetchResponse, client.coordinator(group_id))
    found = reply.groups[0] if reply.groups else reply
    check(f"offsets of group {group_id}", found.error_code)
    return {
        (item.name, partition.partition_index): partition.committed_offset
        for item in found.topics
        for partition in item.partitions
        if partition.committed_offset >= 0 and not partition.error_code
    }
