"""Messages of members of share groups for written journals."""

from __future__ import annotations

from collections.abc import Sequence

from minibroker_protocol.messages import share_acknowledge as acknowledging
from minibroker_protocol.messages import share_fetch as fetching
from minibroker_protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from tests.lab.verdicts.group_messages import MEMBER, TOPIC_ID
from tests.lab.verdicts.written import WrittenJournal

SHARE_GROUP = "s"
LOCK_MS = 30_000

Batch = tuple[int, int, int]
"""First offset, last offset and acknowledge type."""


def beat_share(
    journal: WrittenJournal, connection: str, *, epoch: int = 1, error_code: int = 0
) -> None:
    """Send a heartbeat of a member of a share group."""
    journal.ask(
        connection,
        ShareGroupHeartbeatRequest(group_id=SHARE_GROUP, member_id=MEMBER, member_epoch=epoch),
        1,
        ShareGroupHeartbeatResponse(member_id=MEMBER, member_epoch=1, error_code=error_code),
    )


def fetch_share(
    journal: WrittenJournal,
    connection: str,
    *acquired: tuple[int, int],
    epoch: int = 1,
    batches: Sequence[Batch] = (),
    error_code: int = 0,
    acknowledge_error_code: int = 0,
) -> None:
    """Fetch records of partition 0 with first and last offsets, and acknowledge others."""
    asked = fetching.FetchPartition(
        partition_index=0,
        acknowledgement_batches=[
            fetching.AcknowledgementBatch(
                first_offset=first, last_offset=last, acknowledge_types=[kind]
            )
            for first, last, kind in batches
        ],
    )
    data = fetching.PartitionData(
        partition_index=0,
        records=b"",
        acknowledge_error_code=acknowledge_error_code,
        acquired_records=[
            fetching.AcquiredRecords(first_offset=first, last_offset=last, delivery_count=1)
            for first, last in acquired
        ],
    )
    topic = fetching.ShareFetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])
    journal.ask(
        connection,
        fetching.ShareFetchRequest(
            group_id=SHARE_GROUP,
            member_id=MEMBER,
            share_session_epoch=epoch,
            topics=[fetching.FetchTopic(topic_id=TOPIC_ID, partitions=[asked])],
        ),
        2,
        fetching.ShareFetchResponse(
            error_code=error_code,
            acquisition_lock_timeout_ms=LOCK_MS,
            responses=[] if error_code else [topic],
        ),
    )


def acknowledge(
    journal: WrittenJournal,
    connection: str,
    *batches: Batch,
    epoch: int = 1,
    error_code: int = 0,
) -> None:
    """Acknowledge records of partition 0."""
    asked = acknowledging.AcknowledgePartition(
        partition_index=0,
        acknowledgement_batches=[
            acknowledging.AcknowledgementBatch(
                first_offset=first, last_offset=last, acknowledge_types=[kind]
            )
            for first, last, kind in batches
        ],
    )
    data = acknowledging.PartitionData(partition_index=0, error_code=error_code)
    topic = acknowledging.ShareAcknowledgeTopicResponse(topic_id=TOPIC_ID, partitions=[data])
    journal.ask(
        connection,
        acknowledging.ShareAcknowledgeRequest(
            group_id=SHARE_GROUP,
            member_id=MEMBER,
            share_session_epoch=epoch,
            topics=[acknowledging.AcknowledgeTopic(topic_id=TOPIC_ID, partitions=[asked])],
        ),
        2,
        acknowledging.ShareAcknowledgeResponse(
            acquisition_lock_timeout_ms=LOCK_MS, responses=[topic]
        ),
    )
