"""The controller: the only writer of topics, configs and producer id blocks.

Owns the order plan, store, image: a change is planned on the image, stored, and only then applied
to the image and returned to be published. It must never know how it is published. Invariant: a
returned change is in the store, so a restarted controller starts with an image that contains it.
Updates are numbered in the order in which methods return them; publish them in that order, so do
not wait in between. Kafka's ``QuorumController`` and, for the store, its ``KafkaController``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import TypeVar

import trio

from minibroker.broker.metadata import (
    bootstrap,
    layout,
    producer_ids,
    stored_configs,
    stored_topics,
)
from minibroker.broker.metadata.configs import (
    KINDS,
    Alteration,
    UnusableKeys,
    all_keys_usable,
    plan_alteration,
)
from minibroker.broker.metadata.foreign_topics import AppliedTopics, accept_topic
from minibroker.broker.metadata.image import (
    Broker,
    BrokerChanged,
    Change,
    ConfigChanged,
    Image,
    PartitionsAdded,
    Reset,
    Topic,
    TopicCreated,
    TopicDeleted,
    Update,
    Uuid,
    apply,
    apply_update,
)
from minibroker.broker.metadata.mutations import (
    Allow,
    FreeBytes,
    MutationLimits,
    allow_all,
    unlimited,
)
from minibroker.broker.metadata.outcomes import (
    ConfigOutcome,
    TopicOutcome,
    TopicOutcomes,
    duplicate_topic_outcome,
    reject_all,
    unavailable_rejection,
)
from minibroker.broker.metadata.quotas import QuotaChange, plan_change, sharded_problem
from minibroker.broker.metadata.snapshot_controller import SnapshotController
from minibroker.broker.metadata.store.tree import (
    BadVersionError,
    Delete,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    Set,
    Store,
    StoreError,
    UnavailableError,
)
from minibroker.broker.metadata.topic_recovery import FoundLogs, rebuild_topics
from minibroker.broker.metadata.topics import (
    ChangeRejected,
    NewPartitions,
    NewTopic,
    plan_creation,
    plan_deletion,
    plan_new_partitions,
    topics_at_start,
)
from minibroker.broker.metadata.user_controller import Plans
from minibroker.broker.settings import BROKER_RACK, DELETE_TOPIC_ENABLE, NODE_ID, Settings
from minibroker_protocol.errors import ErrorCode

ATTEMPTS_MAX = 5
"""How often a change is tried if other programs change the same nodes."""

CONFLICTS = (NodeExistsError, NoNodeError, BadVersionError, NotEmptyError)
"""Errors of the store after a concurrent change by another program."""


Result = TypeVar("Result", TopicOutcomes, ConfigOutcome, AppliedTopics)


class ClusterController(SnapshotController):
    """Cluster metadata with its store; only one controller uses a store at a time."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        image: Image,
        random: Random,
        free_bytes: FreeBytes = unlimited,
    ) -> None:
        """Use an image that equals the store's content; call `start` instead."""
        self._store = store
        self._settings = settings
        self._random = random
        self._image = image
        self._free_bytes = free_bytes
        self._lock = trio.Lock()
        self._pending_updates: list[Update] = []
        """Updates in the image that the next method call returns."""

    @classmethod
    async def start(
        cls,
        store: Store,
        settings: Settings,
        *,
        endpoints: Mapping[str, tuple[str, int]],
        random: Random,
        wall_ms: int,
        found_logs: FoundLogs = bootstrap.NO_LOGS,
        free_bytes: FreeBytes = unlimited,
    ) -> ClusterController:
        """Open a new or existing store with a higher controller epoch; the image has number 0.

        ``endpoints`` are the advertised addresses: listener name -> (host, port).  Raises
        `ControllerStartError` if the store belongs to another broker or cluster.
        """
        broker = Broker(settings[NODE_ID], settings[BROKER_RACK], endpoints)
        for path in layout.PERSISTENT_PATHS:
            await store.ensure(path)
        image = Image(
            controller_epoch=await bootstrap.next_epoch(store),
            cluster_id=await bootstrap.cluster_id(store, settings, random, found_logs),
            controller_id=broker.broker_id,
        )
        image = apply(image, BrokerChanged(broker))
        await rebuild_topics(store, settings, found_logs, broker.broker_id, wall_ms)
        await bootstrap.store_cluster_id(store, image.cluster_id)
        image = await bootstrap.with_topics(image, store, random, found_logs.topics)
        for change in await bootstrap.load_configs(store, settings):
            image = apply(image, change)
        bootstrap.check_data_directory(image, settings, found_logs)
        protocols = {name: settings.security_protocol(name) for name in endpoints}
        await bootstrap.register(store, broker, protocols, wall_ms)
        controller = cls(store, settings, image, random, free_bytes)
        # They are part of the image from the start, so that the first use of a group does not
        # change the image; their logs are created at the first write.
        for name, make in topics_at_start(settings).items():
            if name not in image.topics:
                created = make(settings, broker.broker_id, controller._new_topic_id())
                await store.multi(await stored_topics.creation(store, created))
                controller._image = apply(controller._image, created)
        return controller

    @property
    def image(self) -> Image:
        """The newest image, which contains all updates that were returned for publishing."""
        return self._image

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, allow: Allow = allow_all
    ) -> TopicOutcomes:
        """Create topics independently; with ``validate_only`` only return the outcome.

        ``allow`` returns whether so many partitions may be created.
        """
        limits = MutationLimits(allow, counts=not validate_only, free_bytes=self._free_bytes)

        async def attempt() -> TopicOutcomes:
            repeated = _repeated(new.name for new in topics)
            image, changes, outcomes = self._image, list[TopicCreated](), []
            for new in topics:
                if new.name in repeated:
                    outcomes.append(duplicate_topic_outcome(new.name))
                    continue
                plan = plan_creation(image, self._settings, new, self._new_topic_id())
                if not isinstance(plan, ChangeRejected):
                    plan = limits.check(new.name, plan, len(plan.topic.partitions))
                if isinstance(plan, ChangeRejected):
                    outcomes.append(TopicOutcome(new.name, plan))
                    continue
                outcomes.append(TopicOutcome(new.name, None, plan.topic, plan.config))
                changes.append(plan)
                image = apply(image, plan)  # so that later topics see it
            if validate_only:
                return TopicOutcomes(tuple(outcomes), [])
            operations = list[Operation]()
            for created in changes:
                operations += await stored_topics.creation(self._store, created)
            return TopicOutcomes(tuple(outcomes), await self._commit(operations, changes))

        names = [new.name for new in topics]
        return await self._retry_on_conflict(names, attempt, partial(reject_all, names))

    async def delete_topics(
        self, names: Sequence[str], *, allow: Allow = allow_all
    ) -> TopicOutcomes:
        """Delete topics independently, by name."""
        limits = MutationLimits(allow)

        async def attempt() -> TopicOutcomes:
            repeated = _repeated(names)
            changes, outcomes = list[TopicDeleted](), []
            for name in names:
                if name in repeated:
                    outcomes.append(duplicate_topic_outcome(name))
                    continue
                plan = plan_deletion(self._image, name)
                if not isinstance(plan, ChangeRejected):
                    plan = limits.check(name, plan, len(plan.partitions))
                if isinstance(plan, ChangeRejected):
                    outcomes.append(TopicOutcome(name, plan))
                    continue
                outcomes.append(TopicOutcome(name, None, plan))
                changes.append(TopicDeleted(plan.name, plan.topic_id))
            operations = list[Operation]()
            for deleted in changes:
                operations += await stored_topics.deletion(self._store, deleted.name)
            return TopicOutcomes(tuple(outcomes), await self._commit(operations, changes))

        return await self._retry_on_conflict(names, attempt, partial(reject_all, names))

    async def create_partitions(
        self,
        requested: Sequence[NewPartitions],
        *,
        validate_only: bool = False,
        allow: Allow = allow_all,
    ) -> TopicOutcomes:
        """Add partitions to topics independently."""
        limits = MutationLimits(allow, counts=not validate_only, free_bytes=self._free_bytes)

        async def attempt() -> TopicOutcomes:
            repeated = _repeated(new_partitions.name for new_partitions in requested)
            changes, outcomes, operations = list[PartitionsAdded](), [], list[Operation]()
            for new_partitions in requested:
                if new_partitions.name in repeated:
                    outcomes.append(duplicate_topic_outcome(new_partitions.name))
                    continue
                plan = plan_new_partitions(self._image, new_partitions)
                if not isinstance(plan, ChangeRejected):
                    plan = limits.check(new_partitions.name, plan, len(plan))
                if isinstance(plan, ChangeRejected):
                    outcomes.append(TopicOutcome(new_partitions.name, plan))
                    continue
                topic = self._image.topics[new_partitions.name]
                extended = topic._replace(partitions=topic.partitions + plan)
                outcomes.append(TopicOutcome(new_partitions.name, None, extended))
                changes.append(PartitionsAdded(new_partitions.name, plan))
                operations.append(await stored_topics.addition(self._store, topic, extended))
            if validate_only:
                return TopicOutcomes(tuple(outcomes), [])
            return TopicOutcomes(tuple(outcomes), await self._commit(operations, changes))

        names = [new_partitions.name for new_partitions in requested]
        return await self._retry_on_conflict(names, attempt, partial(reject_all, names))

    async def alter_configs(
        self,
        requested: Sequence[Alteration],
        *,
        unresolvable: Collection[str] = (),
        unusable_keys: UnusableKeys = all_keys_usable,
        validate_only: bool = False,
    ) -> ConfigOutcome:
        """Change the configs of topics and brokers independently (see `plan_alteration`)."""

        def plan() -> list[ConfigChanged | ChangeRejected]:
            image, settings = self._image, self._settings
            return [
                plan_alteration(image, settings, one, unresolvable, unusable_keys)
                for one in requested
            ]

        return await self._store_configs(plan, validate_only=validate_only)

    async def alter_quotas(
        self,
        requested: Sequence[QuotaChange],
        *,
        unresolvable: Collection[str] = (),
        validate_only: bool = False,
    ) -> ConfigOutcome:
        """Change the quotas of entities independently (see `plan_change`)."""

        def plan() -> list[ConfigChanged | ChangeRejected]:
            repeated = {
                entity for entity, n in Counter(one.entity for one in requested).items() if n > 1
            }
            plans: list[ConfigChanged | ChangeRejected] = []
            for one in requested:
                problem = sharded_problem(self._settings, one)
                if one.entity in repeated:
                    problem = "Ignoring duplicate entity"
                if problem is not None:
                    plans.append(ChangeRejected(ErrorCode.INVALID_REQUEST, problem))
                else:
                    plans.append(plan_change(self._image, one, unresolvable))
            return plans

        return await self._store_configs(plan, validate_only=validate_only)

    async def apply_config(self, kind: str, name: str) -> list[Update]:
        """Read the stored config of a resource, which another program may have written."""
        if kind not in KINDS:
            return []
        async with self._lock:
            return self._advance(
                await stored_configs.differences(self._store, self._image, [(kind, name)])
            )

    async def apply_all_configs(self) -> list[Update]:
        """Read the stored configs of all resources."""
        async with self._lock:
            kept = [
                (kind, name)
                for kind in KINDS
                for name in await stored_configs.names(self._store, kind)
            ]
            return self._advance(
                await stored_configs.differences(
                    self._store, self._image, [*kept, *self._image.configs]
                )
            )

    async def apply_topics(self, names: Collection[str]) -> AppliedTopics:
        """Apply the stored topics, which other programs may have created, changed or deleted."""
        async with self._lock:
            problems = {name: await self._apply_topic(name) for name in names}
            return AppliedTopics(self._advance([]), problems)

    async def write_leaders(self, names: Collection[str]) -> None:
        """Write the leaders of topics' partitions to the store, for tools that read them there."""
        for name in names:
            async with self._lock:
                topic, epoch = self._image.topics.get(name), self._image.controller_epoch
                if topic is None:
                    continue
                with suppress(
                    *CONFLICTS
                ):  # Another program has changed the topic, and it is written again.
                    steps = await stored_topics.states(self._store, topic, epoch)
                    for first in range(0, len(steps), stored_topics.STEPS_MAX):
                        await self._store.multi(steps[first : first + stored_topics.STEPS_MAX])

    async def delete_marked_topic(self, name: str) -> AppliedTopics:
        """Delete a topic that a tool marked for deletion with a node, which is deleted too."""
        request = Delete(layout.deletion_path(name))

        async def attempt() -> AppliedTopics:
            if not await self._store.exists(request.path):
                return AppliedTopics(self._advance([]), {})
            problem = await self._apply_topic(name)
            plan = plan_deletion(self._image, name)
            steps, changes = list[Operation]([request]), list[Change]()
            if isinstance(plan, Topic) and self._settings[DELETE_TOPIC_ENABLE]:
                steps = [*await stored_topics.deletion(self._store, name), request]
                changes = [TopicDeleted(name, plan.topic_id)]
            elif isinstance(plan, Topic):
                problem = f"{request.path}: is ignored, because delete.topic.enable=false"
            else:
                problem = problem or f"{request.path}: {plan.text}"
            await self._store.multi(steps)
            return AppliedTopics(self._advance(changes), {name: problem})

        return await self._retry_on_conflict([name], attempt)

    async def allocate_producer_ids(self) -> layout.ProducerIdBlock:
        """Return a block of producer ids that was never returned before."""
        async with self._lock:
            return await producer_ids.allocate(self._store, self._settings[NODE_ID])

    async def reset(self) -> list[Update]:
        """Delete every topic; recreate the internal ones at once, empty and with new ids.

        Producer ids are not reset, so that no id is used by two producers.
        """

        async def attempt() -> AppliedTopics:
            internal, operations = list[Topic](), list[Operation]()
            for topic in self._image.topics.values():
                if not topic.internal:
                    operations += await stored_topics.deletion(self._store, topic.name)
                    continue
                replacement = topic._replace(topic_id=self._new_topic_id())
                internal.append(replacement)
                operations.append(
                    Set(layout.topic_path(replacement.name), layout.encode_topic(replacement))
                )
            return AppliedTopics(await self._commit(operations, [Reset(tuple(internal))]), {})

        return (await self._retry_on_conflict(list(self._image.topics), attempt)).updates

    async def _retry_on_conflict(
        self,
        names: Collection[str],
        attempt: Callable[[], Awaitable[Result]],
        reject: Callable[[ChangeRejected], Result] | None = None,
    ) -> Result:
        """Change topics; after a conflict, apply what other programs wrote and try again.

        ``reject`` builds the result if the store is unavailable.
        """
        async with self._lock:
            try:
                for _ in range(ATTEMPTS_MAX - 1):
                    try:
                        return await attempt()
                    except CONFLICTS:
                        for name in names:
                            await self._apply_topic(name)
                return await attempt()
            except UnavailableError as error:
                if reject is None:
                    raise
                return reject(unavailable_rejection(error))

    async def _apply_topic(self, name: str) -> str:
        """Apply a stored topic; return why it was rejected, or an empty text."""
        for _ in range(ATTEMPTS_MAX):
            stored = await stored_topics.load(self._store, name)
            broker_id = self._settings[NODE_ID]
            accepted = accept_topic(self._image, broker_id, name, stored, self._new_topic_id)
            try:
                if accepted.rewritten is not None:
                    await self._store.multi([stored_topics.rewriting(accepted.rewritten, stored)])
            except CONFLICTS:
                continue
            except UnavailableError:
                raise
            except StoreError as error:
                return f"{error}; the stored topic cannot be applied"
            self._pending_updates = self._advance(accepted.changes)
            return accepted.problem
        return f"{layout.topic_path(name)}: changes faster than it can be read"

    async def _commit(
        self, operations: Sequence[Operation], changes: Sequence[Change]
    ) -> list[Update]:
        """Write changes to the store, then apply them to the image; return the updates."""
        if operations:
            await self._store.multi(operations)
        return self._advance(changes)

    def _advance(self, changes: Sequence[Change]) -> list[Update]:
        """Apply changes to the image; return the pending updates and the new one."""
        waiting, self._pending_updates = self._pending_updates, []
        if not changes:
            return waiting
        image = self._image
        update = Update(image.controller_epoch, image.number + 1, tuple(changes))
        self._image = apply_update(image, update)
        return [*waiting, update]

    async def _store_configs(
        self, plan: Callable[[], Plans], *, validate_only: bool = False
    ) -> ConfigOutcome:
        """Store planned changes, on top of recent changes by other programs."""

        async def attempt() -> ConfigOutcome:
            planned = [one[:2] for one in plan() if isinstance(one, ConfigChanged)]
            self._pending_updates = self._advance(
                await stored_configs.differences(self._store, self._image, planned)
            )
            plans = plan()
            rejections = tuple(one if isinstance(one, ChangeRejected) else None for one in plans)
            changes = [one for one in plans if isinstance(one, ConfigChanged)]
            if validate_only:
                return ConfigOutcome(rejections, self._advance([]))
            operations = await stored_configs.steps_with_notifications(self._store, changes)
            return ConfigOutcome(rejections, await self._commit(operations, changes))

        return await self._retry_on_conflict(
            (), attempt, lambda rejection: ConfigOutcome((rejection,) * len(plan()), [])
        )

    def _new_topic_id(self) -> Uuid:
        return bootstrap.new_uuid(self._random)


def _repeated(names: Iterable[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}
