"""Share groups (KIP-932): heartbeats, fetches, acknowledgements, offsets and stored states.

Kafka creates the states of partitions in the background, so the first heartbeats are apart.
"""

from __future__ import annotations

from typing import Any, Final

from minibroker_protocol.messages import alter_share_group_offsets as altering
from minibroker_protocol.messages import delete_share_group_offsets as deleting
from minibroker_protocol.messages import delete_share_group_state as ds
from minibroker_protocol.messages import describe_share_group_offsets as offsets
from minibroker_protocol.messages import initialize_share_group_state as ins
from minibroker_protocol.messages import read_share_group_state as rs
from minibroker_protocol.messages import read_share_group_state_summary as rss
from minibroker_protocol.messages import share_acknowledge as acknowledging
from minibroker_protocol.messages import share_fetch as fetching
from minibroker_protocol.messages import write_share_group_state as ws
from minibroker_protocol.messages.delete_groups import DeleteGroupsRequest
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from minibroker_protocol.messages.share_group_describe import ShareGroupDescribeRequest
from minibroker_protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.types import ZERO_UUID, uuid_text
from system_tests.peers.conversation import SendRequest
from system_tests.peers.records import produce
from system_tests.peers.topics import create, topic


def beat(member: str, epoch: int, group: str = "sg", **fields: Any) -> ShareGroupHeartbeatRequest:
    return ShareGroupHeartbeatRequest(
        group_id=group, member_id=member, member_epoch=epoch, **fields
    )


def fetch(
    topic_id: bytes, epoch: int, *acks: tuple[int, int, tuple[int, ...]], **fields: Any
) -> fetching.ShareFetchRequest:
    batches = [
        fetching.AcknowledgementBatch(
            first_offset=first, last_offset=last, acknowledge_types=list(types)
        )
        for first, last, types in acks
    ]
    partition = fetching.FetchPartition(partition_index=0, acknowledgement_batches=batches)
    given: dict[str, Any] = {
        "group_id": "sg",
        "member_id": "a",
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 100_000,
        "max_records": 100,
        "batch_size": 100,
        "topics": [fetching.FetchTopic(topic_id=topic_id, partitions=[partition])],
    }
    return fetching.ShareFetchRequest(share_session_epoch=epoch, **{**given, **fields})


def acknowledge(
    topic_id: bytes, epoch: int, *acks: tuple[int, int, tuple[int, ...]], **fields: Any
) -> acknowledging.ShareAcknowledgeRequest:
    batches = [
        acknowledging.AcknowledgementBatch(
            first_offset=first, last_offset=last, acknowledge_types=list(types)
        )
        for first, last, types in acks
    ]
    partition = acknowledging.AcknowledgePartition(
        partition_index=0, acknowledgement_batches=batches
    )
    asked = acknowledging.AcknowledgeTopic(topic_id=topic_id, partitions=[partition])
    given = {"group_id": "sg", "member_id": "a", "topics": [asked], **fields}
    return acknowledging.ShareAcknowledgeRequest(share_session_epoch=epoch, **given)


def share_heartbeats(ask: SendRequest) -> None:
    """Each rule of validation."""
    names: dict[str, Any] = {"subscribed_topic_names": ["sg"]}
    malformed: tuple[tuple[str, int, dict[str, Any]], ...] = (
        ("", 0, names),
        ("m" * 37, 0, names),
        (" ", 0, names),
        ("m", 0, {}),
        ("m", 0, {"subscribed_topic_names": []}),
        ("m", -2, names),
        ("m", -1, names),
        ("m", 5, names),
        ("m", 0, {**names, "group": ""}),
        ("m", 0, {**names, "rack_id": ""}),
    )
    for number, (member, epoch, fields) in enumerate(malformed):
        ask(f"malformed {number}", beat(member, epoch, **fields), 1)


def shared_records(ask: SendRequest) -> None:
    """A member fetches records, and acknowledges them in every way."""
    made = ask("made", create(topic("sg", 1)), 7)
    topic_id = made.topics[0].topic_id
    key = f"sg:{uuid_text(ZERO_UUID)}:0"
    ask("early coordinator", FindCoordinatorRequest(key_type=2, coordinator_keys=["sg"]), 6)
    config = AlterableConfig(name="share.auto.offset.reset", value="earliest")
    resource = AlterConfigsResource(resource_type=32, resource_name="sg", configs=[config])
    ask("configured", IncrementalAlterConfigsRequest(resources=[resource]), 1)
    records = [Record(at, 1, None, b"v%d" % at) for at in range(10)]
    ask("produced", produce("sg", build_batch(records)), 9)
    names: dict[str, Any] = {"subscribed_topic_names": ["sg"]}
    ask("joined", beat("a", 0, **names), 1)
    # Kafka first creates the topic of states and the states.
    ask.until(lambda response: response.member_epoch == 3, "assigned", beat("a", 2, **names), 1)
    ask("alive", beat("a", 3, **names), 1)
    ask("greater epoch", beat("a", 9), 1)
    ask("unknown member", beat("x", 3), 1)
    ask("described", ShareGroupDescribeRequest(group_ids=["sg", "none", ""]), 1)
    ask("coordinator", FindCoordinatorRequest(key_type=2, coordinator_keys=[key]), 6)
    for version in (1, 2):
        ask(f"no session {version}", fetch(topic_id, 5), version)
        ask(f"acknowledges early {version}", fetch(topic_id, 0, (0, 0, (1,))), version)
        ask(f"without a group {version}", fetch(topic_id, 0, group_id=None), version)
        ask(f"without a member {version}", fetch(topic_id, 0, member_id=""), version)
        ask(f"acknowledges nothing {version}", acknowledge(topic_id, 5), version)
        ask(f"acknowledges at 0 {version}", acknowledge(topic_id, 0), version)
    ask("unknown topic", fetch(bytes(15) + b"\1", 0), 2)
    ask("closed", fetch(ZERO_UUID, -1, topics=[]), 2)
    ask("fetched", fetch(topic_id, 0, max_wait_ms=5_000, max_records=4, share_acquire_mode=1), 2)
    _acknowledge(ask, topic_id)


