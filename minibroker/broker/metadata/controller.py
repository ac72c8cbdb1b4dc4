"""The controller: the only writer of the cluster's metadata.

Owns the order plan, store, image for every kind of change. The rules are pure functions of an image
and a request: ``topics``, ``configs``, ``quotas``, ``features`` and
``acls`` plan the changes and the answer. `steps_of` is how each kind of change
is stored, and ``image.apply`` what it changes in the image. The controller must never authorize a
change or know how it is published. Invariants: a returned change is in the store, so a restarted
controller starts with an image that contains it, and a change that could not be stored is in no
image; neither a controller epoch nor a producer id is used twice, whichever process dies. Updates
are numbered in the order in which methods return them; publish them in that order, so do not wait
in between. Kafka's ``QuorumController`` and, for the store, its ``KafkaController``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final, NamedTuple, TypeVar

import trio

from minibroker.broker.metadata import bootstrap, layout, stored_topics
from minibroker.broker.metadata.acls import (
    Binding,
    CredentialChange,
    Filter,
    MatchingAcls,
    acl_steps,
    differing_acls,
    load_acls,
    load_all_acls,
    plan_acl_creation,
    plan_acl_deletion,
    plan_credentials,
    wanted_users,
)
from minibroker.broker.metadata.bootstrap import FoundLogs, rebuild_topics
from minibroker.broker.metadata.configs import (
    KINDS,
    Alteration,
    UnusableKeys,
    all_keys_usable,
    config_steps_with_notifications,
    differing_configs,
    plan_alterations,
    stored_names,
)
from minibroker.broker.metadata.features import FeatureUpdate, feature_steps, plan_feature_updates
from minibroker.broker.metadata.image import (
    BROKER,
    AclsChanged,
    Broker,
    BrokerChanged,
    BrokerGone,
    Change,
    ChangeRejected,
    ConfigChanged,
    FeaturesChanged,
    FinalizedLevels,
    Image,
    LeadersElected,
    MetadataRestored,
    PartitionsAdded,
    Plan,
    Reset,
    Topic,
    TopicCreated,
    TopicDeleted,
    Update,
    Uuid,
    apply,
    apply_update,
    plan_of,
)
from minibroker.broker.metadata.quotas import QuotaChange, plan_quotas
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
    UnwritableError,
)
from minibroker.broker.metadata.stored_topics import AppliedTopics, accept_topic
from minibroker.broker.metadata.topics import (
    Allow,
    FreeBytes,
    MutationLimits,
    NewPartitions,
    NewTopic,
    TopicOutcome,
    allow_all,
    plan_additions,
    plan_creations,
    plan_deletion,
    plan_deletions,
    plan_elections,
    reject_topics,
    topics_at_start,
    unlimited,
)
from minibroker.broker.security.acl import AclRule, Pattern
from minibroker.broker.settings import (
    ADVERTISED_LISTENERS,
    BROKER_RACK,
    DELETE_TOPIC_ENABLE,
    NODE_ID,
    PERSONA,
    Settings,
)
from minibroker.broker.settings.dynamic import effective
from minibroker.broker.settings.listeners import advertised_again, advertised_by_connection
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.types import uuid_text

ATTEMPTS_MAX = 5
"""How often a change is tried if other programs change the same nodes."""

CONFLICTS = (NodeExistsError, NoNodeError, BadVersionError, NotEmptyError)
"""Errors of the store after a concurrent change by another program."""

PRODUCER_IDS_PER_BLOCK: Final = 1000

KEPT_PATHS: Final = (layout.CONTROLLER_EPOCH, layout.PRODUCER_IDS)
"""Nodes whose numbers only grow: a snapshot that is restored leaves them alone."""


class TopicOutcomes(NamedTuple):
    """The outcome for each topic, and the updates to publish."""

    topics: tuple[TopicOutcome, ...]
    updates: list[Update]


class ConfigOutcome(NamedTuple):
    """Why each of several configs was not changed, None if it was, and the updates to publish."""

    rejections: tuple[ChangeRejected | None, ...]
    updates: list[Update]


AnswerT = TypeVar("AnswerT")


class ClusterController:
    """Cluster metadata with its store; only one controller uses a store at a time."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        image: Image,
        random: Random,
        *,
        broker: Broker,
        registration: Callable[[Broker], bytes],
        free_bytes: FreeBytes = unlimited,
        ignores_case: bool = False,
    ) -> None:
        """Use an image that equals the store's content; call `start` instead.

        ``broker`` has the addresses of the start; ``registration`` encodes a broker's node. With
        ``ignores_case``, the directories of topics whose names differ only in case are the same.
        """
        self._broker = broker
        self._registration = registration
        self._store = store
        self._settings = settings
        self._random = random
        self._image = image
        self._free_bytes = free_bytes
        self._ignores_case = ignores_case
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
        ignores_case: bool = False,
    ) -> ClusterController:
        """Open a new or existing store with a higher controller epoch; the image has number 0.

        ``endpoints`` are the addresses that are advertised without dynamic configs: listener name
        -> (host, port). Raises `ControllerStartError` if the store belongs to another broker or
        cluster.
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
        present = _advertised(broker, effective(settings, image.configs))
        image = apply(image, BrokerChanged(present))
        protocols = {name: settings.security_protocol(name) for name in endpoints}
        await bootstrap.register(store, present, protocols, wall_ms)
        for user in plan_credentials(image, [*wanted_users(settings, image)]).values():
            if isinstance(user, ConfigChanged):
                await store.multi(await steps_of(store, image, [user]))
                image = apply(image, user)
        registration = partial(layout.encode_broker, protocols=protocols, timestamp_ms=wall_ms)
        controller = cls(
            store,
            settings,
            image,
            random,
            broker=broker,
            registration=registration,
            free_bytes=free_bytes,
            ignores_case=ignores_case,
        )
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

    # ------------------------------------------------------------------------- changes by kind

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, allow: Allow = allow_all
    ) -> TopicOutcomes:
        """Create topics independently; with ``validate_only`` only return the outcome.

        ``allow`` returns whether so many partitions may be created.
        """
        limits = MutationLimits(
            allow,
            counts=not validate_only,
            free_bytes=self._free_bytes,
            ignores_case=self._ignores_case,
        )
        names = [new.name for new in topics]
        answer = await self._change(
            lambda image: plan_creations(image, self._settings, topics, limits, self._new_topic_id),
            partial(reject_topics, names),
            topics=names,
            validate_only=validate_only,
        )
        return TopicOutcomes(*answer)

    async def delete_topics(
        self, names: Sequence[str], *, allow: Allow = allow_all
    ) -> TopicOutcomes:
        """Delete topics independently, by name."""
        limits = MutationLimits(allow)
        answer = await self._change(
            lambda image: plan_deletions(image, names, limits),
            partial(reject_topics, names),
            topics=names,
        )
        return TopicOutcomes(*answer)

    async def create_partitions(
        self,
        requested: Sequence[NewPartitions],
        *,
        validate_only: bool = False,
        allow: Allow = allow_all,
    ) -> TopicOutcomes:
        """Add partitions to topics independently."""
        limits = MutationLimits(allow, counts=not validate_only, free_bytes=self._free_bytes)
        names = [new_partitions.name for new_partitions in requested]
        answer = await self._change(
            lambda image: plan_additions(image, requested, limits),
            partial(reject_topics, names),
            topics=names,
            validate_only=validate_only,
        )
        return TopicOutcomes(*answer)

    async def elect_leaders(
        self, topic: str, partition: int | None, epochs: int
    ) -> tuple[int | ChangeRejected, list[Update]]:
        """Raise the leader epochs of a topic's partitions, or of one, by a number.

        The answer is how many partitions that were.
        """
        return await self._change(
            lambda image: plan_elections(image, topic, partition, epochs),
            lambda rejection: rejection,
            topics=[topic],
        )

    async def alter_configs(
        self,
        requested: Sequence[Alteration],
        *,
        unresolvable: Collection[str] = (),
        unusable_keys: UnusableKeys = all_keys_usable,
        validate_only: bool = False,
    ) -> ConfigOutcome:
        """Change the configs of resources independently (see `plan_alterations`)."""
        answer = await self._change(
            lambda image: plan_alterations(
                image, self._settings, requested, unresolvable, unusable_keys
            ),
            lambda rejection: (rejection,) * len(requested),
            validate_only=validate_only,
        )
        return ConfigOutcome(*answer)

    async def alter_quotas(
        self,
        requested: Sequence[QuotaChange],
        *,
        unresolvable: Collection[str] = (),
        validate_only: bool = False,
    ) -> ConfigOutcome:
        """Change the quotas of entities independently (see `plan_quotas`)."""
        answer = await self._change(
            lambda image: plan_quotas(image, self._settings, requested, unresolvable),
            lambda rejection: (rejection,) * len(requested),
            validate_only=validate_only,
        )
        return ConfigOutcome(*answer)

    async def alter_credentials(
        self, requested: Sequence[CredentialChange]
    ) -> tuple[dict[str, ChangeRejected | None], list[Update]]:
        """Change SCRAM credentials; return the rejections by user, and the updates."""
        users = list(dict.fromkeys(change.user for change in requested))
        rejections, updates = await self._change(
            lambda image: plan_of(plan_credentials(image, requested).values()),
            lambda rejection: (rejection,) * len(users),
        )
        return dict(zip(users, rejections, strict=True)), updates

    async def change_tokens(
        self, plan: Callable[[Image], Sequence[ConfigChanged | ChangeRejected]]
    ) -> ConfigOutcome:
        """Change delegation tokens by a plan, which is called with the newest image."""
        answer = await self._change(
            lambda image: plan_of(plan(image)),
            lambda rejection: (rejection,) * len(plan(self._image)),
        )
        return ConfigOutcome(*answer)

    def new_token_id(self) -> str:
        """Return an id that no token had before."""
        return uuid_text(bootstrap.new_uuid(self._random))

    async def update_features(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False
    ) -> tuple[ChangeRejected | None, list[Update]]:
        """Change levels, all or none; return the rejection, and the updates to publish."""
        return await self._change(
            lambda image: plan_feature_updates(image, updates, self._settings[PERSONA]),
            lambda rejection: rejection,
            validate_only=validate_only,
        )

    async def create_acls(
        self, requested: Sequence[Binding]
    ) -> tuple[tuple[ChangeRejected | None, ...], list[Update]]:
        """Add ACLs independently; return the rejections and the updates to publish."""
        plan = partial(plan_acl_creation, wanted=requested)
        return await self._change(
            plan,
            lambda rejection: tuple(invalid or rejection for invalid in plan(self._image).answer),
        )

    async def delete_acls(
        self, requested: Sequence[Filter]
    ) -> tuple[list[MatchingAcls | ChangeRejected], list[Update]]:
        """Delete the ACLs that match each filter; return them or a rejection, and the updates."""
        plan = partial(plan_acl_deletion, wanted=requested)
        return await self._change(
            plan,
            lambda rejection: [
                rejection if isinstance(answer, list) and answer else answer
                for answer in plan(self._image).answer
            ],
        )

    async def reset(self) -> list[Update]:
        """Delete every topic; recreate the internal ones at once, empty and with new ids.

        Producer ids are not reset, so that no id is used by two producers.
        """

        async def attempt() -> list[Update]:
            internal = [topic for topic in self._image.topics.values() if topic.internal]
            created = [topic._replace(topic_id=self._new_topic_id()) for topic in internal]
            return await self._commit([Reset(tuple(created))])

        async with self._lock:
            return await self._retry_on_conflict(list(self._image.topics), attempt)

    async def allocate_producer_ids(self) -> layout.ProducerIdBlock:
        """Return a block of producer ids that was never returned before."""
        async with self._lock:
            return await next_producer_ids(self._store, self._settings[NODE_ID])

    async def _change(
        self,
        plan: Callable[[Image], Plan[AnswerT]],
        reject: Callable[[ChangeRejected], AnswerT],
        *,
        topics: Collection[str] = (),
        validate_only: bool = False,
    ) -> tuple[AnswerT, list[Update]]:
        """Plan a request, store its changes and apply them; return its answer and the updates.

        ``topics`` are those that another program may have changed. ``reject`` returns the answer if
        the store is unavailable.
        """

        async def attempt() -> tuple[AnswerT, list[Update]]:
            answer, changes = plan(self._image)
            configs = [change[:2] for change in changes if isinstance(change, ConfigChanged)]
            if configs:  # Another program may have written them since.
                differing = await differing_configs(self._store, self._image, configs)
                self._pending_updates = await self._apply_stored(differing)
                answer, changes = plan(self._image)
            if validate_only:
                return answer, self._advance([])
            return answer, await self._commit(changes)

        async with self._lock:
            try:
                return await self._retry_on_conflict(topics, attempt)
            except UnavailableError as error:
                return reject(unavailable_rejection(error)), []

    async def _retry_on_conflict(
        self, topics: Collection[str], attempt: Callable[[], Awaitable[AnswerT]]
    ) -> AnswerT:
        """Try a change; after a conflict, apply what other programs wrote and try again."""
        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return await attempt()
            except CONFLICTS:
                for name in topics:
                    await self._apply_topic(name)
        return await attempt()

    async def _commit(self, changes: Sequence[Change]) -> list[Update]:
        """Write changes to the store, then apply them to the image; return the updates."""
        operations = await steps_of(self._store, self._image, changes)
        moved = self._moved_broker(changes)
        if operations:
            await self._store.multi([*operations, *self._registrations(moved)])
        return self._advance([*changes, *moved])

    async def _apply_stored(self, changes: Sequence[Change]) -> list[Update]:
        """Apply changes of configs that are in the store already; return the updates."""
        moved = self._moved_broker(changes)
        if moved:
            await self._store.multi(self._registrations(moved))
        return self._advance([*changes, *moved])

    def _moved_broker(self, changes: Sequence[Change]) -> list[BrokerChanged]:
        """Return the change of this broker's advertised addresses that follows from others."""
        configs = self._image.configs
        for change in changes:
            match change:
                case ConfigChanged(kind, name, config) if kind == BROKER:
                    configs = {**configs, (kind, name): config}
                case MetadataRestored():
                    configs = change.configs
                case _:
                    pass
        if configs is self._image.configs:
            return []
        broker = _advertised(self._broker, effective(self._settings, configs))
        known = self._image.brokers[broker.broker_id]
        return [] if broker == known else [BrokerChanged(broker)]

    def _registrations(self, moved: Sequence[BrokerChanged]) -> list[Operation]:
        return [
            Set(layout.broker_path(broker.broker_id), self._registration(broker))
            for (broker,) in moved
        ]

    def _advance(self, changes: Sequence[Change]) -> list[Update]:
        """Apply changes to the image; return the pending updates and the new one."""
        waiting, self._pending_updates = self._pending_updates, []
        if not changes:
            return waiting
        image = self._image
        update = Update(image.controller_epoch, image.number + 1, tuple(changes))
        self._image = apply_update(image, update)
        return [*waiting, update]

    def _new_topic_id(self) -> Uuid:
        return bootstrap.new_uuid(self._random)

    # ----------------------------------------------------------- changes by other programs

    async def apply_config(self, kind: str, name: str) -> list[Update]:
        """Read the stored config of a resource, which another program may have written."""
        if kind not in KINDS:
            return []
        async with self._lock:
            differing = await differing_configs(self._store, self._image, [(kind, name)])
            return await self._apply_stored(differing)

    async def apply_all_configs(self) -> list[Update]:
        """Read the stored configs of all resources."""
        async with self._lock:
            kept = [
                (kind, name) for kind in KINDS for name in await stored_names(self._store, kind)
            ]
            return await self._apply_stored(
                await differing_configs(self._store, self._image, [*kept, *self._image.configs])
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

        async with self._lock:
            return await self._retry_on_conflict([name], attempt)

    async def apply_acls(self, pattern: Pattern) -> list[Update]:
        """Apply the stored ACLs of a pattern, which another program may have written.

        Raises `LayoutError`.
        """
        async with self._lock:
            rules = await load_acls(self._store, pattern)
            return self._advance(differing_acls(self._image, {pattern: rules}))

    async def apply_all_acls(self) -> list[Update]:
        """Apply the stored ACLs of all patterns."""
        async with self._lock:
            stored = dict.fromkeys(self._image.acls, tuple[AclRule, ...]())
            async for pattern, rules in load_all_acls(self._store):
                stored[pattern] = rules
            return self._advance(differing_acls(self._image, stored))

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

    # ---------------------------------------------------------------------------- snapshots

    @asynccontextmanager
    async def saved(self, file: str) -> AsyncIterator[None]:
        """Save the metadata in a file; it does not change inside of the context.

        Raises `StoreError`.
        """
        async with self._lock:
            await self._store.save(file)
            yield

    async def restore(self, file: str) -> list[Update]:
        """Return to the metadata in a file; return the updates to publish. Raises `StoreError`."""
        async with self._lock:
            await self._store.restore(file, KEPT_PATHS)
            image = replace(
                self._image,
                topics={},
                topic_names={},
                configs={},
                acls={},
                features=FinalizedLevels(),
            )
            image = await bootstrap.with_topics(image, self._store, self._random)
            for change in await bootstrap.load_configs(self._store, self._settings):
                image = apply(image, change)
            restored = MetadataRestored(image.topics, image.configs, image.acls, image.features)
            return await self._apply_stored([restored])


def _advertised(broker: Broker, settings: Settings) -> Broker:
    """Return a broker with the addresses that these settings advertise."""
    advertised = settings[ADVERTISED_LISTENERS] or ()
    return broker._replace(
        endpoints=advertised_again(broker.endpoints, advertised),
        by_connection=advertised_by_connection(advertised),
    )


async def steps_of(store: Store, image: Image, changes: Sequence[Change]) -> list[Operation]:
    """Return the operations that store changes of an image."""
    operations = list[Operation]()
    for change in changes:
        match change:
            case TopicCreated():
                operations += await stored_topics.creation(store, change)
            case TopicDeleted(name, _):
                operations += await stored_topics.deletion(store, name)
            case PartitionsAdded(name, _):
                extended = apply(image, change).topics[name]
                operations.append(await stored_topics.addition(store, image.topics[name], extended))
            case LeadersElected(name, _):
                elected = apply(image, change).topics[name]
                operations += await stored_topics.election(
                    store, image.topics[name], elected, image.controller_epoch
                )
            case Reset(internal):
                operations += await stored_topics.reset(store, image.topics, internal)
            case FeaturesChanged(levels):
                operations += await feature_steps(store, levels)
            case ConfigChanged() | AclsChanged():
                pass  # Below, as they may have nodes in common.
            case BrokerChanged() | BrokerGone() | MetadataRestored():
                raise TypeError(f"read from the store, not written: {change}")
    configs = [change for change in changes if isinstance(change, ConfigChanged)]
    acls = [change for change in changes if isinstance(change, AclsChanged)]
    operations += await config_steps_with_notifications(store, configs)
    operations += await acl_steps(store, acls)
    return operations


async def next_producer_ids(store: Store, broker_id: int) -> layout.ProducerIdBlock:
    """Store the next block of producer ids for a broker, then return it."""
    try:
        found = await store.get(layout.PRODUCER_IDS)
    except NoNodeError:
        block = layout.ProducerIdBlock(0, PRODUCER_IDS_PER_BLOCK)
        data = layout.encode_producer_ids(broker_id, block)
        await store.create(layout.PRODUCER_IDS, data)
    else:
        first = layout.decode_producer_ids(found.data)
        block = layout.ProducerIdBlock(first, PRODUCER_IDS_PER_BLOCK)
        data = layout.encode_producer_ids(broker_id, block)
        await store.set(layout.PRODUCER_IDS, data, version=found.version)
    return block


def unavailable_rejection(error: UnavailableError) -> ChangeRejected:
    """Return the rejection of changes while the store is unavailable.

    A store that cannot be reached may have made the change, or make it later, so clients get
    REQUEST_TIMED_OUT, with which they try again.
    """
    if isinstance(error, UnwritableError):
        return ChangeRejected(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
    return ChangeRejected(ErrorCode.REQUEST_TIMED_OUT, str(error))
