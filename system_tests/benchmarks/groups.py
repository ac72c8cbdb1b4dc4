"""Measures of a consumer group's requests: FindCoordinator, Heartbeat, OffsetCommit, OffsetFetch.

Owns joining a group and the encoded requests of its only member; it starts no peer and prints
nothing. Invariant: the group is stable while it is measured, so every response is the same and has
no error.
"""

from __future__ import annotations

import uuid
from typing import Final

from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker_protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from minibroker_protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from minibroker_protocol.schema import Message
from system_tests.benchmarks.frames import Versioned, repeat, versioned
from system_tests.benchmarks.measures import Figures, topic_of
from system_tests.benchmarks.peers import Peer

NAMES: Final = ("FindCoordinator", "Heartbeat", "OffsetCommit", "OffsetFetch")
SESSION_TIMEOUT_MS: Final = 45_000


def row(name: str) -> str:
    return f"{name}, median"


def group_requests(peer: Peer, count: int) -> Figures:
    """One request at a time, as the only member of a stable group."""
    group = f"group-{uuid.uuid4().hex[:8]}"
    with topic_of(peer, "group", 1) as topic, versioned(peer) as connection:
        requests = encoded(connection, group, topic)
        return {row(name): repeat(peer, [requests[name]], count).median_us for name in NAMES}


def encoded(connection: Versioned, group: str, topic: str) -> dict[str, bytes]:
    """Join the group and return its member's requests."""
    find = FindCoordinatorRequest(key=group, key_type=0)
    connection.ask_until_accepted(find)  # the first one may create the offsets topic
    member, generation = joined(connection, group)
    commit = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=0, committed_metadata=""
                    )
                ],
            )
        ],
    )
    fetch = OffsetFetchRequest(
        group_id=group, topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[0])]
    )
    heartbeat = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member)
    messages: tuple[Message, ...] = (find, heartbeat, commit, fetch)
    return {name: connection.frame(message) for name, message in zip(NAMES, messages, strict=True)}


def joined(connection: Versioned, group: str) -> tuple[str, int]:
    """Return the member id and generation of a group that is stable."""
    response = connection.ask_until_accepted(
        JoinGroupRequest(
            group_id=group,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=SESSION_TIMEOUT_MS,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        ),
    )
    assignment = SyncGroupRequestAssignment(member_id=response.member_id, assignment=b"")
    connection.ask_until_accepted(
        SyncGroupRequest(
            group_id=group,
            generation_id=response.generation_id,
            member_id=response.member_id,
            assignments=[assignment],
        ),
    )
    return response.member_id, response.generation_id
