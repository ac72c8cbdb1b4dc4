"""Members of a consumer group: they join, share partitions, consume, commit, leave and vanish.

Owns one member's part in the classic group protocol, what clients of a group report to the history,
and the client that watches a group from outside. The assignment is a plain round robin. Invariant:
a member uses only what its last generation assigned, starting from committed offsets, and joins
again as a new member if a commit is not answered, so commits never go back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import trio

from minibroker.broker.groups.membership import assigned_partitions, encode_assignment
from minibroker_protocol.compiler import encode
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from minibroker_protocol.messages.describe_groups import DescribeGroupsRequest
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from minibroker_protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from minibroker_protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from minibroker_protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.simulation.actors import Consumer, Producer, fetch_request
from tests.simulation.history import Partition
from tests.simulation.rare_paths import KILLED_AT_COMMIT, KILLED_AT_SYNC, LATE_COMMIT
from tests.simulation.surroundings import GROUP, MIXED_GROUP, World

SESSIONS_MS: Final = (500, 1500)
"""Session timeouts, of which each member has one."""
REBALANCE_MS: Final = 700
LOST_SHARE: Final = 0.05
"""Share of joins after which a member is lost before it syncs."""
LOOKS_TICKS_MAX: Final = 12
"""Longest pause of the watcher between two looks at a group."""

EXPECTED: Final = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.MEMBER_ID_REQUIRED,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH,
}
"""Errors that are part of a member's life, in addition to the retriable ones."""


class GroupClient(Consumer):
    """A client of the group, which knows its coordinator and its committed offsets."""

    def __init__(self, world: World, name: str, group: str = GROUP) -> None:
        super().__init__(world, name)
        self.group = group

    def note_assigned(
        self, generation: int, member_id: str, partitions: Sequence[Partition]
    ) -> None:
        """Report what a generation has assigned."""
        history = self.world.history
        is_mixed = self.group == MIXED_GROUP
        report = history.assigned_in_mixed_group if is_mixed else history.assigned
        report(self.group, generation, member_id, partitions)

    async def find_coordinator(self) -> None:
        """Wait until the group has a coordinator."""
        await self.until(self._find)

    async def _find(self) -> bool | None:
        request = FindCoordinatorRequest(key=self.group, coordinator_keys=[self.group])
        response = await self.ask(request, (0, 6))
        if response is None:
            return None
        code = response.coordinators[0].error_code if response.coordinators else response.error_code
        return True if code == ErrorCode.NONE else None

    def refused(self, response: Any, code: int) -> bool:
        """Whether that was no success."""
        if response is None:
            return True
        error = ErrorCode(code)
        if error is ErrorCode.NONE:
            return False
        is_other_type = error is ErrorCode.GROUP_ID_NOT_FOUND and self.group == MIXED_GROUP
        if not (error.retriable or error in EXPECTED or is_other_type):
            self.world.history.wrong("refused", f"{error.name} for {self.name}")
        return True

    async def committed(self, wanted: list[Partition]) -> dict[Partition, int] | None:
        """Fetch the offsets from which to read these partitions; None if it fails."""
        history = self.world.history
        known = {partition: history.known_commit(self.group, partition) for partition in wanted}
        topics: dict[str, list[int]] = {}
        for topic, index in wanted:
            topics.setdefault(topic, []).append(index)
        request = OffsetFetchRequest(
            group_id=self.group,
            topics=[
                OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)
                for topic, indexes in topics.items()
            ],
            groups=[
                OffsetFetchRequestGroup(
                    group_id=self.group,
                    topics=[
                        OffsetFetchRequestTopics(name=topic, partition_indexes=indexes)
                        for topic, indexes in topics.items()
                    ],
                )
            ],
        )
        response = await self.ask(request, (1, 9))
        if response is None:
            return None
        answer = response.groups[0] if response.groups else response
        positions: dict[Partition, int] = {}
        for topic in answer.topics:
            for found in topic.partitions:
                if self.refused(response, found.error_code):
                    return None
                partition = (topic.name, found.partition_index)
                offset = found.committed_offset
                history.shown_commit(self.group, partition, known[partition], offset)
                positions[partition] = max(offset, 0)
        return positions if len(positions) == len(wanted) else None


