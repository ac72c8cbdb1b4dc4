"""Messages of consumers for written journals."""

from __future__ import annotations

from minibroker_protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from minibroker_protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)
from tests.lab.verdicts.group_messages import GROUP, TOPIC
from tests.lab.verdicts.written import WrittenJournal


def get_committed(
    journal: WrittenJournal, connection: str, group_error: int = 0, partition_error: int = 0
) -> None:
    """Send an OffsetFetch of one partition."""
    asked = OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])
    partition = OffsetFetchResponsePartitions(
        partition_index=0, committed_offset=4, metadata="", error_code=partition_error
    )
    found = OffsetFetchResponseTopics(name=TOPIC, partitions=[partition])
    group = OffsetFetchResponseGroup(
        group_id=GROUP, topics=[] if group_error else [found], error_code=group_error
    )
    journal.ask(
        connection,
        OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=[asked])]),
        8,
        OffsetFetchResponse(groups=[group]),
    )


def validate(journal: WrittenJournal, connection: str, error_code: int = 0) -> None:
    """Validate the position in one partition."""
    asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=4, leader_epoch=3)
    found = EpochEndOffset(partition=0, leader_epoch=3, end_offset=9, error_code=error_code)
    journal.ask(
        connection,
        OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=TOPIC, partitions=[asked])]),
        4,
        OffsetForLeaderEpochResponse(
            topics=[OffsetForLeaderTopicResult(topic=TOPIC, partitions=[found])]
        ),
    )
    journal.now += 100