def _acknowledge(ask: SendRequest, topic_id: bytes) -> None:
    ask("wrong epoch", fetch(topic_id, 7), 2)
    ask("another's", acknowledge(topic_id, 1, (0, 0, (1,)), member_id="x"), 2)
    bad = ((2, 1, (1,)), (0, 1, ()), (0, 1, (1, 1, 1)), (0, 0, (9,)), (0, 0, (4,)), (0, 99, (1,)))
    epoch = 1
    for number, ack in enumerate(bad):
        ask(f"invalid {number}", acknowledge(topic_id, epoch, ack), 2)
        epoch += 1
    ask("accepted", acknowledge(topic_id, epoch, (0, 0, (1,))), 1)
    ask("accepted again", acknowledge(topic_id, epoch + 1, (0, 0, (1,))), 2)
    ask("renewed", acknowledge(topic_id, epoch + 2, (1, 1, (4,)), is_renew_ack=True), 2)
    ask("renewed with limits", fetch(topic_id, epoch + 3, (1, 1, (4,)), is_renew_ack=True), 2)
    ask("mixed", fetch(topic_id, epoch + 3, (1, 3, (2, 3, 1)), max_records=1), 1)
    ask("rest", fetch(topic_id, epoch + 4, topics=[]), 2)
    group = offsets.DescribeShareGroupOffsetsRequestGroup(group_id="sg", topics=None)
    for version in (0, 1):
        request = offsets.DescribeShareGroupOffsetsRequest(groups=[group])
        ask(f"offsets {version}", request, version)
    _alter(ask, "in use")
    ask("deleted in use", DeleteGroupsRequest(groups_names=["sg"]), 3)
    ask("last", acknowledge(topic_id, -1, (4, 9, (1,))), 2)
    ask("left", beat("a", -1), 1)
    ask("left again", beat("a", -1), 1)
    _alter(ask, "empty")
    ask("altered offsets", offsets.DescribeShareGroupOffsetsRequest(groups=[group]), 1)
    _states(ask, topic_id)
    for number, name in enumerate(("sg", "sg", "none")):
        topics = [deleting.DeleteShareGroupOffsetsRequestTopic(topic_name=name)]
        for group_id in ("sg", "none", ""):
            forget = deleting.DeleteShareGroupOffsetsRequest(group_id=group_id, topics=topics)
            ask(f"forgot {number} of {group_id!r}", forget, 0)
    ask("deleted", DeleteGroupsRequest(groups_names=["sg"]), 3)
    ask("gone", ShareGroupDescribeRequest(group_ids=["sg"]), 1)


def _alter(ask: SendRequest, about: str) -> None:
    for name, index in (("sg", 0), ("sg", 9), ("none", 0)):
        partition = altering.AlterShareGroupOffsetsRequestPartition(
            partition_index=index, start_offset=3
        )
        wanted = altering.AlterShareGroupOffsetsRequestTopic(
            topic_name=name, partitions=[partition]
        )
        request = altering.AlterShareGroupOffsetsRequest(group_id="sg", topics=[wanted])
        ask(f"altered {name}-{index}, {about}", request, 0)


def _states(ask: SendRequest, topic_id: bytes) -> None:
    """The requests of brokers, about a group that no client is in."""

    def fields(data: Any, partition: Any) -> dict[str, Any]:
        return {"group_id": "st", "topics": [data(topic_id=topic_id, partitions=[partition])]}

    read = fields(rs.ReadStateData, rs.PartitionData(partition=0, leader_epoch=0))
    ask("state unread", rs.ReadShareGroupStateRequest(**read), 0)
    batch = ws.StateBatch(first_offset=2, last_offset=4, delivery_state=2, delivery_count=1)
    change = ws.PartitionData(partition=0, state_epoch=1, start_offset=1, state_batches=[batch])
    write = fields(ws.WriteStateData, change)
    ask("state unwritten", ws.WriteShareGroupStateRequest(**write), 0)
    for epoch in (-1, 1, 0):
        begin = ins.PartitionData(partition=0, state_epoch=epoch, start_offset=1)
        request = ins.InitializeShareGroupStateRequest(**fields(ins.InitializeStateData, begin))
        ask(f"state initialized {epoch}", request, 0)
    for version in (0, 1):
        ask(f"state written {version}", ws.WriteShareGroupStateRequest(**write), version)
    change.state_epoch = 0
    ask("state fenced", ws.WriteShareGroupStateRequest(**write), 1)
    ask("state read", rs.ReadShareGroupStateRequest(**read), 0)
    short = fields(rss.ReadStateSummaryData, rss.PartitionData(partition=0, leader_epoch=0))
    for version in (0, 1):
        ask(f"state summary {version}", rss.ReadShareGroupStateSummaryRequest(**short), version)
    gone = fields(ds.DeleteStateData, ds.PartitionData(partition=0))
    for number in (1, 2):
        ask(f"state deleted {number}", ds.DeleteShareGroupStateRequest(**gone), 0)
    ask("state empty", rs.ReadShareGroupStateRequest(group_id="", topics=[]), 0)


CONVERSATIONS: Final = (share_heartbeats, shared_records)