class Member(GroupClient):
    """One member of the group, in all of its memberships."""

    def __init__(self, world: World, name: str, group: str = GROUP) -> None:
        super().__init__(world, name, group)
        self.member_id = ""
        self.generation = -1
        self.session_ms = self.random.choice(SESSIONS_MS)
        self._assignments = 0
        self._last_commit: tuple[int, dict[Partition, int]] = (-1, {})
        """Generation and offsets of the last commit that was acknowledged."""

    async def run(self) -> None:
        self.ids = {topic: await self.topic_id(topic) for topic in self.world.topics}
        await self.find_coordinator()
        while not self.world.may_end:
            mine = await self._join()
            if mine is None:
                await self.pause()
                continue
            await self._commit_again()
            await self._work(mine)
            if not self.world.faults_ended:
                await self._part()

    def refused(self, response: Any, code: int) -> bool:
        """The same; forgets the membership if it is over."""
        if response is not None and code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        return super().refused(response, code)

    async def _join(self) -> list[Partition] | None:
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=self._subscription())],
        )
        joined = await self.ask(request, (1, 9))
        if joined is not None and joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
        if self.refused(joined, 0 if joined is None else joined.error_code):
            return None
        self.member_id, self.generation = joined.member_id, joined.generation_id
        if not self.world.faults_ended and self.random.random() < LOST_SHARE:
            self.member_id = ""
            return None
        leads = joined.leader == self.member_id
        if leads:
            self.world.reach_moment(KILLED_AT_SYNC)
        synced = await self.ask(
            SyncGroupRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=self._share(joined) if leads else [],
            ),
            (0, 5),
        )
        if self.refused(synced, 0 if synced is None else synced.error_code):
            return None
        mine = [
            (topic, index)
            for topic, indexes in assigned_partitions(bytes(synced.assignment))
            for index in indexes
        ]
        self.note_assigned(self.generation, self.member_id, mine)
        return mine

    def _share(self, joined: Any) -> list[SyncGroupRequestAssignment]:
        members = sorted(member.member_id for member in joined.members)
        return [
            SyncGroupRequestAssignment(
                member_id=member,
                assignment=encode_assignment(
                    {
                        topic: [index for name, index in mine if name == topic]
                        for topic in dict.fromkeys(name for name, _ in mine)
                    }
                ),
            )
            for number, member in enumerate(members)
            for mine in (self.world.partitions[number :: len(members)],)
        ]

    def _subscription(self) -> bytes:
        return b"\0\0" + encode(ConsumerProtocolSubscription(topics=list(self.world.topics)), 0)

    async def _work(self, mine: list[Partition]) -> None:
        """Consumes and commits until the membership is over, or the member has had enough."""
        positions = await self.committed(mine)
        if positions is None:
            return
        committed = dict(positions)
        self._assignments += 1
        consumer = f"{self.name} {self._assignments}"
        self.world.history.joined(self.group, consumer)
        rounds = self.random.randint(3, 30)
        while rounds > 0 or self.world.faults_ended:
            rounds -= 1
            if self.world.may_end or not await self._beat():
                return
            if positions:
                wait_ms = self.random.choice((0, 0, 200))
                request = fetch_request(positions, self.ids, wait_ms=wait_ms, bytes_min=1)
                await self.fetch(request, positions, consumer)
                if positions != committed or self.random.random() < 0.1:
                    if not await self._commit(positions):
                        return
                    committed = dict(positions)
            await self.pause()

    async def _beat(self) -> bool:
        request = HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.member_id
        )
        response = await self.ask(request, (0, 4))
        return not self.refused(response, 0 if response is None else response.error_code)

    def _commit_request(self, generation: int, offsets: dict[Partition, int]) -> Any:
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic, index), at in offsets.items():
            topics.setdefault(topic, []).append(
                OffsetCommitRequestPartition(partition_index=index, committed_offset=at)
            )
        return OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=generation,
            member_id=self.member_id,
            topics=[
                OffsetCommitRequestTopic(name=topic, partitions=partitions)
                for topic, partitions in topics.items()
            ],
        )

    async def _commit(self, positions: dict[Partition, int]) -> bool:
        if self.random.random() < 0.3:
            self.world.reach_moment(KILLED_AT_COMMIT)
        request = self._commit_request(self.generation, positions)
        response = await self.ask(request, (2, 9))
        if response is None:
            self.member_id = ""
            self.world.counts[LATE_COMMIT] += 1
            return False
        for topic in response.topics:
            for result in topic.partitions:
                partition = (topic.name, result.partition_index)
                if self.refused(response, result.error_code):
                    return False
                self.world.history.committed(self.group, partition, positions[partition])
        self._last_commit = self.generation, dict(positions)
        return True

    async def _commit_again(self) -> None:
        """Sometimes commit as in an older generation: the broker must refuse it."""
        generation, positions = self._last_commit
        if generation < self.generation and positions and self.random.random() < 0.3:
            await self.ask(self._commit_request(generation, positions), (2, 9))

    async def _part(self) -> None:
        """Leaves as it should, or falls silent until the session is over, or just joins again."""
        how = self.random.choice(("leave", "vanish", "rejoin", "rejoin"))
        if how == "leave" and self.member_id:
            identity = MemberIdentity(member_id=self.member_id)
            request = LeaveGroupRequest(
                group_id=self.group, member_id=self.member_id, members=[identity]
            )
            await self.ask(request, (0, 5))
            self.member_id = ""
        elif how == "vanish":
            self.disconnect()
            await trio.sleep(self.random.choice((1, self.session_ms / 1000 + 1)))


class GroupWatcher(GroupClient):
    """Looks at a group from outside until it is stable and has read to the end."""

    def __init__(
        self,
        world: World,
        name: str,
        producers: Sequence[Producer],
        members: int,
        group: str = GROUP,
    ) -> None:
        super().__init__(world, name, group)
        self.partitions = world.partitions
        """What the group reads."""
        self._producers = producers
        self._members = members

    async def run(self) -> None:
        await self.find_coordinator()
        while not (self.world.faults_ended and await self._is_complete()):
            await self.committed(self.partitions)
            await self.pause(LOOKS_TICKS_MAX)

    async def _is_complete(self) -> bool:
        """Whether the group is stable with all members, and all records are consumed."""
        if not all(producer.has_ended for producer in self._producers):
            return False
        if await self._members_if_stable() != self._members:
            return False
        positions = await self.committed(self.partitions)
        known_end = self.world.history.known_end
        return positions == {each: known_end(each) for each in self.partitions}

    async def _members_if_stable(self) -> int:
        response = await self.ask(DescribeGroupsRequest(groups=[self.group]), (0, 5))
        if response is None:
            return 0
        [group] = response.groups
        return len(group.members) if group.group_state == "Stable" else 0
