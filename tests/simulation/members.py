"""Members of a consumer group: they join, share partitions, consume, commit, leave and vanish.

Owns one member's part in the classic group protocol and what it reports to the history; the
assignment is a plain round robin. Invariant: a member uses only what its last generation assigned,
starting from committed offsets, so commits never go back.
"""

from __future__ import annotations

from typing import Any, Final

import trio

from protocol.errors import ErrorCode
from protocol.messages.find_coordinator import FindCoordinatorRequest
from protocol.messages.heartbeat import HeartbeatRequest
from protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.simulation.actors import STUCK_S, Consumer, fetch_request
from tests.simulation.history import Partition

SESSION_MS: Final = 6000
REBALANCE_MS: Final = 3000

EXPECTED: Final = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.MEMBER_ID_REQUIRED,
}
"""Errors that are part of a member's life, in addition to the retriable ones."""


class Member(Consumer):
    """One member of the group, in all of its memberships."""

    group = "g"

    async def run(self) -> None:
        self.member_id = ""
        self.generation = -1
        self.ids = {topic: await self.topic_id(topic) for topic in self.world.topics}
        await self.until(self._find)
        while not self.world.may_end:
            mine = await self._join()
            if mine is None:
                await self.pause()
                continue
            await self._work(mine)
            await self._part()

    async def _find(self) -> bool | None:
        request = FindCoordinatorRequest(key=self.group, coordinator_keys=[self.group])
        response = await self.ask(request, (0, 6))
        if response is None:
            return None
        code = response.coordinators[0].error_code if response.coordinators else response.error_code
        return True if code == ErrorCode.NONE else None

    def _refused(self, response: Any, code: int) -> bool:
        """Whether that was no success; forgets the membership if it is over."""
        if response is None:
            return True
        error = ErrorCode(code)
        if error is ErrorCode.NONE:
            return False
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        elif not error.retriable and error not in EXPECTED:
            self.world.history.wrong("refused", f"{error.name} for {self.name}")
        return True

    async def _join(self) -> list[Partition] | None:
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        joined = await self.ask(request, (1, 9))
        if joined is not None and joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
        if self._refused(joined, 0 if joined is None else joined.error_code):
            return None
        self.member_id, self.generation = joined.member_id, joined.generation_id
        leads = joined.leader == self.member_id
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
        if self._refused(synced, 0 if synced is None else synced.error_code):
            return None
        mine = [
            (topic, int(index))
            for topic, _, index in (
                each.partition(":") for each in bytes(synced.assignment).decode().split()
            )
        ]
        self.world.history.assigned(self.group, self.generation, self.member_id, mine)
        return mine

    def _share(self, joined: Any) -> list[SyncGroupRequestAssignment]:
        members = sorted(member.member_id for member in joined.members)
        return [
            SyncGroupRequestAssignment(
                member_id=member,
                assignment=" ".join(
                    f"{topic}:{index}"
                    for topic, index in self.world.partitions[number :: len(members)]
                ).encode(),
            )
            for number, member in enumerate(members)
        ]

    async def _work(self, mine: list[Partition]) -> None:
        """Consumes and commits until the membership is over, or the member has had enough."""
        positions = await self._committed(mine)
        consumer = f"{self.member_id} {self.generation} {trio.current_time()}"
        for _ in range(self.random.randint(3, 30)):
            if positions is None or self.world.may_end or not await self._beat():
                return
            if positions:
                request = fetch_request(positions, self.ids, wait_ms=200, bytes_min=1)
                await self.fetch(request, positions, consumer)
                if not await self._commit(positions):
                    return
            await self.pause()

    async def _beat(self) -> bool:
        request = HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.member_id
        )
        response = await self.ask(request, (0, 4))
        return not self._refused(response, 0 if response is None else response.error_code)

    async def _committed(self, mine: list[Partition]) -> dict[Partition, int] | None:
        history = self.world.history
        known = {partition: history.known_commit(self.group, partition) for partition in mine}
        topics: dict[str, list[int]] = {}
        for topic, index in mine:
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
                if self._refused(response, found.error_code):
                    return None
                partition = (topic.name, found.partition_index)
                offset = found.committed_offset
                history.shown_commit(self.group, partition, known[partition], offset)
                positions[partition] = max(offset, 0)
        return positions if len(positions) == len(mine) else None

    async def _commit(self, positions: dict[Partition, int]) -> bool:
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic, index), at in positions.items():
            topics.setdefault(topic, []).append(
                OffsetCommitRequestPartition(partition_index=index, committed_offset=at)
            )
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            topics=[
                OffsetCommitRequestTopic(name=topic, partitions=partitions)
                for topic, partitions in topics.items()
            ],
        )
        response = await self.ask(request, (2, 9))
        if response is None:
            return False
        for topic in response.topics:
            for result in topic.partitions:
                partition = (topic.name, result.partition_index)
                if self._refused(response, result.error_code):
                    return False
                self.world.history.committed(self.group, partition, positions[partition])
        return True

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
            await trio.sleep(self.random.choice((1, SESSION_MS / 1000 + 1)))


assert STUCK_S > SESSION_MS / 1000 + REBALANCE_MS / 1000
