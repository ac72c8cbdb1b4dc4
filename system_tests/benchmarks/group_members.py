"""Measures of consumer groups (KIP-848) and share groups (KIP-932) with many members.

Members join and settle; then they send heartbeats that change nothing. Owns amounts, row names and
what a member does with its assignment; it starts no peer and prints nothing. Invariant: a group is
settled when all its members are in one epoch and have all partitions, in about equal parts; members
leave at the end, so no session expires during another measure.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from minibroker_protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from minibroker_protocol.schema import Message
from minibroker_protocol.types import Uuid
from system_tests.benchmarks.client import RunFailed
from system_tests.benchmarks.frames import Versioned, refuse_errors, repeat, versioned
from system_tests.benchmarks.measures import Figures, cpu_seconds, topic_of
from system_tests.benchmarks.peers import Peer

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
PARTITIONS: Final = 200
HEARTBEATS: Final = 8_000
CONNECTIONS: Final = 8
REBALANCE_TIMEOUT_MS: Final = 45_000
SETTLING_MAX_S: Final = 60.0
ROUND_PAUSE_S: Final = 0.25
"""A pause between heartbeats of a member, much shorter than that between two assignments."""


class Member(ABC):
    """A member that follows its assignments."""

    def __init__(self, group: str, topic: str) -> None:
        self.group = group
        self.topic = topic
        self.member_id = str(uuid.uuid4())
        self.epoch = JOIN_EPOCH
        self.owned: set[tuple[Uuid, int]] = set()
        self.has_news = False
        """Whether the partitions have changed since they were reported."""

    def join(self, connection: Versioned) -> None:
        """Send the first heartbeat until it is accepted."""
        self._follow(connection.ask_until_accepted(self.heartbeat()))

    def beat(self, connection: Versioned) -> None:
        """Send the next heartbeat."""
        answer = connection.ask(self.heartbeat())
        refuse_errors(answer)
        self._follow(answer)

    def leave(self, connection: Versioned) -> None:
        """Send the last heartbeat."""
        self.epoch = LEAVE_EPOCH
        connection.ask(self.heartbeat())

    def _follow(self, answer: Any) -> None:
        self.epoch, self.has_news = answer.member_epoch, answer.assignment is not None
        if answer.assignment is not None:
            self.owned = {
                (topic.topic_id, partition)
                for topic in answer.assignment.topic_partitions
                for partition in topic.partitions
            }

    @abstractmethod
    def heartbeat(self) -> Message:
        """Return the heartbeat of the present epoch."""


class ConsumerMember(Member):
    """A member that reports what it has after each change, as clients do."""

    def heartbeat(self) -> Message:
        joins = self.epoch == JOIN_EPOCH
        topics: dict[Uuid, list[int]] = {}
        for topic, partition in sorted(self.owned):
            topics.setdefault(topic, []).append(partition)
        owned = [TopicPartitions(topic_id=each, partitions=topics[each]) for each in topics]
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if joins else -1,
            subscribed_topic_names=[self.topic] if joins else None,
            topic_partitions=owned if joins or self.has_news else None,
        )


class ShareMember(Member):
    """A member of a share group, which reports nothing."""

    def heartbeat(self) -> Message:
        return ShareGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            subscribed_topic_names=[self.topic] if self.epoch == JOIN_EPOCH else None,
        )


class Kind:
    """The members of a measured group, and the names of its rows."""

    def __init__(self, member: type[Member], name: str, members: int) -> None:
        self.member = member
        self.name = name
        self.members = members
        who = f"{members:,} members of a {name} group"
        self.settling = f"{who} join and settle"
        self.settling_cpu = f"{who} join and settle: broker's CPU"
        self.rate = f"heartbeats of {who}"
        self.cpu = f"heartbeats of {who}: broker's CPU each"


CONSUMERS: Final = Kind(ConsumerMember, "consumer", 1_000)
SHARERS: Final = Kind(ShareMember, "share", 200)
"""Kafka's default allows a share group no more."""
KINDS: Final = (CONSUMERS, SHARERS)


def many_members(peer: Peer, kind: Kind) -> Figures:
    """Let the members of a group join and settle, then send heartbeats."""
    with topic_of(peer, "members", PARTITIONS) as topic, versioned(peer) as connection:
        group = f"members-{uuid.uuid4().hex[:8]}"
        connection.ask_until_accepted(FindCoordinatorRequest(key=group, key_type=0))
        members = [kind.member(group, topic) for _ in range(kind.members)]
        used, began = cpu_seconds(peer.pid), time.perf_counter()
        with joined(connection, members):
            settle(connection, members, PARTITIONS)
            took = time.perf_counter() - began
            settling = cpu_seconds(peer.pid) - used
            requests = [connection.frame(each.heartbeat()) for each in members]
            used = cpu_seconds(peer.pid)
            seen = repeat(peer, requests, HEARTBEATS, connections=CONNECTIONS, alike=False)
            used = cpu_seconds(peer.pid) - used
    return {
        kind.settling: took * 1e3,
        kind.settling_cpu: settling * 1e3,
        kind.rate: HEARTBEATS / seen.seconds,
        kind.cpu: used / seen.answers * 1e6,
    }


@contextmanager
def joined(connection: Versioned, members: list[Member]) -> Iterator[None]:
    """Let members join, and leave at the end."""
    for member in members:
        member.join(connection)
    try:
        yield
    finally:
        for member in members:
            member.leave(connection)


def settle(connection: Versioned, members: list[Member], partitions: int) -> None:
    """Send heartbeats until all members are in one epoch and have all partitions."""
    ends = time.monotonic() + SETTLING_MAX_S
    while not is_settled(members, partitions):
        if time.monotonic() > ends:
            raise RunFailed(f"the group has not settled within {SETTLING_MAX_S:.0f} s")
        time.sleep(ROUND_PAUSE_S)
        for member in members:
            member.beat(connection)


def is_settled(members: list[Member], partitions: int) -> bool:
    """Whether members are in one epoch, and have all partitions in about equal parts and have
    reported them.
    """
    sizes = {len(each.owned) for each in members}
    return (
        not any(each.has_news for each in members)
        and len({each.epoch for each in members}) == 1
        and len(set().union(*(each.owned for each in members))) == partitions
        and max(sizes) - min(sizes) <= 1
    )
