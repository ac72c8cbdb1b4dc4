"""Offsets of partitions: log start and end offsets, and offsets committed by a group.

Owns the requests ListOffsets and OffsetFetch, the latter in both forms; it must never print.
Invariant: listed offsets contain every partition of the topic; committed offsets contain only
partitions with a commit. Kafka's ``Admin`` has ``listOffsets`` and ``listConsumerGroupOffsets``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from minibroker.client.errors import check
from minibroker.client.kafka_client import KafkaClient
from minibroker_protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from minibroker_protocol.messages.metadata import MetadataResponseTopic
from minibroker_protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

LATEST: Final = -1
EARLIEST: Final = -2


def list_offsets(
    client: KafkaClient, topic: MetadataResponseTopic, timestamp: int
) -> dict[int, int]:
    """List each partition's offset for `EARLIEST`, `LATEST` or a timestamp in milliseconds."""
    by_leader: dict[int, list[int]] = defaultdict(list)
    for partition in topic.partitions:
        by_leader[partition.leader_id].append(partition.partition_index)
    found: dict[int, int] = {}
    for leader, partitions in by_leader.items():
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(
                    name=topic.name or "",
                    partitions=[
                        ListOffsetsPartition(partition_index=index, timestamp=timestamp)
                        for index in partitions
                    ],
                )
            ],
        )
        for answer in client.send(request, ListOffsetsResponse, leader).topics[0].partitions:
            check(f"offsets of {topic.name}-{answer.partition_index}", answer.error_code)
            found[answer.partition_index] = answer.offset
    return found


def committed_offsets(
    client: KafkaClient, group_id: str, topic: str | None = None, partitions: Sequence[int] = ()
) -> dict[tuple[str, int], int]:
    """Fetch a group's committed offsets: of some partitions, or of all if no topic is given."""
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
    reply = client.send(request, OffsetFetchResponse, client.coordinator(group_id))
    found = reply.groups[0] if reply.groups else reply
    check(f"offsets of group {group_id}", found.error_code)
    return {
        (item.name, partition.partition_index): partition.committed_offset
        for item in found.topics
        for partition in item.partitions
        if partition.committed_offset >= 0 and not partition.error_code
    }
