"""First and next offsets of a topic's partitions, asked of their leaders.

Owns one question that several commands ask; it must never print. Invariant: every partition of the
topic that was given has an entry in the answer. Kafka's counterpart is ``kafka-get-offsets.sh``.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from minibroker.cli.client import Client
from minibroker.cli.errors import check
from protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.messages.metadata import MetadataResponseTopic

LATEST: Final = -1
EARLIEST: Final = -2


def list_offsets(client: Client, topic: MetadataResponseTopic, timestamp: int) -> dict[int, int]:
    """Offset by partition for `EARLIEST`, `LATEST` or a timestamp in milliseconds."""
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
        for answer in client.ask(request, ListOffsetsResponse, leader).topics[0].partitions:
            check(f"offsets of {topic.name}-{answer.partition_index}", answer.error_code)
            found[answer.partition_index] = answer.offset
    return found
