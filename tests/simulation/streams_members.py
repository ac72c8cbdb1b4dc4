"""Members of a streams group: they have a topology, follow their tasks, consume and commit.

Owns one member's part in the protocol of KIP-1071, and the client that watches the group.
Invariant: a member whose heartbeat has no answer, or an error, joins again as a new one, because an
answer that gives tasks is not repeated; the old one expires.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import trio

from minibroker_protocol.messages.streams_group_describe import (
    StreamsGroupDescribeRequest,
    TopologyDescription,
    TopologyDescriptionNode,
    TopologyDescriptionSubtopology,
)
from minibroker_protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)
from minibroker_protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
)
from tests.simulation.actors import Producer
from tests.simulation.consumer_members import REBALANCE_MS, ConsumerGroupMember
from tests.simulation.members import GroupWatcher
from tests.simulation.rare_paths import DESCRIPTION_SHOWN
from tests.simulation.surroundings import TOPICS, World

STREAMS_GROUP: Final = "app"
SOURCE: Final = "a"
REPARTITION: Final = f"{STREAMS_GROUP}-split-repartition"
CHANGELOG: Final = f"{STREAMS_GROUP}-store-changelog"
KINDS: Final = ("active", "standby", "warmup")

Tasks = set[tuple[str, int]]
"""Subtopologies and partitions."""


def topology() -> Topology:
    """Two subtopologies; the second one has a store, and reads what the first one writes."""
    return Topology(
        epoch=0,
        subtopologies=[
            Subtopology(
                subtopology_id="0", source_topics=[SOURCE], repartition_sink_topics=[REPARTITION]
            ),
            Subtopology(
                subtopology_id="1",
                repartition_source_topics=[TopicInfo(name=REPARTITION)],
                state_changelog_topics=[TopicInfo(name=CHANGELOG)],
            ),
        ],
    )


def description() -> TopologyDescription:
    """The same topology for people: each subtopology by its source."""
    return TopologyDescription(
        subtopologies=[
            TopologyDescriptionSubtopology(
                subtopology_id=name,
                nodes=[
                    TopologyDescriptionNode(
                        name=f"SOURCE-{name}", node_type=1, source_topics=[topic]
                    )
                ],
            )
            for name, topic in (("0", SOURCE), ("1", REPARTITION))
        ]
    )


class StreamsGroupMember(ConsumerGroupMember):
    """One member, in all of its memberships. It reads the source topic of its active tasks."""

    def __init__(self, world: World, name: str, process: str) -> None:
        super().__init__(world, name, STREAMS_GROUP)
        self._process = process
        self._tasks: dict[str, Tasks] = {}

    def give_up(self) -> None:
        """Have no task, and join with the next heartbeat."""
        super().give_up()
        self._tasks = {kind: set() for kind in KINDS}

    async def beat(self) -> None:
        """Send a heartbeat, and follow the tasks of its answer."""
        fields: dict[str, Any] = {}
        if self.epoch == 0:
            fields = {
                "rebalance_timeout_ms": REBALANCE_MS,
                "topology": topology(),
                "process_id": self._process,
            }
        request = StreamsGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            active_tasks=_reported(self._tasks["active"]),
            standby_tasks=_reported(self._tasks["standby"]),
            warmup_tasks=_reported(self._tasks["warmup"]),
            **fields,
        )
        sent = trio.current_time()
        response = await self.ask_beat(request)
        if self.refused(response, 0 if response is None else response.error_code):
            self.become_another()
        else:
            self.epoch = response.member_epoch
            self._follow_tasks(response)
            active = [(f"task {name}", at) for name, at in sorted(self._tasks["active"])]
            self.note_held(sent, active)
            if response.topology_description_required:
                await self._describe_topology()

    async def _describe_topology(self) -> None:
        """Send the description once: the coordinator asks again if it does not arrive."""
        request = StreamsGroupTopologyDescriptionUpdateRequest(
            group_id=self.group,
            member_id=self.member_id,
            topology_epoch=0,
            topology_description=description(),
        )
        response = await self.ask(request, (0, 0))
        self.refused(response, 0 if response is None else response.error_code)

    def _follow_tasks(self, response: Any) -> None:
        for kind in KINDS:
            found = getattr(response, f"{kind}_tasks")
            if found is not None:
                self._tasks[kind] = {
                    (each.subtopology_id, at) for each in found for at in each.partitions
                }
        self.keep_only({(SOURCE, at) for name, at in self._tasks["active"] if name == "0"})

    async def leave(self) -> None:
        """Leave the group."""
        request = StreamsGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=-1
        )
        await self.ask(request, (0, 1))


def _reported(tasks: Tasks) -> list[TaskIds]:
    return [
        TaskIds(subtopology_id=name, partitions=sorted(at for each, at in tasks if each == name))
        for name in sorted({name for name, _ in tasks})
    ]


class StreamsGroupWatcher(GroupWatcher):
    """Looks at a streams group until it is stable, has read to the end and has its topics."""

    def __init__(
        self, world: World, name: str, producers: Sequence[Producer], members: int
    ) -> None:
        super().__init__(world, name, producers, members, STREAMS_GROUP)
        self.partitions = [each for each in world.partitions if each[0] == SOURCE]

    async def _members_if_stable(self) -> int:
        request = StreamsGroupDescribeRequest(
            group_ids=[self.group], include_topology_description=True
        )
        response = await self.ask(request, (0, 1))
        if response is None:
            return 0
        [group] = response.groups
        self._expect_sent_description(group.topology_description)
        if group.group_state != "Stable" or not await self._has_topics():
            return 0
        self._expect_each_task_once(group)
        return len(group.members)

    def _expect_sent_description(self, shown: TopologyDescription | None) -> None:
        """There is none in version 0, and after a restart until a member is asked again."""
        if shown is None:
            return
        self.world.counts[DESCRIPTION_SHOWN] += 1
        if shown != description():
            self.world.history.wrong("shared", f"the topology is described as {shown}")

    async def _has_topics(self) -> bool:
        """Whether the coordinator has created the internal topics."""
        for topic in (REPARTITION, CHANGELOG):
            found = await self.describe(topic)
            if found is None or found.error_code or len(found.partitions) != TOPICS[SOURCE]:
                return False
        return True

    def _expect_each_task_once(self, group: Any) -> None:
        active = sorted(
            (tasks.subtopology_id, at)
            for member in group.members
            for tasks in member.assignment.active_tasks
            for at in tasks.partitions
        )
        if active != [(name, at) for name in "01" for at in range(TOPICS[SOURCE])]:
            self.world.history.wrong("shared", f"the active tasks of a stable group are {active}")
