"""The clients of a run, in two casts, and the verdict on what each cast has seen.

Owns who acts in a run: transactional producers, a copy job and readers; idempotent producers, the
members of a consumer group, and others that look at the same topics. It must never know faults or
phases. Invariant: a cast's workers end by themselves, and its others as soon as they may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Final

from minibroker_protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from tests.simulation.actors import Actor, Admin, Consumer, OffsetObserver, Producer, fetch_request
from tests.simulation.actors import values as values_of
from tests.simulation.consumer_members import ConsumerGroupMember, ConsumerGroupWatcher
from tests.simulation.fair_errors import (
    CONSUMER_GROUP_ERRORS,
    DATA_ERRORS,
    GROUP_ERRORS,
    SHARE_GROUP_ERRORS,
    STREAMS_GROUP_ERRORS,
    TRANSACTION_ERRORS,
)
from tests.simulation.history import Log, Partition, judge
from tests.simulation.members import GroupClient, GroupWatcher, Member
from tests.simulation.random_rules import RuleTargets
from tests.simulation.run_plan import Length, RunPlan
from tests.simulation.share_members import (
    ShareGroupMember,
    ShareGroupWatcher,
    read_from_start,
)
from tests.simulation.streams_members import StreamsGroupMember, StreamsGroupWatcher
from tests.simulation.surroundings import MIXED_GROUP, World
from tests.simulation.transaction_verdict import judge_transactions
from tests.simulation.transactional import STATES, TOPICS, CopyJob, Reader, SourceProducer

OTHERS_SHARE: Final = 0.3
"""Share of runs with a group in which others look at its topics, too."""


class Cast:
    """Clients that use the same topics."""

    targets: RuleTargets
    workers: Sequence[Actor]
    """Those that end by themselves."""
    others: list[Actor]
    """Those that act until they may end."""

    async def prepare(self) -> None:
        """Create what the clients need."""
        raise NotImplementedError

    async def verdict(self) -> list[str]:
        """All that is wrong, after all clients have ended."""
        raise NotImplementedError


class TransactionCast(Cast):
    """Producers, a job that copies with its offsets in the transactions, and readers."""

    def __init__(self, world: World, length: Length) -> None:
        self._world = world
        random = Random(f"{world.seed} transaction cast")
        self._producers = [
            SourceProducer(
                world, f"producer-{number}", random.choice((0, 2, 2)), length.transactions_max
            )
            for number in range(random.randint(1, 3))
        ]
        self._job = CopyJob(world, "copier", random.choice((0, 2)))
        self._readers = [
            Reader(world, f"reader-{number}", with_session=number > 0)
            for number in range(random.randint(1, 3))
        ]
        self.workers = self._producers
        self.others = [self._job, *self._readers]
        self.targets = RuleTargets(
            apis=(*TRANSACTION_ERRORS, *DATA_ERRORS),
            points=("transaction.prepared", "transaction.completing"),
            topics=tuple(TOPICS),
            clients=tuple(each.name for each in (*self._producers, self._job)),
        )

    async def prepare(self) -> None:
        """Create the topics, of which one is compacted."""
        maker = Actor(self._world, "maker")
        compacted = [CreatableTopicConfig(name="cleanup.policy", value="compact")]
        topics = [
            CreatableTopic(
                name=name,
                num_partitions=count,
                replication_factor=1,
                configs=compacted if name == STATES else [],
            )
            for name, count in TOPICS.items()
        ]
        await maker.until(lambda: maker.ask(CreateTopicsRequest(topics=topics), (2, 7)))
        await maker.until(lambda: maker.ask(FindCoordinatorRequest(key="x", key_type=1), (1, 2)))

    async def verdict(self) -> list[str]:
        """Compare transactions and readers with what a last reader sees."""
        last = Reader(self._world, "last")
        await last.read_to_end()
        wrong = judge_transactions(self._producers, self._job, self._readers, last)
        return wrong + self._world.operations.anomalies()


class GroupCast(Cast):
    """Idempotent producers, the members of a group and their watcher, and others."""

    def __init__(self, world: World, plan: RunPlan) -> None:
        self._world = world
        self._has_share_group = has_share_group = plan.has_share_group
        is_consumer_group = plan.has_consumer_group
        random = Random(f"{world.seed} group cast")
        producers = [
            Producer(world, f"writer-{number}", plan.length.batches_max)
            for number in range(random.randint(1, 3))
        ]
        names = [f"member-{number}" for number in range(plan.members or random.randint(2, 4))]
        members: list[GroupClient]
        if is_consumer_group:
            members = [ConsumerGroupMember(world, name) for name in names]
            watcher: GroupWatcher = ConsumerGroupWatcher(world, "watcher", producers, len(names))
        else:
            members = [Member(world, name) for name in names]
            watcher = GroupWatcher(world, "watcher", producers, len(names))
        self.workers = [*producers, watcher]
        self.others = [*members]
        if random.random() < OTHERS_SHARE:
            self.others += [
                Consumer(world, "consumer"),
                OffsetObserver(world, "observer"),
                Admin(world, "admin"),
            ]
        more, apis, watchers = self._further_groups(plan, producers)
        shares = self._share_members(plan.members) if has_share_group else []
        if has_share_group:
            self.workers = [*self.workers, ShareGroupWatcher(world, "share-watcher", producers)]
        self.workers = [*self.workers, *watchers]
        self.others += [*more, *shares]
        apis = {**apis, **(CONSUMER_GROUP_ERRORS if is_consumer_group else GROUP_ERRORS)}
        self.targets = RuleTargets(
            apis=(*apis, *(SHARE_GROUP_ERRORS if has_share_group else ()), *DATA_ERRORS),
            points=(
                "group.revoked" if is_consumer_group else "group.preparing_rebalance",
                *(("share.acquired", "share.acknowledged") if has_share_group else ()),
            ),
            topics=tuple(world.topics),
            clients=tuple(each.name for each in (*producers, *members, *more, *shares)),
        )

    def _further_groups(
        self, plan: RunPlan, producers: Sequence[Producer]
    ) -> tuple[list[GroupClient], Mapping[str, tuple[str, ...]], list[GroupWatcher]]:
        """Members of a streams group and of a mixed group, their APIs, and their watchers."""
        members: list[GroupClient] = []
        apis: Mapping[str, tuple[str, ...]] = {}
        watchers: list[GroupWatcher] = []
        count = plan.members or Random(f"{self._world.seed} further groups").randint(2, 4)
        if plan.has_streams_group:
            members += [
                StreamsGroupMember(self._world, f"thread-{number}", f"process-{number // 2}")
                for number in range(count)
            ]
            apis = {**apis, **STREAMS_GROUP_ERRORS}
            watchers.append(StreamsGroupWatcher(self._world, "streams-watcher", producers, count))
        if plan.has_mixed_group:
            members += [
                (ConsumerGroupMember if number % 2 else Member)(
                    self._world, f"mixed-{number}", MIXED_GROUP
                )
                for number in range(count)
            ]
            apis = {**apis, **GROUP_ERRORS, **CONSUMER_GROUP_ERRORS}
            watchers.append(
                ConsumerGroupWatcher(self._world, "mixed-watcher", producers, count, MIXED_GROUP)
            )
        return members, apis, watchers

    def _share_members(self, count: int) -> list[ShareGroupMember]:
        random = Random(f"{self._world.seed} share group")
        names = [f"sharer-{number}" for number in range(count or random.randint(2, 4))]
        return [ShareGroupMember(self._world, name) for name in names]

    async def prepare(self) -> None:
        """Create the topics."""
        maker = Admin(self._world, "group-maker")
        for topic, partitions in self._world.topics.items():
            await maker.create(topic, partitions)
        if self._has_share_group:
            await read_from_start(maker)

    async def verdict(self) -> list[str]:
        """Compare the history with the logs."""
        log = await read_logs(self._world)
        wrong = judge(self._world.history, log)
        if self._has_share_group:
            wrong += self._world.shares.lost(log)
        return [*map(str, wrong)]


def make_casts(world: World, plan: RunPlan) -> list[Cast]:
    """The casts of a run."""
    casts: list[Cast] = []
    if plan.has_transactions:
        casts.append(TransactionCast(world, plan.length))
    if plan.has_group or plan.has_consumer_group:
        casts.append(GroupCast(world, plan))
    return casts


async def read_logs(world: World) -> Log:
    """All values by partition and offset, as a new client reads them."""
    reader = Consumer(world, "log-reader")
    ids = {topic: await reader.topic_id(topic) for topic in world.topics}
    log: dict[Partition, dict[int, str]] = {partition: {} for partition in world.partitions}
    while True:
        ends = {partition: len(found) for partition, found in log.items()}
        request = fetch_request(ends, ids, wait_ms=0, bytes_min=0)
        response = await reader.until(partial(reader.ask, request, (12, 12)))
        for topic in response.responses:
            for found in topic.partitions:
                log[topic.topic, found.partition_index].update(values_of(found.records))
        if ends == {partition: len(found) for partition, found in log.items()}:
            return log
