"""Which records a share group is given: near the limit of deliveries, in both modes, and of
transactions in both isolation levels; and which partitions the responses have.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any, Final

from minibroker_protocol.messages import describe_share_group_offsets as offsets
from minibroker_protocol.messages import share_acknowledge as acknowledging
from minibroker_protocol.messages import share_fetch as fetching
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from minibroker_protocol.records import Record, build_batch
from system_tests.harness.waiting import wait_until
from system_tests.peers.conversation import SendRequest
from system_tests.peers.records import produce
from system_tests.peers.share_groups import acknowledge, beat, fetch
from system_tests.peers.topics import create, topic
from system_tests.peers.transactions import Producer, add, end, find, init

ACCEPT, RELEASE, REJECT = (1,), (2,), (3,)
GROUP: Final = 32
RECORD_LIMIT: Final = 1
"""The mode in which no more records are acquired than the client requested."""


class SharingMember:
    """The only member of a group, which reads partition 0 of a topic with the group's name."""

    def __init__(self, ask: SendRequest, name: str, **configs: str) -> None:
        self.ask = ask
        self.name = name
        self.epoch = 0
        self._ids: dict[str, Any] = {"group_id": name, "member_id": "m"}
        made = ask(f"{name} made", create(topic(name, 1)), 7)
        self.topic_id = made.topics[0].topic_id
        wanted = {"share.auto.offset.reset": "earliest", **configs}
        self.configure("group", GROUP, name, **wanted)

    def configure(self, name: str, kind: int, resource: str, **configs: str) -> None:
        changed = AlterConfigsResource(
            resource_type=kind,
            resource_name=resource,
            configs=[AlterableConfig(name=key, value=value) for key, value in configs.items()],
        )
        request = IncrementalAlterConfigsRequest(resources=[changed])
        self.ask(f"{self.name} configured: {name}", request, 1)

    def join(self) -> None:
        """Join, and wait until there is a state."""
        names: dict[str, Any] = {"subscribed_topic_names": [self.name]}
        epoch = 0

        def is_assigned() -> bool:
            nonlocal epoch
            answer = self.unrecorded(beat("m", epoch, self.name, **names), 1)
            epoch = answer.member_epoch
            assignment = answer.assignment
            return bool(assignment is not None and assignment.topic_partitions)

        wait_until(is_assigned, "an assignment", pause_s=0.2)

    def unrecorded(self, request: Any, version: int) -> Any:
        """Send a request whose answer is not compared."""
        answer = self.ask("unrecorded", request, version)
        del self.ask.answers["unrecorded"]
        return answer

    def fetch(self, name: str, **fields: Any) -> list[tuple[int, int]]:
        """Fetch until there are records; return the offsets of what was acquired."""
        found: list[tuple[int, int]] = []

        def has_records() -> bool:
            answer = self.fetch_once(name, **{"max_wait_ms": 1000, **fields})
            found[:] = _acquired(answer)
            if not found:
                del self.ask.answers[name]
            return bool(found)

        wait_until(has_records, f"records: {name}")
        return found

    def fetch_once(self, name: str, **fields: Any) -> Any:
        request = fetch(self.topic_id, self.epoch, **self._ids, **fields)
        self.epoch += 1
        return self.ask(name, request, 2)

    def is_finished(self) -> bool:
        """Whether the group has no lag."""
        group = offsets.DescribeShareGroupOffsetsRequestGroup(group_id=self.name, topics=None)
        request = offsets.DescribeShareGroupOffsetsRequest(groups=[group])
        answer = self.unrecorded(request, 1)
        return bool(answer.groups[0].topics[0].partitions[0].lag == 0)

    def acknowledge(
        self, name: str, *acks: tuple[int, int, tuple[int, ...]], **fields: Any
    ) -> None:
        self.ask(name, acknowledge(self.topic_id, self.epoch, *acks, **self._ids, **fields), 2)
        self.epoch += 1


def _acquired(answer: Any) -> list[tuple[int, int]]:
    return [
        (each.first_offset, each.last_offset)
        for topic in answer.responses
        for partition in topic.partitions
        for each in partition.acquired_records
    ]


