"""Members of a consumer group of KIP-848: they follow their assignments, consume and commit.

Owns one member's part in the protocol, and the client that watches the group. Invariant: a member
uses only what it was assigned and has not given up, starting from committed offsets, and has a new
member id if a commit is not answered, so commits never go back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import trio

from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from minibroker_protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker_protocol.schema import Message
from tests.simulation.actors import fetch_request
from tests.simulation.history import Partition
from tests.simulation.members import GroupClient, GroupWatcher
from tests.simulation.rare_paths import KILLED_AT_COMMIT
from tests.simulation.surroundings import GROUP, World

SESSION_S: Final = 1.0
"""The session timeout of consumer groups in the simulation's settings."""
REBALANCE_MS: Final = 2000
FULL_BEATS: Final = 20
"""Heartbeats that state everything after an answer was lost, or replaced by an error.

The request may be handled after the next one, and its answer, which has the assignment then, is
lost, too. Kafka does not repeat an assignment to a member that states nothing.
"""
FENCES: Final = {
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
}
"""Errors after which a member joins again; a group without members of KIP-848 becomes a classic
one, which is not found.
"""


class ConsumerGroupMember(GroupClient):
    """One member, in all of its memberships."""

    def __init__(self, world: World, name: str, group: str = GROUP) -> None:
        super().__init__(world, name, group)
        self.member_id = ""
        self.epoch = 0
        self.positions: dict[Partition, int] = {}
        """Where it reads in the partitions that it has, if that is known."""
        self.owned: set[Partition] = set()
        self._memberships = self._readers = 0
        self._reader = ""
        self._full_beats = 1
        """How many heartbeats are still to state everything."""
        self._was_unanswered = False
        """Whether an earlier heartbeat of this membership may be handled after later ones."""

    async def run(self) -> None:
        self.ids = {topic: await self.topic_id(topic) for topic in self.world.topics}
        await self.find_coordinator()
        while not self.world.may_end:
            await self._live()
            if not self.world.faults_ended:
                await self._part()

    async def _live(self) -> None:
        """One membership."""
        self.become_another()
        rounds = self.random.randint(3, 30)
        while (rounds > 0 or self.world.faults_ended) and not self.world.may_end:
            rounds -= 1
            await self.beat()
            await self._find_positions()
            if not await self._consume():
                return
            await self.pause()

    def become_another(self) -> None:
        """Own nothing, and join with the next heartbeat as a new member."""
        self._memberships += 1
        self.member_id = f"{self.name}-{self._memberships}"
        self._was_unanswered = False
        self.give_up()

    def give_up(self) -> None:
        """Own nothing, and join with the next heartbeat."""
        self.epoch, self.owned, self.positions, self._full_beats = 0, set(), {}, 1
        self.world.history.let_go(self.group, self.name)

    async def ask_beat(self, request: Message) -> Any:
        """Send a heartbeat; None if it is unknown whether it counts."""
        response = await self.ask(request, (0, 1))
        if response is None:
            self._was_unanswered = True
            self.world.history.let_go(self.group, self.name)
        return response

    def note_held(self, sent: float, partitions: Sequence[Partition]) -> None:
        """Report what the answer to a heartbeat that was sent then has assigned."""
        self.note_assigned(self.epoch, self.member_id, partitions)
        now, until = trio.current_time(), sent + SESSION_S
        if not self._was_unanswered and now < until:
            self.world.history.held(self.group, self.name, partitions, until, now)
        else:
            self.world.history.let_go(self.group, self.name)

    async def beat(self) -> None:
        """Send a heartbeat, and follow the assignment of its answer."""
        fields: dict[str, Any] = {}
        if self._full_beats > 0:
            names = list(self.world.topics)
            fields = {"rebalance_timeout_ms": REBALANCE_MS, "subscribed_topic_names": names}
        reported = [
            TopicPartitions(
                topic_id=self.ids[topic],
                partitions=sorted(at for each, at in self.owned if each == topic),
            )
            for topic in sorted({topic for topic, _ in self.owned})
        ]
        sent = trio.current_time()
        response = await self.ask_beat(
            ConsumerGroupHeartbeatRequest(
                group_id=self.group,
                member_id=self.member_id,
                member_epoch=self.epoch,
                topic_partitions=reported,
                **fields,
            )
        )
        if self.refused(response, 0 if response is None else response.error_code):
            self._full_beats = FULL_BEATS
        else:
            self._full_beats -= 1
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self._follow(response.assignment)
            self.note_held(sent, sorted(self.owned))

    def refused(self, response: Any, code: int) -> bool:
        """The same; gives up everything if the member is fenced."""
        if response is not None and code in FENCES:
            self.give_up()
        return super().refused(response, code)

    def _follow(self, assignment: Any) -> None:
        names = {topic_id: topic for topic, topic_id in self.ids.items()}
        self.keep_only(
            {
                (names[topic.topic_id], at)
                for topic in assignment.topic_partitions
                for at in topic.partitions
            }
        )

    def keep_only(self, owned: set[Partition]) -> None:
        """Read only these partitions."""
        self.owned = owned
        kept = {each: at for each, at in self.positions.items() if each in self.owned}
        self.positions = kept

    async def _find_positions(self) -> None:
        """Find out where to read in new partitions; they are read under another name."""
        new = sorted(self.owned - self.positions.keys())
        found = await self.committed(new) if new else None
        if found is None:
            return
        self.positions |= found
        self._readers += 1
        self._reader = f"{self.name} {self._readers}"
        self.world.history.joined(self.group, self._reader)

    async def _consume(self) -> bool:
        """Read and commit; False if it is unknown whether the commit counts."""
        if not self.positions:
            return True
        before = dict(self.positions)
        wait_ms = self.random.choice((0, 0, 200))
        request = fetch_request(self.positions, self.ids, wait_ms=wait_ms, bytes_min=1)
        await self.fetch(request, self.positions, self._reader)
        if self.positions == before and self.random.random() >= 0.1:
            return True
        if self.random.random() < 0.3:
            self.world.reach_moment(KILLED_AT_COMMIT)
        return await self._commit(dict(self.positions))

    async def _commit(self, positions: dict[Partition, int]) -> bool:
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic, index), at in positions.items():
            topics.setdefault(topic, []).append(
                OffsetCommitRequestPartition(partition_index=index, committed_offset=at)
            )
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.epoch,
            member_id=self.member_id,
            topics=[
                OffsetCommitRequestTopic(name=topic, partitions=partitions)
                for topic, partitions in topics.items()
            ],
        )
        response = await self.ask(request, (9, 9))
        if response is None:
            return False
        for topic in response.topics:
            for result in topic.partitions:
                partition = (topic.name, result.partition_index)
                if self.refused(response, result.error_code):
                    return True
                self.world.history.committed(self.group, partition, positions[partition])
        return True

    async def _part(self) -> None:
        """Leave as it should, or fall silent until the session is over, or just join again."""
        self.world.history.let_go(self.group, self.name)
        how = self.random.choice(("leave", "vanish", "rejoin"))
        if how == "leave":
            await self.leave()
        elif how == "vanish":
            self.disconnect()
            await trio.sleep(self.random.choice((SESSION_S / 2, SESSION_S + 1)))

    async def leave(self) -> None:
        """Leave the group."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=-1
        )
        await self.ask(request, (0, 1))


class ConsumerGroupWatcher(GroupWatcher):
    """Looks at a consumer group until it is stable and has read to the end."""

    async def _members_if_stable(self) -> int:
        response = await self.ask(ConsumerGroupDescribeRequest(group_ids=[self.group]), (0, 1))
        if response is None:
            return 0
        [group] = response.groups
        return len(group.members) if group.group_state == "Stable" else 0
