"""Measure of the records that the members of a share group (KIP-932) fetch and acknowledge.

Owns the amounts, the row names, and the fetches of a member; it starts no peer and prints nothing.
Invariant: each record is acknowledged once, in the fetch after the one that brought it, as clients
do.
"""

from __future__ import annotations

import time
import uuid
from contextlib import ExitStack
from typing import Final

from minibroker_protocol.messages import share_acknowledge as acknowledging
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.messages.share_acknowledge import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from minibroker_protocol.messages.share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
    ShareFetchResponse,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.types import Uuid
from system_tests.benchmarks.client import RunFailed
from system_tests.benchmarks.frames import Versioned, refuse_errors, versioned
from system_tests.benchmarks.group_members import Member, ShareMember, joined, settle
from system_tests.benchmarks.measures import SMALL_RECORD_BYTES, Figures, cpu_seconds, topic_of
from system_tests.benchmarks.peers import Peer

MEMBERS: Final = 4
BATCHES: Final = 1_000
"""Batches of each partition; each member has one."""
RECORDS: Final = 100
"""Records of a batch."""
RECORDS_MAX: Final = 500
MAX_WAIT_MS: Final = 500
CONSUMING_MAX_S: Final = 60.0
GROUP_RESOURCE: Final = 32
SET: Final = 0
ACCEPT: Final = 1

RATE: Final = f"share records with acknowledgements, {MEMBERS} members"
CPU: Final = f"{RATE}: broker's CPU each"


class Fetcher:
    """A member of a share group with its connection and the session on it."""

    def __init__(self, connection: Versioned, member: Member) -> None:
        self._connection = connection
        self._member = member
        self._epoch = 0
        self._acquired: dict[tuple[Uuid, int], list[AcknowledgementBatch]] = {
            each: [] for each in sorted(member.owned)
        }

    def send(self) -> None:
        """Send the next fetch, which acknowledges what the last one has brought."""
        topics: dict[Uuid, list[FetchPartition]] = {}
        for (topic, index), batches in self._acquired.items():
            partition = FetchPartition(partition_index=index, acknowledgement_batches=batches)
            topics.setdefault(topic, []).append(partition)
        self._acquired = {}
        self._connection.send(
            ShareFetchRequest(
                group_id=self._member.group,
                member_id=self._member.member_id,
                share_session_epoch=self._epoch,
                max_wait_ms=MAX_WAIT_MS,
                min_bytes=1,
                max_records=RECORDS_MAX,
                batch_size=RECORDS_MAX,
                topics=[FetchTopic(topic_id=each, partitions=topics[each]) for each in topics],
            )
        )
        self._epoch += 1

    def receive(self) -> int:
        """Return the number of records that a fetch has acquired."""
        answer = self._connection.answer(ShareFetchRequest)
        refuse_errors(answer)
        return sum(self._note(answer))

    def finish(self) -> None:
        """Acknowledge what the last fetch has brought."""
        topics: dict[Uuid, list[AcknowledgePartition]] = {}
        for (topic, index), batches in self._acquired.items():
            partition = AcknowledgePartition(
                partition_index=index,
                acknowledgement_batches=[
                    acknowledging.AcknowledgementBatch(
                        first_offset=each.first_offset,
                        last_offset=each.last_offset,
                        acknowledge_types=each.acknowledge_types,
                    )
                    for each in batches
                ],
            )
            topics.setdefault(topic, []).append(partition)
        request = ShareAcknowledgeRequest(
            group_id=self._member.group,
            member_id=self._member.member_id,
            share_session_epoch=self._epoch,
            topics=[AcknowledgeTopic(topic_id=each, partitions=topics[each]) for each in topics],
        )
        refuse_errors(self._connection.ask(request))

    def _note(self, answer: ShareFetchResponse) -> list[int]:
        counts = []
        for topic in answer.responses:
            for partition in topic.partitions:
                if partition.acknowledge_error_code:
                    raise RunFailed(f"acknowledgement: error {partition.acknowledge_error_code}")
                batches = [
                    AcknowledgementBatch(
                        first_offset=each.first_offset,
                        last_offset=each.last_offset,
                        acknowledge_types=[ACCEPT],
                    )
                    for each in partition.acquired_records
                ]
                if batches:
                    self._acquired[topic.topic_id, partition.partition_index] = batches
                counts += [each.last_offset - each.first_offset + 1 for each in batches]
        return counts


def acknowledged(peer: Peer) -> Figures:
    """Fetch and acknowledge the records of a topic, with one fetch of each member in flight."""
    total = MEMBERS * BATCHES * RECORDS
    with ExitStack() as stack:
        topic = stack.enter_context(topic_of(peer, "shared", MEMBERS))
        connections = [stack.enter_context(versioned(peer)) for _ in range(MEMBERS)]
        group = f"shared-{uuid.uuid4().hex[:8]}"
        prepare(connections[0], group, topic)
        members: list[Member] = [ShareMember(group, topic) for _ in range(MEMBERS)]
        stack.enter_context(joined(connections[0], members))
        settle(connections[0], members, MEMBERS)
        fetchers = [
            Fetcher(connection, member)
            for connection, member in zip(connections, members, strict=True)
        ]
        used, began = cpu_seconds(peer.pid), time.perf_counter()
        consume(fetchers, total)
        took = time.perf_counter() - began
        used = cpu_seconds(peer.pid) - used
    return {RATE: total / took, CPU: used / total * 1e6}


def prepare(connection: Versioned, group: str, topic: str) -> None:
    """Produce the records, and let the group start at the first one."""
    connection.ask_until_accepted(FindCoordinatorRequest(key=group, key_type=0))
    start = AlterableConfig(name="share.auto.offset.reset", config_operation=SET, value="earliest")
    resource = AlterConfigsResource(
        resource_type=GROUP_RESOURCE, resource_name=group, configs=[start]
    )
    refuse_errors(
        connection.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
    )
    batch = build_batch(
        [
            Record(timestamp=1_700_000_000_000, value=bytes(SMALL_RECORD_BYTES))
            for _ in range(RECORDS)
        ]
    )
    data = [PartitionProduceData(index=index, records=batch) for index in range(MEMBERS)]
    topics = [TopicProduceData(name=topic, partition_data=data)]
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics)
    connection.ask_until_accepted(request)
    for _ in range(BATCHES - 1):
        refuse_errors(connection.ask(request))


def consume(fetchers: list[Fetcher], total: int) -> None:
    """Fetch until all records are acquired, and acknowledge the last ones."""
    ends = time.monotonic() + CONSUMING_MAX_S
    acquired = 0
    while acquired < total:
        if time.monotonic() > ends:
            raise RunFailed(f"{acquired} of {total} records within {CONSUMING_MAX_S:.0f} s")
        for each in fetchers:
            each.send()
        acquired += sum(each.receive() for each in fetchers)
    for each in fetchers:
        each.finish()