def deliveries(ask: SendRequest) -> None:
    """A batch of records that is released until its deliveries are used up."""
    for mode in (0, RECORD_LIMIT):
        member = SharingMember(ask, f"deliveries-{mode}")
        batch = build_batch([Record(at, 1, None, b"v%d" % at) for at in range(16)])
        ask(f"{mode} produced", produce(member.name, batch), 9)
        member.join()
        for number in range(40):
            if member.is_finished():
                break
            name = f"{mode} number {number}"
            acquired = member.fetch(name, share_acquire_mode=mode, max_records=7)
            released = [(first, last, RELEASE) for first, last in acquired]
            member.acknowledge(f"{name} released", *released)


def acquire_modes(ask: SendRequest) -> None:
    """Several batches of records, in both modes."""
    for mode in (0, RECORD_LIMIT):
        member = SharingMember(ask, f"modes-{mode}")
        batch = build_batch([Record(at, 1, None, b"v%d" % at) for at in range(5)])
        for number in range(4):
            ask(f"{mode} produced {number}", produce(member.name, batch), 9)
        member.join()
        limits = {"share_acquire_mode": mode, "max_records": 7}
        member.fetch(f"{mode} first", **limits)
        member.fetch(f"{mode} second", **limits)
        member.acknowledge(f"{mode} released", (0, 3, RELEASE), (5, 6, RELEASE))
        member.fetch(f"{mode} third", **limits)


Accepted = tuple[int, tuple[int, ...]]
"""A partition, and the offsets of it that a request accepts."""


def _accepted(kind: Any, offsets: tuple[int, ...]) -> list[Any]:
    return [
        kind(first_offset=each, last_offset=each, acknowledge_types=list(ACCEPT))
        for each in offsets
    ]


def _acknowledged(topic_id: bytes, *partitions: Accepted) -> acknowledging.AcknowledgeTopic:
    return acknowledging.AcknowledgeTopic(
        topic_id=topic_id,
        partitions=[
            acknowledging.AcknowledgePartition(
                partition_index=index,
                acknowledgement_batches=_accepted(acknowledging.AcknowledgementBatch, accepted),
            )
            for index, accepted in partitions
        ],
    )


def _fetched(topic_id: bytes, *partitions: Accepted) -> fetching.FetchTopic:
    return fetching.FetchTopic(
        topic_id=topic_id,
        partitions=[
            fetching.FetchPartition(
                partition_index=index,
                acknowledgement_batches=_accepted(fetching.AcknowledgementBatch, accepted),
            )
            for index, accepted in partitions
        ],
    )


def partitions_without_acknowledgements(ask: SendRequest) -> None:
    """Requests that name partitions of which they acknowledge nothing."""
    member = SharingMember(ask, "nothing-acknowledged")
    batch = build_batch([Record(at, 1, None, b"v%d" % at) for at in range(8)])
    ask("produced", produce(member.name, batch), 9)
    member.join()
    member.fetch("acquired", max_records=8)
    unknown = bytes(15) + b"\1"
    requests = {
        "nothing": [_acknowledged(member.topic_id, (0, ()))],
        "no partition": [_acknowledged(member.topic_id)],
        "no topic": [],
        "nothing of an unknown partition": [_acknowledged(member.topic_id, (9, ()))],
        "one of an unknown partition": [_acknowledged(member.topic_id, (9, (0,)))],
        "one of an unknown topic": [_acknowledged(unknown, (0, (0,)))],
        "one, and nothing of others": [_acknowledged(member.topic_id, (0, (0,)), (9, ()))],
    }
    for name, topics in requests.items():
        member.acknowledge(name, topics=topics)
    fetched = {
        "fetched with nothing": [_fetched(member.topic_id, (0, ()))],
        "fetched with one, and nothing of others": [_fetched(member.topic_id, (0, (1,)), (9, ()))],
        "fetched with one of an unknown partition": [_fetched(member.topic_id, (9, (0,)))],
        "fetched again": [],
    }
    for name, wanted in fetched.items():
        member.fetch_once(name, topics=wanted, max_wait_ms=0)
    member.epoch = -1
    member.acknowledge("closed", topics=[_acknowledged(member.topic_id, (0, ()), (9, ()))])


class IsolatedMember(SharingMember):
    """The only member of a group with an isolation level, and the producers of its topic."""

    def __init__(self, ask: SendRequest, name: str, level: str) -> None:
        super().__init__(ask, name, **{"share.isolation.level": level})
        self._producers: dict[str, Producer] = {}
        self._sequences: Counter[str] = Counter()

    def produce(self, count: int) -> None:
        """Produce a batch without a transaction."""
        batch = build_batch([Record(at, 1, None, b"plain") for at in range(count)])
        self._sequences[""] += 1
        self.ask(f"{self.name} produced {self._sequences['']}", produce(self.name, batch), 9)

    def write(self, transaction: str, count: int) -> None:
        """Produce a batch in a transaction, which starts with its first one."""
        name = f"{self.name}-{transaction}"
        if transaction not in self._producers:
            self.ask(f"{name} found", find(name, 3), 3)  # Kafka creates the topic of transactions.
            made = self.ask(f"{name} initialized", init(name), 4)
            self._producers[transaction] = made.producer_id, made.producer_epoch
            added = add(name, self._producers[transaction], **{self.name: [0]})
            self.ask(f"{name} started", added, 3)
        producer_id, producer_epoch = self._producers[transaction]
        batch = build_batch(
            [Record(at, 1, None, transaction.encode()) for at in range(count)],
            transactional=True,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=self._sequences[transaction],
        )
        request = produce(self.name, batch)
        request.transactional_id = name
        self.ask(f"{name} wrote from {self._sequences[transaction]}", request, 9)
        self._sequences[transaction] += count

    def end(self, transaction: str, *, committed: bool) -> None:
        name = f"{self.name}-{transaction}"
        request = end(name, self._producers[transaction], committed=committed)
        self.ask(f"{name} ended", request, 3)

    def fetch_and_accept(self, about: str, **fields: Any) -> None:
        """Accept what a fetch acquires, and look at the offsets of the group."""
        acquired = _acquired(self.fetch_once(f"{self.name} {about}", **fields))
        accepted = [(first, last, ACCEPT) for first, last in acquired]
        self.acknowledge(f"{self.name} accepted {about}", *accepted)
        self.describe(about)

    def describe(self, about: str) -> None:
        group = offsets.DescribeShareGroupOffsetsRequestGroup(group_id=self.name, topics=None)
        request = offsets.DescribeShareGroupOffsetsRequest(groups=[group])
        self.ask(f"{self.name} offsets {about}", request, 1)


def isolation_levels(ask: SendRequest) -> None:
    """Committed, aborted and open transactions between other records, in both levels and modes."""
    for level, mode in product(("read_uncommitted", "read_committed"), (0, RECORD_LIMIT)):
        member = IsolatedMember(ask, f"{level}-{mode}", level)
        limits = {"share_acquire_mode": mode, "max_records": 5, "max_wait_ms": 500}
        member.produce(2)
        member.write("committed", 2)
        member.end("committed", committed=True)
        member.write("aborted", 2)
        member.produce(1)
        member.write("aborted", 1)
        member.end("aborted", committed=False)
        member.produce(1)
        member.write("open", 2)
        member.produce(2)
        member.join()
        first = member.fetch(f"{member.name} first", **limits)
        member.acknowledge(f"{member.name} accepted", *((*each, ACCEPT) for each in first))
        for number in range(5):
            member.fetch_and_accept(f"number {number}", **limits)
        member.end("open", committed=False)
        member.write("late", 1)
        member.fetch_and_accept("with another open one", **limits)
        member.end("late", committed=True)
        member.fetch_and_accept("at the end", **limits)


CONVERSATIONS: Final = (
    deliveries,
    acquire_modes,
    partitions_without_acknowledgements,
    isolation_levels,
)
